"""Words the end of a call as a model reads it in an agent framework."""

from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.formats import from_result
from toolfleet_registry.policy.hints import hint_for


def result_text(result: ToolResult, *, files: bool = False) -> str:
    """The whole result as text. `files`: whether the model is shown them beside it; else a sentence says that it is not.

    A failure says what went wrong, and then, a line each, what a model must know before it tries again: the error code,
    whether the effect has happened, whether a repeat can do harm, and what it may do next.
    """
    if result.success:
        shown = result.model_copy(update={"files": ()}) if files else result
        return str(from_result(shown, "openai_chat", None)["content"])
    facts = {
        "error_code": result.error_code or "internal",
        "effect_state": result.effect_state,
        "retryable": "true" if result.retryable else "false",
        "retry_after_seconds": result.retry_after_seconds,
        "hint": result.hint or hint_for(result),
    }
    said = [f"{name}: {value}" for name, value in facts.items() if value is not None]
    text = "\n".join([f"Error: {result.error or 'The call failed.'}", *said])
    return text.encode("utf-8", "replace").decode()  # half a character cannot be sent
