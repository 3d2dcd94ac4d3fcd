"""Tells how far it is where all rows of a filter are handled step by step: it stands in the form of the next step, so that any gateway goes on with it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

from toolfleet_gateway.console.bulk.list_filter import ListFilter, cursor_in
from toolfleet_gateway.console.form_body import FormFields
from toolfleet_gateway.console.page import Shown, Visit
from toolfleet_gateway.http.problems import invalid_request

BulkAction = Literal["replay", "drop"]
"""What is done with each."""

_MOST = 1_000_000
_MOST_FAULTS = 5
_COUNTS = ("done", "passed", "under_way", "failed")


@dataclass(frozen=True, slots=True)
class BulkProgress:
    """The progress of a bulk action.

    The rows behind `cursor` are left. Those that have `failed` stay. `passed` are those that another operator has
    handled, or that need nothing.

    `total` is their number at the start; below 0: not counted. `under_way`: the number of dropped ones that were being
    tried just then.
    """

    action: BulkAction
    cursor: str
    total: int = -1
    done: int = 0
    passed: int = 0
    under_way: int = 0
    failed: int = 0
    is_over: bool = False

    @classmethod
    def of(cls, form: FormFields) -> Self:
        """Parse the form; a new one has no cursor, and no total. Raises `Problem`."""
        action = form.get("action")
        if action not in {"replay", "drop"}:
            raise invalid_request("All of a filter are replayed or dropped.")
        cursor = cursor_in(form)
        total = form.number("total", -1, most=_MOST) if cursor else -1
        counts = {name: form.number(name, 0, most=_MOST) for name in _COUNTS}
        return cls("drop" if action == "drop" else "replay", cursor, total, is_over=False, **counts)

    @property
    def handled(self) -> int:
        """The number of handled rows."""
        return self.done + self.passed + self.failed

    @property
    def fields(self) -> dict[str, str | int]:
        """As the next step's form says it."""
        counts = {name: getattr(self, name) for name in _COUNTS}
        return {"action": self.action, "cursor": self.cursor, "total": self.total, **counts}

    async def counted(self, visit: Visit, wanted: ListFilter) -> "BulkProgress":
        """Return it with the total, which the first step counts."""
        return self if self.total >= 0 else replace(self, total=await wanted.count(visit, self.cursor or None))

    def advanced(self, following: str | None, **counts: int) -> "BulkProgress":
        """Return it after a step with these counts; `following` is the cursor of the next one, if anything is left."""
        added = {name: getattr(self, name) + count for name, count in counts.items()}
        ahead = replace(self, cursor=following or self.cursor, is_over=following is None, **added)
        return replace(ahead, total=ahead.handled if ahead.is_over else max(ahead.total, ahead.handled))

    def shown(self, wanted: ListFilter, faults: Sequence[str]) -> Shown:
        """Return its page, with some of the last step's faults."""
        values = {"wanted": wanted, "progress": self, "faults": faults[:_MOST_FAULTS]}
        return Shown("bulk_steps", "Replay by filter" if self.action == "replay" else "Drop by filter", values)
