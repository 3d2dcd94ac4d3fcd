"""Shows what limits tools declare, what a user has left of them today, and what keys may send."""

from toolfleet_gateway.console.gateway_routes import RouteQuestion
from toolfleet_gateway.console.known_tools import KnownTools
from toolfleet_gateway.console.page import ConsolePage, Outcome, Shown, Visit
from toolfleet_gateway.console.paging import window_of
from toolfleet_gateway.http.problems import invalid_request
from toolfleet_registry.contracts import Caller
from toolfleet_registry.policy.call_faults import LONGEST
from toolfleet_registry.policy.limits import Remaining, terms_of
from toolfleet_registry.settings import Settings

_REFUSALS = "rate_limited"
_SHOWN_REFUSALS = 20


def limit_pages(tools: KnownTools, settings: Settings) -> list[ConsolePage]:
    """The one page."""
    return [ConsolePage("GET", "/limits", _AboutLimits(tools, settings).shown)]


class _AboutLimits:
    def __init__(self, tools: KnownTools, settings: Settings) -> None:
        self._tools = tools
        self._settings = settings

    async def shown(self, visit: Visit) -> Outcome:
        window, user = window_of(visit.query), visit.query.get("user", "").strip()
        limited = [tool for tool in await self._tools.all() if terms_of(tool) is not None]
        refused = await visit.ask("listCalls", RouteQuestion(query={"error": _REFUSALS, "limit": _SHOWN_REFUSALS}))
        values = {
            **window.cut(limited),
            "user": user,
            "left": await self._left(user) if user else None,
            "budgets": self._settings.cost_budgets,
            "refused": [each["line"] for each in refused["calls"]],
        }
        return Shown("limits", "Limits", values)

    async def _left(self, user: str) -> Remaining:
        if len(user) > LONGEST:
            raise invalid_request(f"A user's id has at most {LONGEST} characters.")
        everything = Caller(user_id=user, permission="owner", allowed_modules="*")
        return await self._tools.fleet.remaining(everything)
