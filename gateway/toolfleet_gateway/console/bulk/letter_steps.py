"""Handles all letters of a filter, which it replays or drops, some at a time.

Closing the page stops it. A letter that two people handle at once is refused the second time.
"""

import asyncio
from dataclasses import replace
from typing import Any

from toolfleet_gateway.console.bulk.bulk_progress import BulkAction, BulkProgress
from toolfleet_gateway.console.bulk.list_filter import LETTERS, ListFilter
from toolfleet_gateway.console.gateway_routes import RouteQuestion
from toolfleet_gateway.console.page import ConsolePage, Outcome, Visit
from toolfleet_gateway.http.problems import Problem
from toolfleet_registry.time import fleet_clock
from toolfleet_tasks.dead_letters.letter_search import mark_before

_AT_ONCE = {"replay": 5, "drop": 50}  # letters of one step: it ends in seconds
_REPLAY_SECONDS = 20.0
_MOST_SEARCHES = 10  # of one step, which looks at some thousand letters each time


def letter_step_pages() -> list[ConsolePage]:
    """The one page. It comes before those of single letters."""
    return [ConsolePage("POST", f"{LETTERS.path}/bulk", _stepped, "operator")]


async def _stepped(visit: Visit) -> Outcome:
    wanted, progress = ListFilter.of(LETTERS, visit.form), BulkProgress.of(visit.form)
    if not progress.cursor:  # what dies from now on is not meant
        progress = replace(progress, cursor=mark_before(fleet_clock.now()))
    progress = await progress.counted(visit, wanted)
    chosen, following = await _chosen(visit, wanted, progress)
    outcomes = await asyncio.gather(*(_handled(visit, progress.action, each) for each in chosen))
    faults = [fault for fault in outcomes if fault is not None]
    progress = progress.advanced(following, done=len(chosen) - len(faults), failed=len(faults))
    return progress.shown(wanted, faults)


async def _chosen(visit: Visit, wanted: ListFilter, progress: BulkProgress) -> tuple[list[Any], str | None]:
    """The letters of this step, and the cursor of the next; `None`: nothing is left."""
    chosen, most = list[Any](), _AT_ONCE[progress.action]
    cursor: str | None = progress.cursor
    for _ in range(_MOST_SEARCHES):
        letters, cursor = await wanted.matching(visit, limit=most - len(chosen), cursor=cursor)
        chosen += letters
        if cursor is None or len(chosen) == most:
            break
    return chosen, cursor


async def _handled(visit: Visit, action: BulkAction, letter: Any) -> str | None:
    """Handle one, with its own line in the audit. Returns why it was not handled, or `None`."""
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
