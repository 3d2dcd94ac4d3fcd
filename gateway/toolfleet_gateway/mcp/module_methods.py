"""Answers prompts, resources and completion of a module that has them: each request is a call of its module's, with permission and audit."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from toolfleet_gateway.mcp.client_request import Context, ViewOf
from toolfleet_gateway.mcp.listing import LIST_TTL_MS
from toolfleet_gateway.mcp.view import McpView
from toolfleet_registry.contracts import ToolCall
from toolfleet_registry.functions.passed_methods import WATCH_METHOD, passing_method
from toolfleet_tasks.client.fleet import ToolFleet

_SECONDS = 60.0  # for the answer
_PARAMS: Final[Mapping[str, type[types.RequestParams]]] = {
    "prompts/list": types.PaginatedRequestParams,
    "prompts/get": types.GetPromptRequestParams,
    "resources/list": types.PaginatedRequestParams,
    "resources/templates/list": types.PaginatedRequestParams,
    "resources/read": types.ReadResourceRequestParams,
    "completion/complete": types.CompleteRequestParams,
}
FIRST_METHODS: Final = ("prompts/list", "resources/list", "completion/complete")
"""One of each kind: a module that answers it has the kind."""

WATCH: Final = "watch"
"""The kind of a module whose resources can be watched."""

_CACHED = frozenset({"prompts/list", "resources/list", "resources/templates/list", "resources/read"})
_OWN_META = "io.modelcontextprotocol/"  # what a server says of itself there, and of nothing behind it


class ModuleMethods:
    """What modules have beside tools."""

    def __init__(self, fleet: ToolFleet, view_of: ViewOf) -> None:
        self._fleet = fleet
        self._view_of = view_of

    async def kinds(self, view: McpView) -> frozenset[str]:
        """Which kinds the endpoint's module has for this caller: `prompts`, `resources`, `completion`, `watch`. From memory."""
        if view.module is None:
            return frozenset()
        found = {method.partition("/")[0] for method in FIRST_METHODS if await self.has(view, method)}
        if await self.has(view, WATCH_METHOD):
            found.add(WATCH)
        return frozenset(found)

    async def has(self, view: McpView, method: str) -> bool:
        """Whether the endpoint's module answers a method for this caller. From memory."""
        if view.module is None:
            return False
        name = f"{view.module}.{passing_method(method)}"
        return await self._fleet.begun_calls.tool(name, view.who.caller) is not None

    def add_to(self, server: Server[Any], kinds: frozenset[str]) -> None:
        """Have a server answer these kinds."""
        for method, params in _PARAMS.items():
            if method.partition("/")[0] in kinds:
                server.add_request_handler(method, params, self._handler(method))

    def _handler(self, method: str) -> Callable[[Context, types.RequestParams], Awaitable[dict[str, Any]]]:
        async def handle(context: Context, params: types.RequestParams) -> dict[str, Any]:
            stated = params.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"meta"})
            return await self.asked(self._view_of(context), method, stated)

        return handle

    async def asked(self, view: McpView, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The result of a module's server to a method. Raises `MCPError`: its own, or that of a call that failed."""
        call = ToolCall(tool_name=f"{view.module}.{passing_method(method)}", arguments=params)
        result = await self._fleet.call(call, view.who.caller, timeout=_SECONDS)
        if not result.success:
            data = {"error_code": result.error_code, "retryable": result.retryable, "hint": result.hint}
            raise MCPError(types.INTERNAL_ERROR, result.error or "The module does not answer.", data)
        answer = result.result if isinstance(result.result, dict) else {}
        if "error" in answer:
            error = answer["error"]
            raise MCPError(int(error["code"]), str(error["message"]), error.get("data"))
        given: dict[str, Any] = dict(answer.get("result", {}))
        meta = {name: value for name, value in given.pop("_meta", {}).items() if not name.startswith(_OWN_META)}
        if meta:
            given["_meta"] = meta
        if method in _CACHED:
            given = {"ttlMs": LIST_TTL_MS if method.endswith("list") else 0, **given, "cacheScope": "private"}
        return {**given, "resultType": given.get("resultType", "complete")}
