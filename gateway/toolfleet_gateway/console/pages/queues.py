"""Shows queues and the workers of each lane."""

from toolfleet_gateway.console.visits.page import ConsolePage, Outcome, Shown, Visit
from toolfleet_gateway.console.visits.paging import window_of


def queue_pages() -> list[ConsolePage]:
    """The one page. The fleet has no operation that pauses a queue."""
    return [ConsolePage("GET", "/queues", _shown)]


async def _shown(visit: Visit) -> Outcome:
    status = await visit.ask("getFleetStatus")
    return Shown("queues", "Queues", {**window_of(visit.query).cut(status["queues"]), "status": status})
