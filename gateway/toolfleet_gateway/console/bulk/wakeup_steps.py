"""Handles all waiting wake-ups of a filter, which it has tried or drops, some at a time: where it is stands in its own form, so that any gateway goes on with it.

Whoever closes the page stops it. A wake-up that two people handle at once is handled by one of them.
"""

from dataclasses import dataclass, replace
from typing import Literal, Self

from toolfleet_gateway.console.bulk.wakeup_filter import WakeupFilter
from toolfleet_gateway.console.inner.gateway_routes import RouteQuestion
from toolfleet_gateway.console.serving.form_body import FormFields
from toolfleet_gateway.console.visits.page import ConsolePage, Outcome, Shown, Visit
from toolfleet_gateway.http.problems import invalid_request

_AT_ONCE = 200  # wake-ups of one step, which has one line in the audit: it ends within a second
_MOST = 1_000_000
_MOST_FAULTS = 5
_LONGEST_CURSOR = 2_048  # characters
_ROUTES = {"replay": "replayWakeups", "drop": "dropWakeups"}
_COUNTS = ("done", "passed", "under_way", "failed")

WakeupAction = Literal["replay", "drop"]


@dataclass(frozen=True, slots=True)
class WakeupProgress:
    """How far it is: those behind `cursor` are left. `passed` are those that were due already, or that others have handled.

    `total` is how many there were when it began; below 0: nobody has counted them. `under_way`: of those that were dropped, how
    many were tried just then.
    """

    action: WakeupAction
    cursor: str
    total: int = -1
    done: int = 0
    passed: int = 0
    under_way: int = 0
    failed: int = 0
    is_over: bool = False

    @classmethod
    def of(cls, form: FormFields) -> Self:
        """What the form says. Raises `Problem`."""
        action = form.get("action")
        if action not in _ROUTES:
            raise invalid_request("Wake-ups are replayed or dropped.")
        cursor = form.get("cursor", "")[:_LONGEST_CURSOR]
        total = form.number("total", -1, most=_MOST) if cursor else -1
        done, passed, under_way, failed = (form.number(name, 0, most=_MOST) for name in _COUNTS)
        return cls("drop" if action == "drop" else "replay", cursor, total, done, passed, under_way, failed)

    @property
    def handled(self) -> int:
        """How many are behind it."""
        return self.done + self.passed + self.failed


def wakeup_step_pages() -> list[ConsolePage]:
    """The one page. It comes before those of single wake-ups."""
    return [ConsolePage("POST", "/wake-ups/bulk", _stepped, "operator")]


async def _stepped(visit: Visit) -> Outcome:
    wanted, progress = WakeupFilter.of(visit.form), WakeupProgress.of(visit.form)
    total = progress.total if progress.total >= 0 else await wanted.count(visit)
    query = wanted.query | {"limit": _AT_ONCE} | ({"cursor": progress.cursor} if progress.cursor else {})
    step = await visit.ask(_ROUTES[progress.action], RouteQuestion(query=query))
    following = step.get("next")
    progress = replace(
        progress,
        cursor=following or "",
        done=progress.done + step["done"],
        passed=progress.passed + step["passed"],
        under_way=progress.under_way + step["under_way"],
        failed=progress.failed + len(step["problems"]),
        is_over=following is None,
    )
    total = progress.handled if progress.is_over else max(total, progress.handled)
    progress = replace(progress, total=total)
    values = {"wanted": wanted, "progress": progress, "faults": step["problems"][:_MOST_FAULTS]}
    return Shown("wakeup_steps", "Replay by filter" if progress.action == "replay" else "Drop by filter", values)
