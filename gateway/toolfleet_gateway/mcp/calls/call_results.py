"""Writes the end of a call as the result of `tools/call`."""

from collections.abc import Mapping
from typing import Any, Final

from toolfleet_registry.contracts import ResultFile, ToolResult
from toolfleet_registry.formats.results import from_result

CALL_ID: Final = "toolfleet/callId"
"""The name in a result's `_meta` of the call's id."""
ERROR: Final = "toolfleet/error"
"""The name in a failed result's `_meta` of what programs want to know."""

_TAKEN_OVER = {"content", "structured"}


def call_result(result: ToolResult, call_id: str) -> dict[str, Any]:
    """The result as the protocol has it. What a model reads of a failure ends with what is known of its effect."""
    answer = _of_blocks(result) or from_result(result, "mcp", None)
    meta: dict[str, Any] = {CALL_ID: call_id}
    if not result.success:
        meta[ERROR] = error_facts(result)
        answer["content"][0]["text"] += _known(result)
    return {**answer, "resultType": "complete", "_meta": meta}


def error_facts(result: ToolResult) -> dict[str, Any]:
    """What a program may go by, of a call that failed."""
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


def _of_blocks(result: ToolResult) -> dict[str, Any] | None:
    """The content of a result that an MCP server has given, block by block; `None` for any other."""
    value = result.result
    if not result.success or not isinstance(value, dict) or not value.keys() <= _TAKEN_OVER:
        return None
    blocks = value.get("content")
    if not isinstance(blocks, list) or not blocks:
        return None
    files = {file.label(number): file for number, file in enumerate(result.files, 1)}
    content = [_block(block, files) for block in blocks]
    if not all(content):
        return None
    answer: dict[str, Any] = {"content": content, "isError": False}
    return {**answer, "structuredContent": value["structured"]} if "structured" in value else answer


def _block(block: Any, files: Mapping[str, ResultFile]) -> dict[str, Any] | None:
    if not isinstance(block, dict):
        return None
    file = files.get(str(block.get("file")))
    match block:
        case {"type": "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "image" | "audio" as kind} if file is not None:
            return {"type": kind, "data": file.data, "mimeType": file.media_type}
        case {"type": "resource", "uri": str(uri)}:
            return _resource(uri, block, file)
        case {"type": "resource_link", "uri": str(), "name": str()}:
            return block
        case _:
            return None


def _resource(uri: str, block: Mapping[str, Any], file: ResultFile | None) -> dict[str, Any] | None:
    facts = {"uri": uri, **({"mimeType": block["mimeType"]} if "mimeType" in block else {})}
    if isinstance(block.get("text"), str):
        return {"type": "resource", "resource": {**facts, "text": block["text"]}}
    if file is None:
        return None
    return {"type": "resource", "resource": {**facts, "blob": file.data}}
