"""Lists the routes of modules: their status, with their tools, and a refresh."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.http.entrance import require_role
from toolfleet_gateway.http.routes import Answer, AnyRoute, Route, RouteRequest, json_answer, json_text, text_answer
from toolfleet_gateway.tools import ShownLoadError, ShownTool, shown_tool
from toolfleet_registry.contracts import ModuleStatus, ToolDefinition
from toolfleet_registry.permissions import reaches
from toolfleet_registry.policy.call_faults import modules_of
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.offload import aside
from toolfleet_tasks.client.fleet import ToolFleet

_MANY_TOOLS = 50  # tools: to write them takes some ms, which other requests should not wait


class ShownModule(BaseModel):
    """What is known of a module. What is wrong with it is shown to viewers only."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    module: str
    """Its name."""
    ok: bool
    """Whether the last look at it found a good manifest."""
    tools: int
    """How many tools it has; to others than viewers, how many of them they may use."""
    age_seconds: float | None = None
    """The age of its last good manifest, if it has one."""
    is_stale: bool = False
    """Whether that one is too old."""
    error: str | None = None
    """Why the last look failed."""
    closed_tools: list[str] | None = None
    """The tools that nobody can use, for what they say of themselves."""
    disabled: int | None = None
    """How many tools an operator has switched off."""
    withheld: int | None = None
    """How many tools no operator has approved, of a pinned module."""
    drifted: int | None = None
    """How many tools have other content than was registered under the same version."""
    load_errors: list[ShownLoadError] | None = None
    """What is not served as it stands."""


class ModuleList(BaseModel):
    """The modules that a caller reaches."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    modules: list[ShownModule]
    """By name."""
    count: int
    """How many there are."""


class ModuleWithTools(ShownModule):
    """A module, and what it offers to the caller."""

    offers: list[ShownTool]
    """The tools that the caller may use, by name."""


class ModuleToolsList(BaseModel):
    """The modules that a caller reaches, each with its tools."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    modules: list[ModuleWithTools]
    """By name."""
    count: int
    """How many there are."""


_LIST = Answer("What is known of each.", ModuleList)


def module_routes(fleet: ToolFleet, settings: Settings) -> list[AnyRoute]:
    """Return the routes of modules."""
    about = _AboutModules(fleet, settings)
    return [
        Route(
            method="GET",
            path="/modules",
            name="listModules",
            summary="The modules that the caller reaches; asks none of them",
            handle=about.listed,
            answers={200: _LIST},
            tag="modules",
        ),
        Route(
            method="GET",
            path="/api/modules",
            name="listModulesWithTools",
            summary="The modules that the caller reaches, each with the tools that they may use",
            handle=about.with_tools,
            answers={200: Answer("Each with its tools.", ModuleToolsList)},
            tag="modules",
        ),
        Route(
            method="POST",
            path="/refresh-tools",
            name="refreshTools",
            summary="Have all modules asked now for what they offer; for operators",
            handle=about.refreshed,
            answers={200: Answer("What came of it.", ModuleList)},
            tag="modules",
        ),
    ]


class _AboutModules:
    def __init__(self, fleet: ToolFleet, settings: Settings) -> None:
        self._fleet = fleet
        self._guest_modules = settings.default_guest_modules

    async def listed(self, request: RouteRequest[None, None]) -> Response:
        return await self._list(request.who, await self._fleet.modules.statuses())

    async def refreshed(self, request: RouteRequest[None, None]) -> Response:
        require_role(request.who, "operator")
        return await self._list(request.who, await self._fleet.modules.refresh())

    async def with_tools(self, request: RouteRequest[None, None]) -> Response:
        statuses = self._reached(request.who, await self._fleet.modules.statuses())
        tools = await self._fleet.tools(request.who.caller)

        def written() -> str:
            places = {place.tool_name: place for status in statuses.values() for place in status.sources}
            by_module = _by_module(tools)
            modules = [
                ModuleWithTools(
                    **_facts(request.who, status, len(by_module.get(name, ()))),
                    offers=[shown_tool(tool, places.get(tool.name)) for tool in by_module.get(name, ())],
                )
                for name, status in statuses.items()
            ]
            return json_text(ModuleToolsList(modules=modules, count=len(modules)))

        return text_answer(await aside(written, is_large=len(tools) > _MANY_TOOLS))

    async def _list(self, who: Identity, statuses: Mapping[str, ModuleStatus]) -> Response:
        by_module = _by_module(await self._fleet.tools(who.caller))
        modules = [
            ShownModule(**_facts(who, status, len(by_module.get(name, ()))))
            for name, status in self._reached(who, statuses).items()
        ]
        return json_answer(ModuleList(modules=modules, count=len(modules)))

    def _reached(self, who: Identity, statuses: Mapping[str, ModuleStatus]) -> Mapping[str, ModuleStatus]:
        """Return the statuses that the caller may see: a viewer may see all."""
        modules = "*" if who.has_role("viewer") else modules_of(who.caller, self._guest_modules)
        return {name: status for name, status in statuses.items() if reaches(name, modules)}


def _by_module(tools: list[ToolDefinition]) -> dict[str, list[ToolDefinition]]:
    found = dict[str, list[ToolDefinition]]()
    for tool in tools:
        found.setdefault(tool.name.partition(".")[0], []).append(tool)
    return found


def _facts(who: Identity, status: ModuleStatus, usable: int) -> dict[str, Any]:
    shown = {"module": status.module, "ok": status.ok, "age_seconds": status.age_seconds, "is_stale": status.is_stale}
    if not who.has_role("viewer"):
        return {**shown, "tools": usable}
    errors = [ShownLoadError(**dict(error), module=status.module) for error in status.load_errors]
    of_viewers = {"tools", "error", "closed_tools", "disabled", "withheld", "drifted"}
    return {**shown, **{name: getattr(status, name) for name in of_viewers}, "load_errors": errors}
