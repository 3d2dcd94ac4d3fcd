"""Shows queues and the workers of each lane; and has operators pause, drain and resume them."""

from toolfleet_gateway.console.gateway_routes import RouteQuestion
from toolfleet_gateway.console.page import ConsolePage, Done, Outcome, Shown, Visit
from toolfleet_gateway.console.paging import window_of
from toolfleet_gateway.http.problems import invalid_request

_DONE = {
    "pause": "Paused: within a second nothing more of it is begun.",
    "drain": "Draining: it takes no new calls, and what waits is run.",
    "resume": "Resumed.",
}


def queue_pages() -> list[ConsolePage]:
    """The one page."""
    return [ConsolePage("GET", "/queues", _shown), ConsolePage("POST", "/queues", _changed, "operator")]


async def _shown(visit: Visit) -> Outcome:
    status, found = await visit.ask("getFleetStatus"), await visit.ask("listQueues")
    order = sorted(found["queues"], key=lambda one: (one["state"] == "open", -one.get("waiting", 0), one["queue"]))
    return Shown(
        "queues",
        "Queues",
        {**window_of(visit.query).cut(order), "status": status, "broker_error": found.get("broker_error")},
    )


async def _changed(visit: Visit) -> Outcome:
    name, action, reason = (visit.form.get(field, "") for field in ("queue", "action", "reason"))
    if action not in _DONE or not name:
        raise invalid_request("A queue is paused, drained or resumed.")
    made = await visit.ask("changeQueue", RouteQuestion({"queue": name}, body={"action": action, "reason": reason}))
    said = _DONE[action] if made["changed"] else f"It is so already: {made['before']}."
    return Done(f"{name}: {said}", "/queues")
