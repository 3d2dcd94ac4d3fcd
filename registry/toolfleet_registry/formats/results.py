"""Writes a result as the message that a provider wants back for a tool call, with files in the form that it has for them."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, cast
from urllib.parse import quote

from toolfleet_registry.contracts import ResultFile, ToolResult
from toolfleet_registry.contracts.attempts import checked_part, content_blocks, foreign_meta, text_in
from toolfleet_registry.contracts.calls import ResultArtifact, Spoken
from toolfleet_registry.contracts.names import ToolName
from toolfleet_registry.contracts.tool_definition import ToolDefinition
from toolfleet_registry.formats.calls import field_of
from toolfleet_registry.formats.dialects import Format, answered_name, dialect_of, offered_name
from toolfleet_registry.formats.references import localized
from toolfleet_registry.formats.relaxing import Notes, renamed_properties, rooted
from toolfleet_registry.policy.hints import hint_for
from toolfleet_registry.schemas.definition import input_schema

ARTIFACT_URI = "artifact://"
"""The beginning of an artifact's address for MCP clients; its id follows."""

_Show = Callable[[ResultFile, int], dict[str, Any] | None]

# What each takes: of another one it refuses the whole request, and with it the conversation.
_IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_GEMINI = frozenset({"image/png", "image/jpeg", "image/webp", "application/pdf", "text/plain"})
_PDF = "application/pdf"

_NO_SUCH_TOOL = frozenset({"invalid_tool_name", "unknown_module", "unknown_tool"})
_MOST_SHOWN = 256  # characters of a name that does not exist


def shown_files(
    files: tuple[ResultFile, ...],
    format: Format,
    *,
    is_on: bool,
) -> tuple[list[dict[str, Any]], str]:
    """Return the provider's blocks for the files, and a text that names the files it cannot be shown, "" if it sees all.

    `is_on`: whether the model takes anything but text.
    """
    if not files:
        return [], ""
    show = _SHOWN_BY.get(format) if is_on else None
    blocks = [show(file, number) if show else None for number, file in enumerate(files, 1)]
    unseen = [
        file.label(number) for number, (file, block) in enumerate(zip(files, blocks, strict=True), 1) if not block
    ]
    return [block for block in blocks if block], f"\nYou cannot be shown {', '.join(unseen)}." if unseen else ""


def _openai_responses(file: ResultFile, number: int) -> dict[str, Any] | None:
    url = f"data:{file.media_type};base64,{file.data}"
    if file.media_type in _IMAGES:
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    if file.media_type == _PDF:
        return {"type": "input_file", "filename": file.name or f"file-{number}.pdf", "file_data": url}
    return None


def _anthropic(file: ResultFile, _: int) -> dict[str, Any] | None:
    source = {"type": "base64", "media_type": file.media_type, "data": file.data}
    if file.media_type in _IMAGES:
        return {"type": "image", "source": source}
    if file.media_type == "text/plain":
        source = {"type": "text", "media_type": "text/plain", "data": file.read().decode(errors="replace")}
    elif file.media_type != _PDF:
        return None
    document: dict[str, Any] = {"type": "document", "source": source}
    return {**document, "title": file.name} if file.name else document


def _gemini(file: ResultFile, _: int) -> dict[str, Any] | None:
    if file.media_type not in _GEMINI:
        return None
    return {"inlineData": {"mimeType": file.media_type, "data": file.data}}


def _mcp(file: ResultFile, number: int) -> dict[str, Any]:
    if file.kind != "file":
        return {"type": file.kind, "data": file.data, "mimeType": file.media_type}
    uri = f"result://files/{number}/{quote(file.name or 'file', safe='')}"
    return {"type": "resource", "resource": {"uri": uri, "mimeType": file.media_type, "blob": file.data}}


_SHOWN_BY: Mapping[Format, _Show] = {
    "openai_responses": _openai_responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
    "mcp": _mcp,
}


