"""Shows wake-ups that wait by a filter, and has one tried now or dropped."""

from toolfleet_gateway.console.bulk.list_filter import WAKEUPS, ListFilter
from toolfleet_gateway.console.gateway_routes import RouteQuestion
from toolfleet_gateway.console.page import ConsolePage, Done, Outcome, Shown, Visit
from toolfleet_gateway.http.problems import invalid_request

_ONE = "/wake-ups/{wake_id}"


def wakeup_pages() -> list[ConsolePage]:
    """Return the pages. Wake-ups that were never accepted are dead letters, and dropped there."""
    return [
        ConsolePage("GET", "/wake-ups", _listed),
        ConsolePage("GET", _ONE, _shown),
        ConsolePage("POST", _ONE, _changed, "operator"),
    ]


async def _listed(visit: Visit) -> Outcome:
    return Shown("wakeups", "Wake-ups", await ListFilter.page(WAKEUPS, visit))


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
