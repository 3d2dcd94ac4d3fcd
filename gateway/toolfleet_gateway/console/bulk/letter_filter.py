"""Chooses dead letters by kind, words and age: what a list shows, and what is handled by it, are the same."""

from dataclasses import dataclass
from typing import Any, Final, Self

from toolfleet_gateway.console.inner.gateway_routes import RouteQuestion
from toolfleet_gateway.console.serving.form_body import FormFields
from toolfleet_gateway.console.visits.page import Visit
from toolfleet_registry.time import fleet_clock
from toolfleet_tasks.dead_letters.entry import KINDS

MOST_READ: Final = 5_000
"""Letters that a list reads: those behind them are found once these are gone, or by a narrower filter."""

_AT_ONCE = 1_000
_OLDEST_DAYS = 10_000


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Which letters: of a `kind`, about `about`, which failed with `error`, and are `days` old at least."""

    kind: str = ""
    about: str = ""
    error: str = ""
    days: int = 0

    @classmethod
    def of(cls, fields: FormFields) -> Self:
        """What a URL or a form says."""
        kind = fields.get("kind", "")
        about, error = fields.get("about", "").strip()[:200], fields.get("error", "").strip()[:200]
        return cls(kind if kind in KINDS else "", about, error, fields.number("days", 0, most=_OLDEST_DAYS))

    @property
    def fields(self) -> dict[str, str]:
        """As a URL or a form says it."""
        days = str(self.days) if self.days else ""
        return {"kind": self.kind, "about": self.about, "error": self.error, "days": days}

    async def matching(self, visit: Visit, *, most_read: int = MOST_READ) -> tuple[list[Any], bool]:
        """The letters, the latest first, and whether there may be others that were not read."""
        found, offset = list[Any](), 0
        while offset < most_read:
            query = {"limit": _AT_ONCE, "offset": offset, **({"kind": self.kind} if self.kind else {})}
            letters = (await visit.ask("listDeadLetters", RouteQuestion(query=query)))["letters"]
            found += [letter for letter in letters if self._takes(letter)]
            if len(letters) < _AT_ONCE:
                return found, False
            offset += _AT_ONCE
        return found, True

    def _takes(self, letter: Any) -> bool:
        return (
            self.about.lower() in f"{letter['id']} {letter['subject']}".lower()
            and self.error.lower() in letter["error"].lower()
            and letter["died_at"] <= fleet_clock.now() - self.days * 86_400
        )
