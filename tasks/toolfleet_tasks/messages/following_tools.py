"""Words the tools by which a model asks for a call that goes on, and what it is told of such a call."""

from collections.abc import Mapping
from typing import Any, Final

STATUS_TOOL: Final = "call_status"
WAIT_TOOL: Final = "call_wait"
CANCEL_TOOL: Final = "call_cancel"

RUNNING: Final = "toolfleet/running"
"""The name in a result's `_meta` that says of a call that it has not ended."""
UNKNOWN_CALL: Final = "There is no such call: it is unknown, or was forgotten."
OF_SOMEBODY_ELSE: Final = "Somebody else has begun the call, and it is theirs to take back."
NO_ANSWER: Final = "The fleet's Redis does not answer: ask again in a moment."
WRONG_ARGUMENTS: Final = "call_id must be the text that names a call, and seconds a number."

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
"""What each is, as MCP's `tools/list` has it."""


def running_text(tool_name: str, call_id: str, waits: str | None = None) -> str:
    """Return the text for a model about a call that continues.

    `waits`: the text about the approval that the call waits for.
    """
    where = f"is still running as call {call_id}" if waits is None else f"has not begun: call {call_id} waits"
    said = "" if waits is None else f" (approval_required) {waits}"
    return (
        f"{tool_name} {where}.{said} Do not call it again: use {WAIT_TOOL} with this call_id "
        f"for its result, {STATUS_TOOL} to see how far it is, or {CANCEL_TOOL} to take it back."
    )


def state_text(tool_name: str, call_id: str, status: str) -> str:
    """Return the text for a model about a call's state."""
    said = "has ended: wait for it to have its result" if status == "done" else f"is {status}"
    return f"Call {call_id} of {tool_name} {said}."


def asked_of(arguments: Mapping[str, Any], longest: float) -> tuple[str, float] | None:
    """Return the call id, and for how many seconds to wait at most; `None` for invalid arguments."""
    call_id, seconds = arguments.get("call_id"), arguments.get("seconds", longest)
    if not isinstance(call_id, str) or isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return None
    return call_id, min(max(seconds, 0), longest)
