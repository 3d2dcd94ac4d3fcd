"""Shows wake-ups that wait to be accepted, and has one tried now."""

from toolfleet_gateway.console.inner.gateway_routes import RouteQuestion
from toolfleet_gateway.console.visits.page import ConsolePage, Done, Outcome, Shown, Visit
from toolfleet_gateway.console.visits.paging import window_of

_ONE = "/wake-ups/{wake_id}"


def wakeup_pages() -> list[ConsolePage]:
    """The pages. Those that nobody has accepted are dead letters, and dropped there."""
    return [
        ConsolePage("GET", "/wake-ups", _listed),
        ConsolePage("GET", _ONE, _shown),
        ConsolePage("POST", _ONE, _replayed, "operator"),
    ]


async def _listed(visit: Visit) -> Outcome:
    window = window_of(visit.query)
    found = await visit.ask("listWakeups", RouteQuestion(query=window.asked))
    return Shown("wakeups", "Wake-ups", window.shown(found["wakeups"]))


async def _shown(visit: Visit) -> Outcome:
    wakeup = await visit.ask("getWakeup", RouteQuestion({"wake_id": visit.path["wake_id"]}))
    return Shown("wakeup", "Wake-up", {"wakeup": wakeup})


async def _replayed(visit: Visit) -> Outcome:
    await visit.ask("replayWakeup", RouteQuestion({"wake_id": visit.path["wake_id"]}))
    return Done("It is tried now.", "/wake-ups")
