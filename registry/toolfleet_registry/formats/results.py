"""Writes a result as the message that a provider wants back for a tool call."""

import json
from typing import Any

from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.contracts.content_results import content_blocks, text_in
from toolfleet_registry.formats.providers.dialects import Format, dialect_of
from toolfleet_registry.formats.providers.shown_files import shown_files
from toolfleet_registry.formats.providers.tool_names import answered_name
from toolfleet_registry.policy.hints import hint_for


def from_result(
    result: ToolResult,
    format: Format,  # noqa: A002 - the word for it
    tool_call_id: str | None,
    *,
    dotted: bool = False,
    files: bool = True,
) -> Any:
    """What answers the call `tool_call_id`, whole: nothing is cut. A plain dictionary, which fits the provider's own types.

    OpenAI: a `tool` message, or a `function_call_output` item; they have no mark for errors, so their text begins with
    `Error`. Anthropic: a `tool_result` block, with `is_error`; all blocks of a turn belong into one user message.
    Gemini: a part with a function response, `output` or `error` in it; `dotted` as the tool was offered. MCP: the
    result of `tools/call`, with `isError`; its id is the request's, so `tool_call_id` is not used.

    Images and other files come in the provider's own form, where it has one for them; of others a sentence says that they
    cannot be shown, as of all in OpenAI's Chat format, which takes text only. `files=False` is for models that take text
    only, such as Gemini's before version 3. Raises `ValueError` for an unknown format.
    """
    dialect_of(format)
    shown, unseen = shown_files(result.files if result.success else (), format, is_on=files)
    if format == "openai_chat":
        return {"role": "tool", "tool_call_id": tool_call_id or "", "content": _marked_text(result) + unseen}
    if format == "openai_responses":
        text = _marked_text(result) + unseen
        output = [{"type": "input_text", "text": text}, *shown] if shown else text
        return {"type": "function_call_output", "call_id": tool_call_id or "", "output": output}
    if format == "anthropic":
        said = _text(result) + unseen
        content = [{"type": "text", "text": said}, *shown] if shown else said
        block = {"type": "tool_result", "tool_use_id": tool_call_id or "", "content": content}
        return block if result.success else {**block, "is_error": True}
    if format == "gemini":
        answer = _gemini(result, tool_call_id, unseen, dotted=dotted)
        return {"functionResponse": {**answer, "parts": shown} if shown else answer}
    return _mcp(result, shown, unseen)


def _gemini(result: ToolResult, tool_call_id: str | None, unseen: str, *, dotted: bool) -> dict[str, Any]:
    response = {"output": result.result} if result.success else {"error": _text(result)}
    if said := "\n".join(filter(None, (unseen.strip(), result.hint if result.success else None))):
        response["note"] = said
    answer = {"name": answered_name(result.tool_name, "gemini", dotted=dotted), "response": response}
    return {"id": tool_call_id, **answer} if tool_call_id else answer


def _mcp(result: ToolResult, shown: list[dict[str, Any]], unseen: str) -> dict[str, Any]:
    text = {"type": "text", "text": _text(result) + unseen}
    answer: dict[str, Any] = {"content": [text, *shown], "isError": not result.success}
    if result.success and isinstance(result.result, dict):
        answer["structuredContent"] = result.result
    return answer


def _marked_text(result: ToolResult) -> str:
    return _text(result) if result.success else f"Error: {_text(result)}"


def _text(result: ToolResult) -> str:
    """A success's text as it is, other JSON as JSON; of a failure what went wrong and what may be done."""
    if not result.success:
        hint = result.hint or hint_for(result)
        sentences = [result.error or "The call failed.", *([hint] if hint else [])]
        return _sendable("\n".join(sentences))
    if blocks := content_blocks(result.result):
        text = text_in(blocks)
    elif isinstance(result.result, str):
        text = result.result
    else:
        text = json.dumps(result.result, ensure_ascii=False, separators=(",", ":"))
    return _sendable(f"{text}\n({result.hint})" if result.hint else text)


def _sendable(text: str) -> str:
    # Half a surrogate pair cannot be sent, and would lose the whole conversation's next request.
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
