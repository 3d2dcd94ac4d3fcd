"""Chooses rows of a list by kind, words and age: a page and a bulk action with the same filter have the same rows."""

from dataclasses import dataclass
from typing import Any, Final, Self

from toolfleet_gateway.console.form_body import FormFields
from toolfleet_gateway.console.gateway_routes import RouteQuestion
from toolfleet_gateway.console.page import Visit
from toolfleet_gateway.console.paging import PER_PAGE, window_of
from toolfleet_tasks.dead_letters.entry import KINDS
from toolfleet_tasks.dead_letters.kept_wakes import WAITING_KINDS
from toolfleet_tasks.dead_letters.letter_search import MOST_SEARCHED
from toolfleet_tasks.dead_letters.waiting_search import MOST_WAITING_SEARCHED

_AT_ONCE = 200  # rows that are counted: each may have a megabyte of arguments
_MOST_PAGES = 500  # of one count
_LONGEST_WORDS = 200
_LONGEST_CURSOR = 2_048


@dataclass(frozen=True, slots=True)
class FilteredList:
    """A list that takes filters: the route that answers it, and what its rows are called there."""

    route: str
    rows: str
    path: str
    """Where its page is, below the console's."""
    kinds: tuple[str, ...]
    age: str
    """What an age is typed in."""
    age_seconds: int
    """How long one of these is."""
    oldest: int
    """How many at most."""
    searched: int
    """Rows that one question looks at."""


LETTERS: Final = FilteredList(
    "listDeadLetters", "letters", "/dead-letters", KINDS, "days", 86_400, 10_000, MOST_SEARCHED
)
WAKEUPS: Final = FilteredList(
    "listWakeups", "wakeups", "/wake-ups", WAITING_KINDS, "minutes", 60, 1_000_000, MOST_WAITING_SEARCHED
)


@dataclass(frozen=True, slots=True)
class ListFilter:
    """A filter of a list's rows: of a `kind`, about `about`, which failed with `error`, and of that `age` at least."""

    chosen_of: FilteredList
    kind: str = ""
    about: str = ""
    error: str = ""
    age: int = 0

    @classmethod
    def of(cls, chosen_of: FilteredList, fields: FormFields) -> Self:
        """Parse a URL's query or a form."""
        kind = fields.get("kind", "")
        about, error = (fields.get(name, "").strip()[:_LONGEST_WORDS] for name in ("about", "error"))
        age = fields.number(chosen_of.age, 0, most=chosen_of.oldest)
        return cls(chosen_of, kind if kind in chosen_of.kinds else "", about, error, age)

    @property
    def fields(self) -> dict[str, str]:
        """As a URL or a form says it."""
        age = str(self.age) if self.age else ""
        return {"kind": self.kind, "about": self.about, "error": self.error, self.chosen_of.age: age}

    def query(self, limit: int, cursor: str | None) -> dict[str, Any]:
        """As a route takes it: at most `limit` rows behind a cursor."""
        seconds = self.age * self.chosen_of.age_seconds
        asked = {"limit": limit, "about": self.about, "error": self.error, "min_age_seconds": seconds}
        return asked | ({"kind": self.kind} if self.kind else {}) | ({"cursor": cursor} if cursor else {})

    async def matching(self, visit: Visit, *, limit: int, cursor: str | None = None) -> tuple[list[Any], str | None]:
        """Return at most `limit` rows, in the order of the list; and the cursor behind which there may be more.

        With fewer rows than `limit`, and a cursor, not all were searched.
        """
        found = await visit.ask(self.chosen_of.route, RouteQuestion(query=self.query(limit, cursor)))
        return found[self.chosen_of.rows], found.get("next")

    async def count(self, visit: Visit, cursor: str | None) -> int:
        """Return how many there are behind a cursor; of very many, how many were seen."""
        count, behind = 0, cursor
        for _ in range(_MOST_PAGES):
            rows, behind = await self.matching(visit, limit=_AT_ONCE, cursor=behind)
            count += len(rows)
            if behind is None:
                break
        return count

    @classmethod
    async def page(cls, chosen_of: FilteredList, visit: Visit) -> dict[str, Any]:
        """The rows that a URL asks for, and all else that its page shows of them."""
        limit, wanted = window_of(visit.query).limit, cls.of(chosen_of, visit.query)
        cursor = cursor_in(visit.query) or None
        rows, following = await wanted.matching(visit, limit=limit, cursor=cursor)
        return {
            "rows": rows,
            "wanted": wanted,
            "kinds": chosen_of.kinds,
            "limit": limit if limit != PER_PAGE else None,
            "next": following,
            "is_first": cursor is None,
            "is_cut": following is not None and len(rows) < limit,
            "searched": chosen_of.searched,
            "count": len(rows) if following is None and cursor is None else None,
        }


def cursor_in(fields: FormFields) -> str:
    """Return the start of a page or a step; empty at the first one."""
    return fields.get("cursor", "")[:_LONGEST_CURSOR]
