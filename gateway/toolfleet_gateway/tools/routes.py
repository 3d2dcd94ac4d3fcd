"""Lists the routes of tools: which there are, one of them, what does not load, and a reload."""

from starlette.responses import Response

from toolfleet_gateway.calls.outcomes import unknown_tool
from toolfleet_gateway.http.answers import json_answer
from toolfleet_gateway.http.routes import Answer, AnyRoute, Route, RouteRequest
from toolfleet_gateway.rights.roles import require_role
from toolfleet_gateway.tools.answers import LoadErrorList, ReloadReport, ShownLoadError, ShownTool, ToolPage, shown_tool
from toolfleet_gateway.tools.listing import ToolPages, ToolQuery
from toolfleet_gateway.tools.why import why_route
from toolfleet_registry.contracts.tool_definition import tool_named
from toolfleet_registry.settings import Settings
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.operations.tool_reload import reload_tools

_RELOAD_SECONDS = 10.0


def tool_routes(fleet: ToolFleet, settings: Settings) -> list[AnyRoute]:
    """What is answered about tools. `/tools/errors` and `/tools/reload` come before the tools' names, which have a dot."""
    about = _AboutTools(fleet, settings)
    return [_list_route(fleet), *_error_routes(about), _tool_route(about), why_route(fleet, settings)]


def _list_route(fleet: ToolFleet) -> AnyRoute:
    return Route(
        method="GET",
        path="/tools",
        name="listTools",
        summary="The tools that the caller may use, page by page",
        handle=ToolPages(fleet).answer,
        query=ToolQuery,
        answers={
            200: Answer("A page of them.", ToolPage, headers={"ETag": "Changes with the page."}),
            304: Answer("The page is as the client has it, by `If-None-Match`."),
        },
        tag="tools",
    )


def _error_routes(about: "_AboutTools") -> list[AnyRoute]:
    return [
        Route(
            method="GET",
            path="/tools/errors",
            name="listToolErrors",
            summary="Which files and operations are not served as they stand; for viewers",
            handle=about.errors,
            answers={200: Answer("What does not load.", LoadErrorList)},
            tag="tools",
        ),
        Route(
            method="POST",
            path="/tools/reload",
            name="reloadTools",
            summary="Have hosts read their tool folders anew, and wait 10 s at most; for operators",
            handle=about.reload,
            answers={200: Answer("What they serve since.", ReloadReport)},
            tag="tools",
        ),
    ]


def _tool_route(about: "_AboutTools") -> AnyRoute:
    return Route(
        method="GET",
        path="/tools/{name}",
        name="getTool",
        summary="One tool that the caller may use",
        handle=about.one,
        answers={200: Answer("The tool.", ShownTool)},
        problems=(404,),
        tag="tools",
    )


class _AboutTools:
    def __init__(self, fleet: ToolFleet, settings: Settings) -> None:
        self._fleet = fleet
        self._settings = settings

    async def one(self, request: RouteRequest[None, None]) -> Response:
        name = request.path["name"]
        tool = tool_named(name, await self._fleet.tools(request.who.caller))
        if tool is None:
            raise await unknown_tool(self._fleet, request.who, name)
        statuses = await self._fleet.modules.statuses()
        places = (place for status in statuses.values() for place in status.sources if place.tool_name == tool.name)
        return json_answer(shown_tool(tool, next(places, None)))

    async def errors(self, request: RouteRequest[None, None]) -> Response:
        require_role(request.who, "viewer")
        errors = [
            ShownLoadError(**dict(error), module=status.module)
            for status in (await self._fleet.modules.statuses()).values()
            for error in status.load_errors
        ]
        return json_answer(LoadErrorList(errors=errors, count=len(errors)))

    async def reload(self, request: RouteRequest[None, None]) -> Response:
        require_role(request.who, "operator")
        answers = await reload_tools(self._settings, seconds=_RELOAD_SECONDS)
        done = [each for each in answers if each.is_done]
        report = ReloadReport(
            count=sum(each.tools for each in done),
            errors=[ShownLoadError(**dict(error), module=each.module) for each in answers for error in each.errors],
            hosts=len(answers),
            pending=sorted({each.module for each in answers if not each.is_done}),
        )
        return json_answer(report)
