"""Words the refusal of a call, in text that any terminal and file can show."""

from toolfleet_registry.contracts import ErrorCode, ToolCall, ToolResult

_MOST_SHOWN = 256  # characters of foreign text


def refused(call: ToolCall, code: ErrorCode, error: str, *, hint: str | None = None) -> ToolResult:
    """The result of a call that is not published."""
    return ToolResult.refused(encodable(call.tool_name), code, error, hint=hint)


def shown(text: str) -> str:
    """Foreign text for a reason: of a bounded length, and without what cannot be written to a terminal or a file."""
    return encodable(text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…")


def encodable(text: str) -> str:
    """`text`, with "?" for half surrogate pairs: a model can write them, and no output can."""
    return text.encode("utf-8", "replace").decode()
