"""Chooses dead letters by kind, words and age: what a list shows, and what is handled by it, are the same."""

from dataclasses import dataclass
from typing import Any, Final, Self

from toolfleet_gateway.console.inner.gateway_routes import RouteQuestion
from toolfleet_gateway.console.serving.form_body import FormFields
from toolfleet_gateway.console.visits.page import Visit
from toolfleet_tasks.dead_letters.entry import KINDS

_AT_ONCE = 200  # letters that are counted
_MOST_PAGES = 500  # of one count
_OLDEST_DAYS = 10_000
_DAY_SECONDS = 86_400

LONGEST_CURSOR: Final = 2_048
"""Characters."""


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

    async def matching(self, visit: Visit, *, limit: int, cursor: str | None = None) -> tuple[list[Any], str | None]:
        """At most `limit` letters, the latest first; and the cursor behind which there may be more.

        With fewer letters than `limit`, and a cursor, not all were searched.
        """
        query = {"limit": limit, "about": self.about, "error": self.error, "min_age_seconds": self.days * _DAY_SECONDS}
        query |= ({"kind": self.kind} if self.kind else {}) | ({"cursor": cursor} if cursor else {})
        found = await visit.ask("listDeadLetters", RouteQuestion(query=query))
        return found["letters"], found.get("next")

    async def count(self, visit: Visit, cursor: str) -> int:
        """How many there are behind a cursor; of very many, how many were seen."""
        count, behind = 0, cursor
        for _ in range(_MOST_PAGES):
            letters, following = await self.matching(visit, limit=_AT_ONCE, cursor=behind)
            count += len(letters)
            if following is None:
                break
            behind = following
        return count
