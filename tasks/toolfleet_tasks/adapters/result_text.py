"""Words the end of a call as a model reads it in an agent framework."""

from toolfleet_registry.contracts import ResultFile, ToolResult
from toolfleet_registry.formats import from_result
from toolfleet_registry.formats.results import shown_files
from toolfleet_registry.policy.hints import hint_for


def result_text(result: ToolResult) -> str:
    """The whole result as text; of files it says that they cannot be shown.

    A failure says what went wrong, and then, a line each, what a model must know before it tries again: the error code,
    whether the effect has happened, whether a repeat is harmless, and what it may do next.
    """
    if result.success:
        return str(from_result(result, "openai_chat", None)["content"])
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


def shown_parts(result: ToolResult) -> tuple[str, list[ResultFile]]:
    """Return the result as text, and the files to go with it: images and PDFs, which most providers take.

    The text names the others.
    """
    if not result.success or not result.files:
        return result_text(result), []
    _, unseen = shown_files(result.files, "openai_responses", is_on=True)
    files = [file for file in result.files if shown_files((file,), "openai_responses", is_on=True)[0]]
    return result_text(result.model_copy(update={"files": ()})) + unseen, files
