"""Answers `tools/list` and `tools/call`: the tools of the fleet, and the gateway's own, which search tools and follow calls."""

import bisect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import mcp_types as types
from mcp.shared.exceptions import MCPError

from toolfleet_gateway.calls import attached
from toolfleet_gateway.mcp.calls import MESSAGE, WAIT_SECONDS, McpCall, Report, ToolCalls, UnknownTool, WrongKey
from toolfleet_gateway.mcp.client_request import Context, LogLevels, ViewOf, in_its_place, kinds_of, takes_forms
from toolfleet_gateway.mcp.results import (
    ERROR,
    EXTENSION,
    PROGRESS,
    CallApproval,
    ClientApprovals,
    call_result,
    running_result,
)
from toolfleet_gateway.mcp.tasks import Kinds, WrongState, capabilities_of, lacks
from toolfleet_gateway.mcp.view import ASK, BEGAN, END, IS_CANCELLED, McpView
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.contracts.inputs import PendingInput
from toolfleet_registry.errors import FleetUnavailable, InvalidQuestion
from toolfleet_registry.formats import convert
from toolfleet_registry.formats.results import ARTIFACT_URI
from toolfleet_registry.system.offload import aside
from toolfleet_tasks.calls.begun_calls import BegunHandle
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.messages.fleet_results import (
    CANCEL_TOOL,
    FOLLOWING_TOOLS,
    NO_ANSWER,
    OF_SOMEBODY_ELSE,
    STATUS_TOOL,
    UNKNOWN_CALL,
    WAIT_TOOL,
    WRONG_ARGUMENTS,
    asked_of,
    state_text,
)
from toolfleet_tasks.resources.tools import Cursor, read_cursor

_NOTIFICATIONS: dict[str, type[types.ProgressNotification | types.LoggingMessageNotification]] = {
    PROGRESS: types.ProgressNotification,
    MESSAGE: types.LoggingMessageNotification,
}

LIST_TTL_MS: Final = 30_000
"""The time for which a client that does not listen for changes may keep a list."""

_PAGE = 500
_MOST_LISTED = 500  # tools; of more no model chooses well: its client is shown three that find and call them
_MANY = 50  # tools: to write them takes some ms, which other requests should not wait

_SEARCH: Final = "search_tools"
_DESCRIBE: Final = "describe_tools"
_CALL: Final = "call_tool"

_MOST_FOUND = 50
_USUAL_FOUND = 10
_MOST_DESCRIBED = 20
_SHORT = 200  # characters of a description

_LINKS_SINCE = "2025-06-18"  # a client of an earlier version of the protocol refuses a whole answer with a link
_NAMES_SCHEMA = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": _MOST_DESCRIBED}


class McpListing:
    """Answers `tools/list`. It asks nothing of Redis: what exists is in memory. `previews`: whether results may be previews."""

    def __init__(self, fleet: ToolFleet, *, previews: bool = False) -> None:
        self._fleet, self._previews = fleet, previews

    async def own_names(self, view: McpView) -> frozenset[str]:
        """Return the names of the gateway's own tools here. A module's tool of the same name has precedence."""
        names = FOLLOWING_TOOLS.keys() | _META_TOOLS.keys()
        if view.module is None:
            return frozenset(names)
        tools = view.of(await self._fleet.tools(view.who.caller))
        return frozenset(names - {view.shown(tool.name) for tool in tools})

    async def page(self, view: McpView, cursor: str | None, *, takes_tasks: bool) -> dict[str, Any]:
        """Return a page of tools. Clients that take tasks are not shown the tools that ask for a call. Raises `InvalidQuestion` for a wrong cursor."""
        tools = view.of(await self._fleet.tools(view.who.caller))
        taken = {view.shown(tool.name) for tool in tools} if view.module is not None else set[str]()
        following = [] if takes_tasks else [tool for name, tool in FOLLOWING_TOOLS.items() if name not in taken]
        if len(tools) > _MOST_LISTED:
            return _page([*_META_TOOLS.values(), *following], None)
        after = read_cursor(cursor).after
        start = bisect.bisect_right(tools, after, key=lambda tool: tool.name)
        part = tools[start : start + _PAGE]
        is_last = start + _PAGE >= len(tools)
        shown = await aside(lambda: listed(view, part, previews=self._previews), is_large=len(part) > _MANY)
        return _page([*shown, *(following if is_last else ())], None if is_last else part[-1])


