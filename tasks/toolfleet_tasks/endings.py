"""Results that the fleet itself words, when no module's answer is to be had."""

from toolfleet_registry.contracts import ToolResult

_COARSE = 10  # seconds: from here on, nobody cares for a part of one


def timed_out(tool_name: str, seconds: float) -> ToolResult:
    """The module did not answer in time; it may still be at it."""
    shown = f"{seconds:.0f}" if seconds >= _COARSE else f"{seconds:.2g}"
    text = f"Tool execution timed out ({shown}s)."
    return ToolResult.failed(tool_name, "timed_out", text, effect_state="unknown")


def expired(tool_name: str) -> ToolResult:
    """The deadline passed before the call was begun, so nothing has happened."""
    text = "Tool call expired: its deadline passed before a worker could begin it."
    return ToolResult.failed(tool_name, "expired", text, effect_state="none", retryable=True)


def unanswered(tool_name: str) -> ToolResult:
    """The deadline passed; the call was begun, or nobody can be asked whether it was."""
    text = "Tool call was not answered by its deadline; it may have been executed."
    return ToolResult.failed(tool_name, "timed_out", text, effect_state="unknown")


def cancelled(tool_name: str) -> ToolResult:
    """The caller took the call back. Celery does not say whether it had begun."""
    text = "Tool call was cancelled."
    return ToolResult.failed(tool_name, "cancelled", text, effect_state="unknown")


def outcome_unknown(tool_name: str, reason: str) -> ToolResult:
    """A worker took the call and nobody saw how it ended."""
    text = f"Tool execution error: {reason} It may have been executed."
    return ToolResult.failed(tool_name, "outcome_unknown", text, effect_state="unknown")


def not_published(tool_name: str, reason: str) -> ToolResult:
    """The call never got into its queue."""
    text = f"Tool execution error: the queue cannot be reached ({reason})."
    return ToolResult.failed(tool_name, "internal", text, effect_state="none", retryable=True)
