"""Handles all waiting wake-ups of a filter, which it has tried or drops, some at a time.

Closing the page stops it. A wake-up that two people handle at once is handled by one of them.
"""

from toolfleet_gateway.console.bulk.bulk_progress import BulkProgress
from toolfleet_gateway.console.bulk.list_filter import WAKEUPS, ListFilter
from toolfleet_gateway.console.gateway_routes import RouteQuestion
from toolfleet_gateway.console.page import ConsolePage, Outcome, Visit

_AT_ONCE = 200  # wake-ups of one step, which has one line in the audit: it ends within a second
_ROUTES = {"replay": "replayWakeups", "drop": "dropWakeups"}


def wakeup_step_pages() -> list[ConsolePage]:
    """The one page. It comes before those of single wake-ups."""
    return [ConsolePage("POST", f"{WAKEUPS.path}/bulk", _stepped, "operator")]


async def _stepped(visit: Visit) -> Outcome:
    wanted = ListFilter.of(WAKEUPS, visit.form)
    progress = await BulkProgress.of(visit.form).counted(visit, wanted)
    query = wanted.query(_AT_ONCE, progress.cursor)
    step = await visit.ask(_ROUTES[progress.action], RouteQuestion(query=query))
    faults = step["problems"]
    counts = {name: step[name] for name in ("done", "passed", "under_way")}
    progress = progress.advanced(step.get("next"), **counts, failed=len(faults))
    return progress.shown(wanted, faults)
