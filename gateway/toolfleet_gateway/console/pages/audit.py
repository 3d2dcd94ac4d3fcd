"""Shows who called what and who changed what, by a filter, page by page."""

from toolfleet_gateway.console.gateway_routes import RouteQuestion
from toolfleet_gateway.console.page import ConsolePage, Outcome, Shown, Visit
from toolfleet_gateway.console.paging import PER_PAGE

_FILTER = ("tool", "user", "outcome")


def audit_pages() -> list[ConsolePage]:
    """The one page."""
    return [ConsolePage("GET", "/audit", _listed)]


async def _listed(visit: Visit) -> Outcome:
    wanted = visit.query.chosen(*_FILTER)
    changes = visit.query.get("changes") == "true"
    cursor = visit.query.chosen("cursor")
    found = await visit.ask(
        "listAudit", RouteQuestion(query={**wanted, **cursor, "changes": changes, "limit": PER_PAGE})
    )
    values = {
        "lines": found["lines"],
        "next": found.get("next"),
        "wanted": wanted,
        "changes": changes,
        "is_first": not cursor,
    }
    return Shown("audit", "Audit", values)
