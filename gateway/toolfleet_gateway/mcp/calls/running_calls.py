"""Tells an MCP client that its call goes on: its id, and the tools that ask for it."""

from typing import Any, Final

from toolfleet_gateway.mcp.calls.call_results import CALL_ID
from toolfleet_gateway.mcp.client_approvals import CallApproval
from toolfleet_tasks.calls.begun_handle import BegunHandle
from toolfleet_tasks.messages.following_tools import RUNNING, running_text

APPROVAL_REQUIRED: Final = "toolfleet/approvalRequired"
"""The name in a result's `_meta` of the approval that a call waits for."""


def running_result(handle: BegunHandle, waits: CallApproval | None = None) -> dict[str, Any]:
    """A result that is none yet. It is marked as an error, for a client holds any other one to the tool's output schema.

    `waits`: the approval that the call waits for.
    """
    text = running_text(handle.tool_name, handle.id, None if waits is None else waits.sentence)
    meta: dict[str, Any] = {CALL_ID: handle.id, RUNNING: True}
    if waits is not None:
        meta[APPROVAL_REQUIRED] = waits.facts
    return {"content": [{"type": "text", "text": text}], "isError": True, "resultType": "complete", "_meta": meta}
