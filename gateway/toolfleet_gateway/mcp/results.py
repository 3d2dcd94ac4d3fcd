"""Writes what a call has become in the protocol's forms: its result, its progress, a task (SEP-2663), or that it goes on."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

import mcp_types as types
from mcp.shared.exceptions import MCPError

from toolfleet_gateway.mcp.approvals import CallApproval
from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.contracts.call_context import Progress
from toolfleet_registry.formats.results import from_result
from toolfleet_registry.functions.passed_methods import passed_error
from toolfleet_tasks.calls.begun_calls import RESULT_KEPT_SECONDS, BegunHandle
from toolfleet_tasks.messages.fleet_results import RUNNING, running_text

CALL_ID: Final = "toolfleet/callId"
"""The name in a result's `_meta` of the call's id."""

ERROR: Final = "toolfleet/error"
"""The name in a failed result's `_meta` of what programs want to know."""

PROGRESS: Final = "notifications/progress"

_WHOLE = 100.0
_STEP = 0.01  # of it, if the call's progress is unknown

EXTENSION: Final = "io.modelcontextprotocol/tasks"

TaskState = Literal["working", "input_required", "completed", "failed", "cancelled"]

_POLL_MS = 500

_APPROVAL_REQUIRED: Final = "toolfleet/approvalRequired"
"""The name in a result's `_meta` of the approval that a call waits for."""


def call_result(result: ToolResult, call_id: str) -> dict[str, Any]:
    """Return the result in the protocol's form. The text about a failure ends with its known effect."""
    answer: dict[str, Any] = from_result(result, "mcp", None)
    meta: dict[str, Any] = {**answer.pop("_meta", {}), CALL_ID: call_id}
    if not result.success:
        meta[ERROR] = error_facts(result)
        answer["content"][0]["text"] += _known(result)
    return {**answer, "resultType": "complete", "_meta": meta}


def error_facts(result: ToolResult) -> dict[str, Any]:
    """Return the facts of a failed call, for programs."""
    facts = {
        "error_code": result.error_code,
        "effect_state": result.effect_state,
        "retryable": result.retryable,
        "retry_after_seconds": result.retry_after_seconds,
        "hint": result.hint,
        "ends_run": result.ends_run or None,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _known(result: ToolResult) -> str:
    facts = f"error_code: {result.error_code}, effect_state: {result.effect_state}"
    return f"\n({facts}, retryable: {'yes' if result.retryable else 'no'})"


def passed_failure(result: ToolResult) -> MCPError | None:
    """The server's own error; `None` for a success, and for a failure of any other kind."""
    error = None if result.success else passed_error(result.result)
    if error is None:
        return None
    data: dict[str, Any] = error.data if isinstance(error.data, dict) else {}
    return MCPError(error.code, error.message, {**data, ERROR: error_facts(result)})


@dataclass(slots=True)
class ProgressNotes:
    """The notes on one call, for the client that gave this `token`."""

    token: str | int
    _last: float = -_STEP

    def note(self, step: Progress) -> dict[str, Any]:
        """The parameters of the next notification."""
        known = None if step.fraction is None else step.fraction * _WHOLE
        self._last = max(self._last + _STEP, -1.0 if known is None else known)
        note: dict[str, Any] = {"progressToken": self.token, "progress": round(self._last, 4)}
        if known is not None:
            note["total"] = _WHOLE
        if step.message:
            note["message"] = step.message
        return note


def task_facts(handle: BegunHandle, state: TaskState, *, now: float, message: str | None = None) -> dict[str, Any]:
    """Return the facts of every answer about a task; times as ISO 8601, in UTC."""
    call = handle.published
    begun_at = now if call is None else call.published_at
    lasts = RESULT_KEPT_SECONDS + (0 if call is None else max(call.deadline_at - begun_at, 0))
    facts: dict[str, Any] = {
        "taskId": handle.id,
        "status": state,
        "createdAt": _iso(begun_at),
        "lastUpdatedAt": _iso(now),
        "ttlMs": round(lasts * 1000),
        "pollIntervalMs": _POLL_MS,
    }
    return facts if message is None else {**facts, "statusMessage": message}


def lacks_tasks() -> MCPError:
    """Return the error of a request that would need a client with tasks."""
    needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
    message = f"Declare the extension {EXTENSION} in this request's capabilities."
    return MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, message, needed)


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def running_result(handle: BegunHandle, waits: CallApproval | None = None) -> dict[str, Any]:
    """A result that is none yet. It is marked as an error, for a client holds any other one to the tool's output schema.

    `waits`: the approval that the call waits for.
    """
    text = running_text(handle.tool_name, handle.id, None if waits is None else waits.sentence)
    meta: dict[str, Any] = {CALL_ID: handle.id, RUNNING: True}
    if waits is not None:
        meta[_APPROVAL_REQUIRED] = waits.facts
    return {"content": [{"type": "text", "text": text}], "isError": True, "resultType": "complete", "_meta": meta}
