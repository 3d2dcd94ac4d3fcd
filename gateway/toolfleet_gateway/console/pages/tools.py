"""Shows tools: arguments, versions, and offers that are not in effect; and has operators change that."""

from collections.abc import Mapping
from typing import Any, Final

from toolfleet_gateway.console.gateway_routes import RouteQuestion
from toolfleet_gateway.console.known_tools import KnownTools
from toolfleet_gateway.console.page import ConsolePage, Done, Outcome, Shown, Visit
from toolfleet_gateway.console.paging import window_of
from toolfleet_gateway.http.problems import Problem, invalid_request, not_found
from toolfleet_registry.schemas.definition import input_schema

_ROUTES: Final[Mapping[str, tuple[str, str]]] = {
    "disable": ("disableTool", "Nobody may use it until it is enabled."),
    "enable": ("enableTool", "It may be used again."),
    "approve": ("approveTool", "It is accepted as it is offered."),
    "rollback": ("rollBackTool", "The earlier version is in force."),
    "forget": ("forgetTool", "The registry knows nothing of it any more."),
}
_ABSENT = frozenset({404, 409})


def tool_pages(tools: KnownTools) -> list[ConsolePage]:
    """The pages."""
    about = _AboutToolPages(tools)
    return [
        ConsolePage("GET", "/tools", about.listed),
        ConsolePage("GET", "/tools/{name}", about.shown),
        ConsolePage("POST", "/tools/{name}", about.changed, "operator"),
    ]


class _AboutToolPages:
    def __init__(self, tools: KnownTools) -> None:
        self._tools = tools

    async def listed(self, visit: Visit) -> Outcome:
        window, words = window_of(visit.query), visit.query.get("q", "").strip()[:1_000]
        state = await visit.ask("getToolState")
        pending = {each["tool_name"]: each["kind"] for each in state["pending"]}
        values = {"q": words, "closed": state["closed"], "pending": pending, "drift": state["pending"][:50]}
        return Shown("tools", "Tools", {**window.cut(await self._tools.find(words)), **values})

    async def shown(self, visit: Visit) -> Outcome:
        name = visit.path["name"]
        tool = await self._tools.one(name)
        state = await visit.ask("getToolState", RouteQuestion(query={"module": name.partition(".")[0]}))
        versions = await _versions(visit, name)
        pending = next((each for each in state["pending"] if each["tool_name"] == name), None)
        closed = state["closed"].get(name)
        if tool is None and not versions and pending is None and closed is None:
            raise not_found("There is no such tool, or not any more.")
        values = {
            "name": name,
            "tool": tool,
            "schema": None if tool is None else input_schema(tool),
            "versions": versions,
            "pending": pending,
            "closed": closed,
        }
        return Shown("tool", name, values)

    async def changed(self, visit: Visit) -> Outcome:
        name, action = visit.path["name"], visit.form.get("action", "")
        if action not in _ROUTES:
            raise invalid_request("A tool is disabled, enabled, approved, rolled back or forgotten.")
        route, said = _ROUTES[action]
        bodies: dict[str, dict[str, Any]] = {
            "approve": {"digest": visit.form.get("digest") or None},
            "rollback": {"version": visit.form.get("version", "")},
        }
        await visit.ask(route, RouteQuestion({"name": name}, body=bodies.get(action)))
        return Done(f"{name}: {said}", "/tools" if action == "forget" else f"/tools/{name}")


async def _versions(visit: Visit, name: str) -> list[Any]:
    """Return the versions that the registry has; empty for an unknown tool."""
    try:
        return list((await visit.ask("listToolVersions", RouteQuestion({"name": name})))["versions"])
    except Problem as exc:
        if exc.status not in _ABSENT:
            raise
        return []
