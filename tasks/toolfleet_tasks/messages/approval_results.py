"""Words the results of calls that people have to approve, or did not."""

import math

from toolfleet_registry.contracts import Audit, ToolResult
from toolfleet_registry.policy.hints import hint_for
from toolfleet_registry.time import fleet_clock


def approval_required(tool_name: str, call_id: str, *, expires_at: float | None) -> ToolResult:
    """The call waits for people, until then at most, where that is known. Its id is that of the approval."""
    hours = max((expires_at or 0) - fleet_clock.now(), 0) / 3600
    left = f"{math.ceil(hours * 60)} min" if hours < 1 else f"{math.ceil(hours)} h"
    within = "" if expires_at is None else f", within {left}"
    text = f"Tool call waits: a person has to approve it first{within}; its approval is {call_id}."
    result = ToolResult.refused(tool_name, "approval_required", text)
    audit = Audit(call_id=call_id, tool=tool_name, ts=fleet_clock.now())
    return result.model_copy(update={"audit": audit, "hint": hint_for(result)})


def rejected(tool_name: str, reason: str) -> ToolResult:
    """A person has declined it, perhaps with a reason, which is theirs."""
    said = f": {reason}" if reason else "."
    return _denied(tool_name, f"Tool call denied: a person has rejected it{said}")


def approval_expired(tool_name: str) -> ToolResult:
    """Return the result of a call that was not decided in time."""
    return _denied(tool_name, "Tool call denied: nobody has approved it in time (expired).")


def changed(tool_name: str, reason: str) -> ToolResult:
    """Return the result of a call that differs from what was to be approved."""
    return _denied(tool_name, f"Tool call denied: {reason}.")


def unapproved(tool_name: str) -> ToolResult:
    """Return the result of a message whose call has no approval: it was withdrawn, or never given."""
    return _denied(tool_name, "Tool call denied: nobody has approved it.")


def too_many_wait(tool_name: str, count: int) -> ToolResult:
    """Return the refusal of a call because too many wait for approvals."""
    text = f"Tool call refused: {count} calls wait for approvals already."
    return ToolResult.failed(tool_name, "busy", text, effect_state="none", retryable=True)


def _denied(tool_name: str, text: str) -> ToolResult:
    return ToolResult.refused(tool_name, "approval_denied", text)
