"""Chooses wake-ups that wait by kind, words and age: what a list shows, and what is handled by it, are the same."""

from dataclasses import dataclass
from typing import Any, Self

from toolfleet_gateway.console.inner.gateway_routes import RouteQuestion
from toolfleet_gateway.console.serving.form_body import FormFields
from toolfleet_gateway.console.visits.page import Visit
from toolfleet_tasks.dead_letters.kept_wakes import WAITING_KINDS

_AT_ONCE = 500  # wake-ups that are counted
_MOST_PAGES = 200  # of one count
_MOST_MINUTES = 1_000_000
_MINUTE_SECONDS = 60


@dataclass(frozen=True, slots=True)
class WakeupFilter:
    """Which: of a `kind`, about `about`, which failed with `error`, and wait for `minutes` at least."""

    kind: str = ""
    about: str = ""
    error: str = ""
    minutes: int = 0

    @classmethod
    def of(cls, fields: FormFields) -> Self:
        """What a URL or a form says."""
        kind = fields.get("kind", "")
        about, error = fields.get("about", "").strip()[:200], fields.get("error", "").strip()[:200]
        minutes = fields.number("minutes", 0, most=_MOST_MINUTES)
        return cls(kind if kind in WAITING_KINDS else "", about, error, minutes)

    @property
    def fields(self) -> dict[str, str]:
        """As a URL or a form says it."""
        minutes = str(self.minutes) if self.minutes else ""
        return {"kind": self.kind, "about": self.about, "error": self.error, "minutes": minutes}

    @property
    def query(self) -> dict[str, Any]:
        """As a route takes it."""
        asked = {"about": self.about, "error": self.error, "min_age_seconds": self.minutes * _MINUTE_SECONDS}
        return asked | ({"kind": self.kind} if self.kind else {})

    async def matching(self, visit: Visit, *, limit: int, cursor: str | None = None) -> tuple[list[Any], str | None]:
        """At most `limit`, those that are tried next first; and the cursor behind which there may be more.

        With fewer than `limit`, and a cursor, not all were searched.
        """
        query = self.query | {"limit": limit} | ({"cursor": cursor} if cursor else {})
        found = await visit.ask("listWakeups", RouteQuestion(query=query))
        return found["wakeups"], found.get("next")

    async def count(self, visit: Visit) -> int:
        """How many there are; of very many, how many were seen."""
        count, behind = 0, None
        for _ in range(_MOST_PAGES):
            wakeups, behind = await self.matching(visit, limit=_AT_ONCE, cursor=behind)
            count += len(wakeups)
            if behind is None:
                break
        return count
