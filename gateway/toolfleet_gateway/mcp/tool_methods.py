"""Answers `tools/list` and `tools/call`."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError

from toolfleet_gateway.http.problems import Problem
from toolfleet_gateway.mcp.calls.call_keys import WrongKey
from toolfleet_gateway.mcp.calls.call_results import ERROR
from toolfleet_gateway.mcp.calls.call_tasks import EXTENSION
from toolfleet_gateway.mcp.calls.client_kinds import in_its_place, kinds_of, takes_forms
from toolfleet_gateway.mcp.calls.followed_calls import FollowedCalls
from toolfleet_gateway.mcp.calls.input_rounds import Kinds, lacks
from toolfleet_gateway.mcp.calls.progress_notes import PROGRESS
from toolfleet_gateway.mcp.calls.sealed_state import WrongState
from toolfleet_gateway.mcp.calls.tool_calls import MESSAGE, McpCall, Report, ToolCalls, UnknownTool
from toolfleet_gateway.mcp.client_request import Context, ViewOf
from toolfleet_gateway.mcp.listing import McpListing
from toolfleet_gateway.mcp.log_levels import LogLevels
from toolfleet_gateway.mcp.meta_tools import CALL, META_TOOLS, MetaTools
from toolfleet_gateway.mcp.task_methods import capabilities_of
from toolfleet_gateway.mcp.view import ASK, BEGAN, END, IS_CANCELLED, McpView
from toolfleet_registry.contracts.inputs import PendingInput
from toolfleet_tasks.messages.following_tools import FOLLOWING_TOOLS

_NOTIFICATIONS: dict[str, type[types.ProgressNotification | types.LoggingMessageNotification]] = {
    PROGRESS: types.ProgressNotification,
    MESSAGE: types.LoggingMessageNotification,
}
_OWN = FOLLOWING_TOOLS.keys() | META_TOOLS.keys()


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
        """A page of the tools that the client's caller may use."""
        takes_tasks = EXTENSION in (capabilities_of(context.params).get("extensions") or {})
        cursor = None if params is None else params.cursor
        try:
            return await self._listing.page(self._view_of(context), cursor, takes_tasks=takes_tasks)
        except Problem as exc:
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
        if asked.name != CALL:
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
