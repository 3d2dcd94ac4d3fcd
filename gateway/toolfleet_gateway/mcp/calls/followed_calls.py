"""Answers the tools by which an MCP client asks for a call that goes on: its state, its result, its end."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from toolfleet_gateway.calls.attaching import attached
from toolfleet_gateway.mcp.approvals.client_approvals import CallApproval, ClientApprovals
from toolfleet_gateway.mcp.calls.call_results import call_result
from toolfleet_gateway.mcp.calls.running_calls import CANCEL_TOOL, STATUS_TOOL, WAIT_TOOL, running_result
from toolfleet_gateway.mcp.view import McpView
from toolfleet_registry.config.gateway_settings import GatewaySettings
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_tasks.calls.begun_handle import BegunHandle
from toolfleet_tasks.client.fleet import ToolFleet

_CALL_ID = {"type": "string", "description": "The call's id, as it was told."}
_SECONDS = {"type": "number", "minimum": 0, "description": "How long to wait at most."}


def _tool(name: str, description: str, properties: Mapping[str, Any], *, reads: bool) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": ["call_id"], "additionalProperties": False}
    hints = {"readOnlyHint": reads, "idempotentHint": True, "destructiveHint": False}
    return {"name": name, "description": description, "inputSchema": schema, "annotations": hints}


FOLLOWING_TOOLS: Final[Mapping[str, Mapping[str, Any]]] = {
    STATUS_TOOL: _tool(
        STATUS_TOOL, "Say where a call is that was told to be still running, and how far.", {"call_id": _CALL_ID}, reads=True
    ),
    WAIT_TOOL: _tool(
        WAIT_TOOL,
        "Wait for the result of a call that was told to be still running.",
        {"call_id": _CALL_ID, "seconds": _SECONDS},
        reads=True,
    ),
    CANCEL_TOOL: _tool(
        CANCEL_TOOL, "Take a call back that was told to be still running.", {"call_id": _CALL_ID}, reads=False
    ),
}  # fmt: skip
"""What each is, as `tools/list` has it."""


class FollowedCalls:
    """Answers for the clients of one gateway; calls that another one has begun are as good."""

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
        call_id, seconds = arguments.get("call_id"), arguments.get("seconds", self._longest)
        if not isinstance(call_id, str) or isinstance(seconds, bool) or not isinstance(seconds, int | float):
            return text_result("call_id must be the text that names a call, and seconds a number.", is_error=True)
        try:
            handle = await attached(self._fleet, view.who, call_id)
        except FleetUnavailable:
            return text_result("The fleet's Redis does not answer: ask again in a moment.", is_error=True)
        if handle is None:
            return text_result("There is no such call: it is unknown, or was forgotten.", is_error=True)
        try:
            return await self._answers[name](view, handle, seconds)
        finally:
            handle.leave()

    async def _wait(self, view: McpView, handle: BegunHandle, seconds: float) -> dict[str, Any]:
        result = await handle.end_within(min(max(seconds, 0), self._longest))
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
        said = "has ended: wait for it to have its result" if status == "done" else f"is {status}"
        more = "" if waits is None else f" {waits.sentence}"
        return {**text_result(f"Call {handle.id} of {handle.tool_name} {said}.{more}"), "structuredContent": state}

    async def _cancel(self, _view: McpView, handle: BegunHandle, _: float) -> dict[str, Any]:
        if handle.is_guest and await handle.end_within(0) is None:
            return text_result("Somebody else has begun the call, and it is theirs to take back.", is_error=True)
        await handle.cancel()
        result = await handle.end_within(0)
        return running_result(handle) if result is None else call_result(result, handle.id)


def text_result(text: str, *, is_error: bool = False) -> dict[str, Any]:
    """A result that is a sentence."""
    return {"content": [{"type": "text", "text": text}], "isError": is_error, "resultType": "complete"}
