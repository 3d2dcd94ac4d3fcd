"""Shows wake-ups that wait by a filter, and has one tried now or dropped."""

from toolfleet_gateway.console.bulk.wakeup_filter import WakeupFilter
from toolfleet_gateway.console.inner.gateway_routes import RouteQuestion
from toolfleet_gateway.console.visits.page import ConsolePage, Done, Outcome, Shown, Visit
from toolfleet_gateway.console.visits.paging import PER_PAGE, window_of
from toolfleet_gateway.http.problems import invalid_request
from toolfleet_tasks.dead_letters.kept_wakes import WAITING_KINDS
from toolfleet_tasks.dead_letters.waiting_search import MOST_WAITING_SEARCHED

_ONE = "/wake-ups/{wake_id}"
_LONGEST_CURSOR = 2_048  # characters


def wakeup_pages() -> list[ConsolePage]:
    """The pages. Those that nobody has accepted are dead letters, and dropped there."""
    return [
        ConsolePage("GET", "/wake-ups", _listed),
        ConsolePage("GET", _ONE, _shown),
        ConsolePage("POST", _ONE, _changed, "operator"),
    ]


async def _listed(visit: Visit) -> Outcome:
    limit, wanted = window_of(visit.query).limit, WakeupFilter.of(visit.query)
    cursor = visit.query.get("cursor", "")[:_LONGEST_CURSOR] or None
    wakeups, following = await wanted.matching(visit, limit=limit, cursor=cursor)
    values = {
        "rows": wakeups,
        "wanted": wanted,
        "kinds": WAITING_KINDS,
        "limit": limit if limit != PER_PAGE else None,
        "next": following,
        "is_first": cursor is None,
        "is_cut": following is not None and len(wakeups) < limit,
        "searched": MOST_WAITING_SEARCHED,
        "count": len(wakeups) if following is None and cursor is None else None,
    }
    return Shown("wakeups", "Wake-ups", values)


async def _shown(visit: Visit) -> Outcome:
    wakeup = await visit.ask("getWakeup", RouteQuestion({"wake_id": visit.path["wake_id"]}))
    return Shown("wakeup", "Wake-up", {"wakeup": wakeup})


async def _changed(visit: Visit) -> Outcome:
    wake_id, action = visit.path["wake_id"], visit.form.get("action")
    question = RouteQuestion({"wake_id": wake_id})
    if action == "drop":
        dropped = await visit.ask("dropWakeup", question)
        under_way = " It is tried just now, and may still be accepted." if dropped["under_way"] else ""
        return Done(f"Dropped {wake_id}.{under_way}", "/wake-ups")
    if action != "replay":
        raise invalid_request("A wake-up is replayed or dropped.")
    await visit.ask("replayWakeup", question)
    return Done("It is tried now.", "/wake-ups")