def from_result(
    result: ToolResult,
    format: Format,
    tool_call_id: str | None,
    *,
    dotted: bool = False,
    files: bool = True,
    caller: Any = None,
) -> Any:
    """Return the answer to a tool call in a provider's format, as a plain dictionary. Only artifacts are cut: they have previews.

    OpenAI: a `tool` message, or a `function_call_output` item; the format has no mark for errors, so the text of an error
    begins with `Error`. Anthropic: a `tool_result` block with `is_error`; all blocks of a turn belong in one user message.
    Gemini: a part with a function response that has `output` or `error`. MCP: the result of `tools/call` with `isError`.

    Images and other files come in the provider's form. A sentence replaces files that the provider cannot show, as all
    files in OpenAI's Chat format, which has only text.

    Args:
        result: The result of the call.
        format: The provider's format.
        tool_call_id: The provider's id of the tool call. MCP does not use it: the id is the request's.
        dotted: Whether the tool was offered with dots in its name.
        files: Whether the model can read files; False for models that read only text, such as Gemini's before version 3.
        caller: The `caller` of the tool call, if the provider has given it one. A program of the provider's gets a
            success as JSON alone, whole, without files and hints.

    Returns:
        The dictionary, which fits the provider's own types.

    Raises:
        ValueError: The format is unknown.

    """
    dialect_of(format)
    if field_of(caller, "type") not in {None, "direct"}:
        return _program_message(result, format, tool_call_id, caller)
    artifacts = result.artifacts
    if artifacts:
        from toolfleet_registry.previews import previewed  # of a fleet that has a store

        result = previewed(result)
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
        answer = _gemini_message(result, tool_call_id, unseen, dotted=dotted)
        return {"functionResponse": {**answer, "parts": shown} if shown else answer}
    answer = _mcp_message(result, shown, unseen)
    return {**answer, "content": [*answer["content"], *map(_link, artifacts)]} if artifacts else answer


def _link(artifact: ResultArtifact) -> dict[str, Any]:
    facts = {"name": artifact.id, "mimeType": artifact.media_type, "size": artifact.size}
    return {"type": "resource_link", "uri": f"{ARTIFACT_URI}{artifact.id}", **facts}