def _page(tools: list[Any], last: ToolDefinition | None) -> dict[str, Any]:
    page = {"tools": tools, "ttlMs": LIST_TTL_MS, "cacheScope": "private", "resultType": "complete"}
    return page if last is None else {**page, "nextCursor": Cursor(last.name).text()}


def _tool(name: str, description: str, properties: Mapping[str, Any], required: list[str]) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"name": name, "description": description, "inputSchema": schema}


_META_TOOLS: Final[Mapping[str, Mapping[str, Any]]] = {
    _SEARCH: _tool(
        _SEARCH,
        "Find tools by words of their names, descriptions and tags. There are too many to list them all.",
        {
            "query": {"type": "string", "description": "Words, the more telling the better."},
            "limit": {"type": "integer", "minimum": 1, "maximum": _MOST_FOUND, "default": _USUAL_FOUND},
        },
        ["query"],
    ),
    _DESCRIBE: _tool(
        _DESCRIBE,
        f"Read how tools that a search has found are called: their schemas, of {_MOST_DESCRIBED} tools at most.",
        {"names": _NAMES_SCHEMA},
        ["names"],
    ),
    _CALL: _tool(
        _CALL,
        "Call a tool that a search has found, with arguments as its description has them.",
        {"name": {"type": "string"}, "arguments": {"type": "object"}},
        ["name"],
    ),
}
"""The definitions of the gateway's own tools for `tools/list`."""


def listed(view: McpView, tools: list[ToolDefinition], *, previews: bool) -> list[dict[str, Any]]:
    """Return tools as the protocol lists them, under the names that they have at this endpoint."""
    offers = convert(tools, "mcp", previews=previews)
    return [{**offer, "name": view.shown(tool.name)} for tool, offer in zip(tools, offers, strict=True)]


