"""Changes or refuses calls in the process that publishes them."""

from toolfleet import Caller, ToolCall, ToolResult


class Trimmed:
    """Takes spaces off texts."""

    async def __call__(self, call: ToolCall, caller: Caller) -> ToolCall | ToolResult:
        """Return the call with trimmed texts, or a refusal."""
        if caller.user_id is None:
            return ToolResult.refused(call.tool_name, "permission_denied", "Say whose call it is.")
        given = call.arguments.items()
        trimmed = {name: text.strip() if isinstance(text, str) else text for name, text in given}
        return call.model_copy(update={"arguments": trimmed})