def _program_message(result: ToolResult, format: Format, tool_call_id: str | None, caller: Any) -> dict[str, Any]:
    text = _marked_text(result)
    if result.success:
        value = _shown(checked_part(result.result))
        text = _sendable(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
    if format == "openai_responses":
        program = {"type": "program", "caller_id": field_of(caller, "caller_id")}
        return {"type": "function_call_output", "call_id": tool_call_id or "", "output": text, "caller": program}
    block = {"type": "tool_result", "tool_use_id": tool_call_id or "", "content": text}
    return block if result.success else {**block, "is_error": True}


def _gemini_message(result: ToolResult, tool_call_id: str | None, unseen: str, *, dotted: bool) -> dict[str, Any]:
    response = {"output": _shown(result.result)} if result.success else {"error": _text(result)}
    if said := "\n".join(filter(None, (unseen.strip(), result.hint if result.success else None))):
        response["note"] = said
    answer = {"name": answered_name(result.tool_name, "gemini", dotted=dotted), "response": response}
    return {"id": tool_call_id, **answer} if tool_call_id else answer


def _mcp_message(result: ToolResult, shown: list[dict[str, Any]], unseen: str) -> dict[str, Any]:
    """Write an MCP server's result block by block, as it was given; write any other result as text and structure."""
    value, blocks = result.result, content_blocks(result.result) if result.success else None
    files = {file.label(number): file for number, file in enumerate(result.files, 1)}
    content = [_block(block, files) for block in blocks or ()]
    if blocks is None or unseen or not all(content):
        content = [{"type": "text", "text": _text(result) + unseen}, *shown]
    answer: dict[str, Any] = {"content": content, "isError": not result.success}
    if not isinstance(value, dict):
        return answer
    if result.success and blocks is None:
        return {**answer, "structuredContent": value}
    if value.keys() <= {"content", "structured", "_meta"}:
        meta = foreign_meta(value.get("_meta"))
        answer |= {"structuredContent": value["structured"]} if "structured" in value else {}
        answer |= {"_meta": meta} if meta else {}
    return answer


def _block(block: dict[str, Any], files: Mapping[str, ResultFile]) -> dict[str, Any] | None:
    file, said = files.get(str(block.get("file"))), {name: value for name, value in block.items() if name != "file"}
    match block:
        case {"type": "image" | "audio"} if file is not None:
            return {**said, "data": file.data, "mimeType": file.media_type}
        case {"type": "resource", "uri": str()}:
            return _resource(said, file)
        case {"type": "text", "text": str()} | {"type": "resource_link", "uri": str(), "name": str()}:
            return said
        case _:
            return None


def _resource(said: dict[str, Any], file: ResultFile | None) -> dict[str, Any] | None:
    if file is None and not isinstance(said.get("text"), str):
        return None
    outer = {name: value for name, value in said.items() if name in {"type", "annotations", "_meta"}}
    inner = {name: value for name, value in said.items() if name not in outer}
    if "resourceMeta" in inner:
        inner["_meta"] = inner.pop("resourceMeta")
    return {**outer, "resource": inner if file is None else {**inner, "blob": file.data}}


def _marked_text(result: ToolResult) -> str:
    return _text(result) if result.success else f"Error: {_text(result)}"


def _text(result: ToolResult) -> str:
    """Return a success's text as it is, other JSON as JSON; of a failure what went wrong and what may be done."""
    if not result.success:
        hint = result.hint or hint_for(result)
        sentences = [result.error or "The call failed.", *([hint] if hint else [])]
        return _sendable("\n".join(sentences))
    value = _shown(result.result)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _sendable(f"{text}\n({result.hint})" if result.hint else text)


def _shown(value: Any) -> Any:
    """Return what a model reads of a result: the text of an MCP server's blocks, or else its structure, or the result."""
    blocks = content_blocks(value)
    return text_in(blocks) if blocks else checked_part(value)


def _sendable(text: str) -> str:
    # Half a surrogate pair cannot be sent, and would lose the whole conversation's next request.
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def as_spoken(result: ToolResult, spoken: Spoken) -> ToolResult:
    """Return the result, with `error` and `hint` in the names under which the model was offered its tools and arguments.

    Nothing else changes: not the `tool_name`, nor the code. A success, and what no model has asked for, is as it was.
    """
    if result.success or not spoken.format:
        return result
    if spoken.tool is None:
        return _of_no_tool(result, spoken) if result.error_code in _NO_SUCH_TOOL else result
    error, hint = (_named(text, spoken.tool, spoken.name) for text in (result.error, result.hint))
    if result.error_code == "unknown_tool":  # it has gone meanwhile; what is there is named as the catalog names it
        hint = _all_named(hint, ToolName.parse(spoken.tool.name).module, cast("Format", spoken.format))
    if result.error_code == "invalid_arguments" and error:
        for own, shown in _renamed(spoken.tool, cast("Format", spoken.format)).items():
            error = error.replace(own, shown)
    return result.model_copy(update={"error": error, "hint": hint})


def _of_no_tool(result: ToolResult, spoken: Spoken) -> ToolResult:
    if not spoken.name:
        return result.model_copy(update={"error": "The call names no tool."})
    shown = spoken.name if len(spoken.name) <= _MOST_SHOWN else f"{spoken.name[:_MOST_SHOWN]}…"
    shown = shown.encode("utf-8", "replace").decode()  # a model can write half a character, and no output can
    meant = f"; did you mean {' or '.join(spoken.near)}?" if spoken.near else "."
    return result.model_copy(update={"error": f"No tool {shown}{meant}"})


def _named(text: str | None, tool: ToolDefinition, name: str) -> str | None:
    if text is None or tool.name not in text:
        return text
    return re.sub(rf"(?<![\w.-]){re.escape(tool.name)}(?![\w-]|\.\w)", lambda _: name, text)


def _all_named(text: str | None, module: str, format: Format) -> str | None:
    """Return the text with all tools of the module under their offered names."""
    if text is None:
        return None
    return re.sub(rf"(?<![\w.-]){re.escape(module)}\.[\w-]+(\.[\w-]+)*", lambda m: offered_name(m[0], format), text)


def _renamed(tool: ToolDefinition, format: Format) -> Mapping[str, str]:
    """Return the arguments that the provider was shown under other names; the longest first, as one may be in another."""
    legal = dialect_of(format).property_name
    if legal is None:
        return {}
    found = renamed_properties(rooted(localized(input_schema(tool)), Notes(tool.name)), legal)
    return {own: found[own] for own in sorted(found, key=len, reverse=True)}