class MetaTools:
    """Searches and describes tools for MCP clients. A call through `call_tool` is a call of the tool itself."""

    def __init__(self, fleet: ToolFleet, *, previews: bool = False) -> None:
        self._fleet, self._previews = fleet, previews

    async def run(self, view: McpView, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of `search_tools` or `describe_tools`."""
        return await (self._search if name == _SEARCH else self._describe)(view, arguments)

    async def _search(self, view: McpView, arguments: Mapping[str, Any]) -> dict[str, Any]:
        query, limit = arguments.get("query"), arguments.get("limit", _USUAL_FOUND)
        if not isinstance(query, str) or isinstance(limit, bool) or not isinstance(limit, int):
            return _text_result("query must be a text, and limit a whole number.", is_error=True)
        most = min(max(limit, 1), _MOST_FOUND)
        found = await self._fleet.search(
            query, view.who.caller, limit=most if view.module is None else _MOST_FOUND * most
        )
        shown = [
            {"name": view.shown(tool.name), "description": tool.description[:_SHORT]} for tool in view.of(found)[:most]
        ]
        text = (
            "\n".join(f"{each['name']}: {each['description']}" for each in shown) or "No tool has one of these words."
        )
        return {**_text_result(text), "structuredContent": {"tools": shown}}

    async def _describe(self, view: McpView, arguments: Mapping[str, Any]) -> dict[str, Any]:
        names = arguments.get("names")
        if not isinstance(names, list) or not 0 < len(names) <= _MOST_DESCRIBED:
            return _text_result(f"names must be a list of 1 to {_MOST_DESCRIBED} names of tools.", is_error=True)
        by_name = {view.shown(tool.name): tool for tool in view.of(await self._fleet.tools(view.who.caller))}
        known = [by_name[name] for name in dict.fromkeys(map(str, names)) if name in by_name]
        unknown = [name for name in dict.fromkeys(map(str, names)) if name not in by_name]
        described = listed(view, sorted(known, key=lambda tool: tool.name), previews=self._previews)
        text = "\n\n".join(f"{each['name']}: {each['description']}\n{each['inputSchema']}" for each in described)
        if unknown:
            text = f"{text}\n\nUnknown: {', '.join(name[:200] for name in unknown)}".strip()
        answer = _text_result(text, is_error=not known)
        return {**answer, "structuredContent": {"tools": described, "unknown": unknown}}


class FollowedCalls:
    """Answers questions about started calls, of this and of other gateways."""

    def __init__(self, fleet: ToolFleet, approvals: ClientApprovals) -> None:
        self._fleet = fleet
        self._approvals = approvals
        self._answers: dict[str, Callable[[McpView, BegunHandle, Any], Awaitable[dict[str, Any]]]] = {
            STATUS_TOOL: self._state,
            WAIT_TOOL: self._wait,
            CANCEL_TOOL: self._cancel,
        }

    async def run(self, view: McpView, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of one of `FOLLOWING_TOOLS`."""
        if (asked := asked_of(arguments, WAIT_SECONDS)) is None:
            return _text_result(WRONG_ARGUMENTS, is_error=True)
        try:
            handle = await attached(self._fleet, view.who, asked[0])
        except FleetUnavailable:
            return _text_result(NO_ANSWER, is_error=True)
        if handle is None:
            return _text_result(UNKNOWN_CALL, is_error=True)
        try:
            return await self._answers[name](view, handle, asked[1])
        finally:
            handle.leave()

    async def _wait(self, view: McpView, handle: BegunHandle, seconds: float) -> dict[str, Any]:
        result = await handle.end_within(seconds)
        if result is not None:
            return call_result(result, handle.id)
        return running_result(handle, await self._waits(view, handle, str(await handle.status())))

    async def _waits(self, view: McpView, handle: BegunHandle, status: str) -> CallApproval | None:
        return await self._approvals.waited_for(view, handle) if status == "waiting_approval" else None

    async def _state(self, view: McpView, handle: BegunHandle, _: float) -> dict[str, Any]:
        status = await handle.status()
        waits = await self._waits(view, handle, str(status))
        state: dict[str, Any] = {"call_id": handle.id, "tool_name": handle.tool_name, "state": str(status)}
        if status.progress is not None:
            state["progress"] = status.progress.model_dump(mode="json")
        if waits is not None:
            state["approval"] = waits.facts
        more = "" if waits is None else f" {waits.sentence}"
        said = f"{state_text(handle.tool_name, handle.id, str(status))}{more}"
        return {**_text_result(said), "structuredContent": state}

    async def _cancel(self, _view: McpView, handle: BegunHandle, _: float) -> dict[str, Any]:
        if handle.is_guest and await handle.end_within(0) is None:
            return _text_result(OF_SOMEBODY_ELSE, is_error=True)
        await handle.cancel()
        result = await handle.end_within(0)
        return running_result(handle) if result is None else call_result(result, handle.id)


def _text_result(text: str, *, is_error: bool = False) -> dict[str, Any]:
    """Return a result that is a sentence."""
    return {"content": [{"type": "text", "text": text}], "isError": is_error, "resultType": "complete"}


def _is_artifact(block: Mapping[str, Any]) -> bool:
    return block.get("type") == "resource_link" and str(block.get("uri")).startswith(ARTIFACT_URI)


_OWN = FOLLOWING_TOOLS.keys() | _META_TOOLS.keys()


class ToolMethods:
    """The tools of one gateway: those of the fleet, and a few of its own."""

    def __init__(
        self,
        calls: ToolCalls,
        listing: McpListing,
        meta: MetaTools,
        followed: FollowedCalls,
        log_levels: LogLevels,
        view_of: ViewOf,
    ) -> None:
        self._calls = calls
        self._listing = listing
        self._meta = meta
        self._followed = followed
        self._log_levels = log_levels
        self._view_of = view_of

    async def list(self, context: Context, params: types.PaginatedRequestParams | None) -> dict[str, Any]:
        """Return a page of the tools that the client's caller may use."""
        takes_tasks = EXTENSION in (capabilities_of(context.params).get("extensions") or {})
        cursor = None if params is None else params.cursor
        try:
            return await self._listing.page(self._view_of(context), cursor, takes_tasks=takes_tasks)
        except InvalidQuestion as exc:
            raise MCPError(types.INVALID_PARAMS, str(exc)) from None

    async def call(self, context: Context, params: types.CallToolRequestParams) -> dict[str, Any]:
        """Run a tool, and bring its result or what the call has become."""
        meta = (context.params or {}).get("_meta") or {}
        declared, said = capabilities_of(context.params), context.params or {}
        agreed = declared or _agreed(context)
        kinds = kinds_of(agreed)
        ask = _asking(context, kinds)
        responses = said.get("inputResponses")
        asked = McpCall(
            params.name,
            params.arguments or {},
            meta,
            progress_token=meta.get("progressToken"),
            log_level=self._log_levels.of(context, meta),
            takes_tasks=EXTENSION in (declared.get("extensions") or {}),
            takes_forms=takes_forms(agreed)
            and bool(declared or ask),  # an older one over a program's streams is not asked
            kinds=kinds,
            ask=ask,
            state=params.request_state,
            responses=responses if isinstance(responses, dict) else {},
            began=None if context.request is None else context.request.scope.get(BEGAN),
        )

        async def report(method: str, note: dict[str, Any]) -> None:
            notification = _NOTIFICATIONS[method].model_validate({"method": method, "params": note})
            await context.session.send_notification(notification, related_request_id=context.request_id)

        answer = await self.run(self._view_of(context), asked, report)
        if context.protocol_version < _LINKS_SINCE and "content" in answer:
            answer["content"] = [block for block in answer["content"] if not _is_artifact(block)]
        scope = {} if context.request is None else context.request.scope
        error = answer.get("_meta", {}).get(ERROR, {})
        if error.get("error_code") == "cancelled" and IS_CANCELLED in scope and await scope[IS_CANCELLED]():
            await scope[END]()  # without an answer, as the protocol has it: what is written now goes nowhere
        return answer

    async def run(self, view: McpView, asked: McpCall, report: Report) -> dict[str, Any]:
        """Run a call as `call` does. Raises `MCPError`, where the protocol wants an error and no result."""
        try:
            if asked.name in _OWN and asked.name in await self._listing.own_names(view):
                return await self._own(view, asked, report)
            return await self._calls.run(view, asked, report)
        except (UnknownTool, WrongKey, WrongState) as exc:
            raise MCPError(types.INVALID_PARAMS, str(exc)) from None

    async def _own(self, view: McpView, asked: McpCall, report: Report) -> dict[str, Any]:
        if asked.name in FOLLOWING_TOOLS:
            return await self._followed.run(view, asked.name, asked.arguments)
        if asked.name != _CALL:
            return await self._meta.run(view, asked.name, asked.arguments)
        name, arguments = asked.arguments.get("name"), asked.arguments.get("arguments", {})
        if not isinstance(name, str) or not isinstance(arguments, Mapping):
            raise MCPError(types.INVALID_PARAMS, "name must be a tool's name, and arguments an object.")
        inner = replace(asked, name=name, arguments=arguments)
        return await self._calls.run(view, inner, report)


def _agreed(context: Context) -> dict[str, Any]:
    """Return an older client's capabilities, declared when it opened its session."""
    declared = context.session.client_capabilities
    return {} if declared is None else declared.model_dump(mode="json", by_alias=True, exclude_none=True)


def _asking(context: Context, kinds: Kinds) -> Callable[[PendingInput], Awaitable[dict[str, Any]]] | None:
    """Return how to ask an older client; newer ones are asked by the results of their requests."""
    asks = None if context.request is None else context.request.scope.get(ASK)
    if asks is None:
        return None

    async def ask(asked: PendingInput) -> dict[str, Any]:
        given = dict[str, Any]()
        for key, request in asked.requests.items():
            instead = None if request.method in kinds else in_its_place(request)
            if request.method not in kinds and instead is None:
                raise lacks(request.method)
            given[key] = await asks(context.request_id, request) if instead is None else instead
        return given

    return ask
