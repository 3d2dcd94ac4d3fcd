"""Picks parts of lists by an offset that stands in the URL."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from toolfleet_gateway.console.form_body import FormFields

PER_PAGE: Final = 50
"""Rows of one page: few enough to be read, and to be written within milliseconds."""

_SIZES = (10, 200)
_FARTHEST = 1_000_000


@dataclass(frozen=True, slots=True)
class ListWindow:
    """The part of a list that is shown. One more row is requested, to see whether there is a next page."""

    limit: int
    offset: int

    @property
    def asked(self) -> dict[str, int]:
        """The query that fetches it."""
        return {"limit": self.limit + 1, "offset": self.offset}

    def shown(self, rows: Sequence[Any]) -> dict[str, Any]:
        """Return the template's values: the `rows`, and the offsets of the pages before and after, if there are any."""
        has_more = len(rows) > self.limit
        return {
            "rows": list(rows[: self.limit]),
            "window": self,
            "earlier": max(self.offset - self.limit, 0) if self.offset else None,
            "later": self.offset + self.limit if has_more else None,
        }

    def cut(self, rows: Sequence[Any]) -> dict[str, Any]:
        """The same of a list that is there as a whole."""
        return self.shown(rows[self.offset : self.offset + self.limit + 1]) | {"count": len(rows)}


def window_of(query: FormFields) -> ListWindow:
    """Parse the URL's query; invalid numbers are ignored."""
    limit = query.number("limit", PER_PAGE, least=_SIZES[0], most=_SIZES[1])
    return ListWindow(limit, query.number("offset", 0, most=_FARTHEST))
