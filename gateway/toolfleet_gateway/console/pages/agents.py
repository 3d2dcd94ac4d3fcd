"""Shows agents' profiles and their versions, and has admins put an earlier one again or remove one."""

from typing import Any

from toolfleet_gateway.console.gateway_routes import RouteQuestion
from toolfleet_gateway.console.page import ConsolePage, Done, Outcome, Shown, Visit
from toolfleet_gateway.console.paging import window_of
from toolfleet_gateway.http.problems import Problem, invalid_request

_ONE = "/agents/{name}"
_ABSENT = 404


def agent_pages() -> list[ConsolePage]:
    """The pages."""
    return [
        ConsolePage("GET", "/agents", _listed),
        ConsolePage("GET", _ONE, _shown),
        ConsolePage("POST", _ONE, _changed, "admin"),
    ]


async def _listed(visit: Visit) -> Outcome:
    window = window_of(visit.query)
    return Shown("agents", "Agents", window.cut((await visit.ask("listAgents"))["agents"]))


async def _shown(visit: Visit) -> Outcome:
    name = visit.path["name"]
    agent = await visit.ask("getAgent", RouteQuestion({"name": name}))
    return Shown("agent", f"Agent {name}", {"agent": agent, "versions": await _versions(visit, name)})


async def _changed(visit: Visit) -> Outcome:
    """Make the change. The version that was seen is sent along: another operator's newer change is not overwritten."""
    name, form = visit.path["name"], visit.form
    headers = {"if-match": f'"{form.number("seen", 0, most=10**9)}"'}
    match form.get("action"):
        case "rollback":
            body: dict[str, Any] = {"version": form.number("version", 0, most=10**9)}
            made = await visit.ask("rollBackAgent", RouteQuestion({"name": name}, body=body, headers=headers))
            return Done(f"It is in force again, as version {made['version']}.", f"/agents/{name}")
        case "remove":
            await visit.ask("removeAgent", RouteQuestion({"name": name}, headers=headers))
            return Done(f"The registry has no profile of {name} any more.", "/agents")
        case _:
            raise invalid_request("A profile is rolled back or removed.")


async def _versions(visit: Visit, name: str) -> list[Any]:
    try:
        return list((await visit.ask("listAgentVersions", RouteQuestion({"name": name})))["versions"])
    except Problem as exc:
        if exc.status != _ABSENT:
            raise
        return []  # it is in the settings only
