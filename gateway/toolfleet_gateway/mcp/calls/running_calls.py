"""Tells an MCP client that its call goes on: its id, and the tools that ask for it."""

from typing import Any, Final

from toolfleet_gateway.mcp.approvals.client_approvals import CallApproval
from toolfleet_gateway.mcp.calls.call_results import CALL_ID
from toolfleet_tasks.calls.begun_handle import BegunHandle

STATUS_TOOL: Final = "call_status"
WAIT_TOOL: Final = "call_wait"
CANCEL_TOOL: Final = "call_cancel"

RUNNING: Final = "toolfleet/running"
"""The name in a result's `_meta` that says of a call that it has not ended."""
APPROVAL_REQUIRED: Final = "toolfleet/approvalRequired"
"""The name in a result's `_meta` of the approval that a call waits for."""


def running_result(handle: BegunHandle, waits: CallApproval | None = None) -> dict[str, Any]:
    """A result that is none yet. It is marked as an error, for a client holds any other one to the tool's output schema.

    `waits`: the approval that the call waits for.
    """
    where = f"is still running as call {handle.id}" if waits is None else f"has not begun: call {handle.id} waits"
    said = "" if waits is None else f" (approval_required) {waits.sentence}"
    text = (
        f"{handle.tool_name} {where}.{said} Do not call it again: use {WAIT_TOOL} with this call_id "
        f"for its result, {STATUS_TOOL} to see how far it is, or {CANCEL_TOOL} to take it back."
    )
    meta: dict[str, Any] = {CALL_ID: handle.id, RUNNING: True}
    if waits is not None:
        meta[APPROVAL_REQUIRED] = waits.facts
    return {"content": [{"type": "text", "text": text}], "isError": True, "resultType": "complete", "_meta": meta}
