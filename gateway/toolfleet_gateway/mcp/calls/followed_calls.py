"""Answers the tools by which an MCP client asks for a call that goes on: its state, its result, its end."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from toolfleet_gateway.calls import attached
from toolfleet_gateway.mcp.calls.call_results import call_result
from toolfleet_gateway.mcp.calls.running_calls import running_result
from toolfleet_gateway.mcp.client_approvals import CallApproval, ClientApprovals
from toolfleet_gateway.mcp.view import McpView
from toolfleet_registry.config.gateway_settings import GatewaySettings
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_tasks.calls.begun_handle import BegunHandle
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.messages.following_tools import (
    CANCEL_TOOL,
    NO_ANSWER,
    OF_SOMEBODY_ELSE,
    STATUS_TOOL,
    UNKNOWN_CALL,
    WAIT_TOOL,
    WRONG_ARGUMENTS,
    asked_of,
    state_text,
)


class FollowedCalls:
    """Answers calls for the clients of one gateway; calls that another one has started are handled alike."""

    def __init__(self, fleet: ToolFleet, settings: GatewaySettings, approvals: ClientApprovals) -> None:
        self._fleet = fleet
        self._approvals = approvals
        self._longest = settings.mcp_wait_seconds
        self._answers: dict[str, Callable[[McpView, BegunHandle, Any], Awaitable[dict[str, Any]]]] = {
            STATUS_TOOL: self._state,
            WAIT_TOOL: self._wait,
            CANCEL_TOOL: self._cancel,
        }

    async def run(self, view: McpView, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The result of one of `FOLLOWING_TOOLS`."""
        if (asked := asked_of(arguments, self._longest)) is None:
            return text_result(WRONG_ARGUMENTS, is_error=True)
        try:
            handle = await attached(self._fleet, view.who, asked[0])
        except FleetUnavailable:
            return text_result(NO_ANSWER, is_error=True)
        if handle is None:
            return text_result(UNKNOWN_CALL, is_error=True)
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
        return {**text_result(said), "structuredContent": state}

    async def _cancel(self, _view: McpView, handle: BegunHandle, _: float) -> dict[str, Any]:
        if handle.is_guest and await handle.end_within(0) is None:
            return text_result(OF_SOMEBODY_ELSE, is_error=True)
        await handle.cancel()
        result = await handle.end_within(0)
        return running_result(handle) if result is None else call_result(result, handle.id)


def text_result(text: str, *, is_error: bool = False) -> dict[str, Any]:
    """A result that is a sentence."""
    return {"content": [{"type": "text", "text": text}], "isError": is_error, "resultType": "complete"}
