"""Shows which files and operations are not served as they are, and has hosts read their folders again."""

from toolfleet_gateway.console.page import ConsolePage, Done, Outcome, Shown, Visit
from toolfleet_gateway.console.paging import window_of


def tool_error_pages() -> list[ConsolePage]:
    """The pages."""
    return [ConsolePage("GET", "/errors", _listed), ConsolePage("POST", "/errors", _reloaded, "operator")]


async def _listed(visit: Visit) -> Outcome:
    window = window_of(visit.query)
    return Shown("tool_errors", "Tool files", window.cut((await visit.ask("listToolErrors"))["errors"]))


async def _reloaded(visit: Visit) -> Outcome:
    found = await visit.ask("reloadTools")
    if not found["hosts"]:
        return Done("No host of a tool folder has answered.", "/errors", "bad")
    pending = f" Still at it: {', '.join(found['pending'])}." if found["pending"] else ""
    return Done(f"{found['hosts']} hosts serve {found['count']} tools.{pending}", "/errors", "good")
