"""Handles all letters of a filter, which it replays or drops, some at a time: where it is stands in its own form, so that any gateway goes on with it.

Whoever closes the page stops it. A letter that two people handle at once is refused the second time.
"""

import asyncio
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from toolfleet_gateway.console.bulk.letter_filter import LONGEST_CURSOR, LetterFilter
from toolfleet_gateway.console.inner.gateway_routes import RouteQuestion
from toolfleet_gateway.console.serving.form_body import FormFields
from toolfleet_gateway.console.visits.page import ConsolePage, Outcome, Shown, Visit
from toolfleet_gateway.http.problems import Problem, invalid_request
from toolfleet_registry.time import fleet_clock
from toolfleet_tasks.dead_letters.letter_search import mark_before

_AT_ONCE = {"replay": 5, "drop": 50}  # letters of one step: it ends in seconds
_REPLAY_SECONDS = 20.0
_MOST = 1_000_000
_MOST_SEARCHES = 10  # of one step, which looks at some thousand letters each time
_MOST_FAULTS = 5

Action = Literal["replay", "drop"]


@dataclass(frozen=True, slots=True)
class LetterProgress:
    """How far it is: the letters behind `cursor` are left, the latest first. Those that have failed stay, and are passed by.

    `total` is how many there were when it began; below 0: nobody has counted them.
    """

    action: Action
    cursor: str
    total: int = -1
    done: int = 0
    failed: int = 0
    is_over: bool = False

    @classmethod
    def of(cls, form: FormFields) -> Self:
        """What the form says. One that has just begun says nothing: what dies from now on is not meant. Raises `Problem`."""
        action = form.get("action")
        if action not in {"replay", "drop"}:
            raise invalid_request("Dead letters are replayed or dropped.")
        done, failed = (form.number(name, 0, most=_MOST) for name in ("done", "failed"))
        cursor = form.get("cursor", "")[:LONGEST_CURSOR]
        total = form.number("total", -1, most=_MOST) if cursor else -1
        cursor = cursor or mark_before(fleet_clock.now())
        return cls("drop" if action == "drop" else "replay", cursor, total, done, failed)


def letter_step_pages() -> list[ConsolePage]:
    """The one page. It comes before those of single letters."""
    return [ConsolePage("POST", "/dead-letters/bulk", _stepped, "operator")]


async def _stepped(visit: Visit) -> Outcome:
    wanted, progress = LetterFilter.of(visit.form), LetterProgress.of(visit.form)
    total = progress.total if progress.total >= 0 else await wanted.count(visit, progress.cursor)
    chosen, following = await _chosen(visit, wanted, progress)
    outcomes = await asyncio.gather(*(_handled(visit, progress.action, each) for each in chosen))
    faults = [fault for fault in outcomes if fault is not None]
    done, failed = progress.done + len(chosen) - len(faults), progress.failed + len(faults)
    is_over = following is None
    progress = replace(
        progress,
        cursor=following or progress.cursor,
        total=done + failed if is_over else max(total, done + failed),
        done=done,
        failed=failed,
        is_over=is_over,
    )
    values = {"wanted": wanted, "progress": progress, "faults": faults[:_MOST_FAULTS]}
    return Shown("letter_steps", "Replay by filter" if progress.action == "replay" else "Drop by filter", values)


async def _chosen(visit: Visit, wanted: LetterFilter, progress: LetterProgress) -> tuple[list[Any], str | None]:
    """The letters of this step, and the cursor of the next; `None`: nothing is left."""
    chosen, most = list[Any](), _AT_ONCE[progress.action]
    cursor: str | None = progress.cursor
    for _ in range(_MOST_SEARCHES):
        letters, cursor = await wanted.matching(visit, limit=most - len(chosen), cursor=cursor)
        chosen += letters
        if cursor is None or len(chosen) == most:
            break
    return chosen, cursor


async def _handled(visit: Visit, action: Action, letter: Any) -> str | None:
    """Handle one, with its own line in the audit. What is the matter with it, if it was not."""
    path, query = {"letter_id": letter["id"]}, {"kind": letter["kind"]}
    try:
        if action == "drop":
            await visit.ask("dropDeadLetter", RouteQuestion(path, query))
            return None
        report = await visit.ask("replayDeadLetter", RouteQuestion(path, query, {"timeout_seconds": _REPLAY_SECONDS}))
    except Problem as exc:
        return f"{letter['id']}: {exc}"
    result = report.get("result")
    return None if result is None or result["success"] else f"{letter['id']}: {result['error']}"
