"""Writes the end of a call as the result of `tools/call`."""

from collections.abc import Mapping
from typing import Any, Final

from toolfleet_registry.contracts import ResultFile, ToolResult
from toolfleet_registry.contracts.content_results import content_blocks, foreign_meta
from toolfleet_registry.formats.results import from_result

CALL_ID: Final = "toolfleet/callId"
"""The name in a result's `_meta` of the call's id."""
ERROR: Final = "toolfleet/error"
"""The name in a failed result's `_meta` of what programs want to know."""


def call_result(result: ToolResult, call_id: str) -> dict[str, Any]:
    """The result as the protocol has it. What a model reads of a failure ends with what is known of its effect."""
    blocks = _of_blocks(result)
    answer = blocks or from_result(result, "mcp", None)
    structured, given = _beside(result.result) if blocks or not result.success else ({}, {})
    answer |= structured
    meta: dict[str, Any] = {**given, CALL_ID: call_id}
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
    blocks = content_blocks(result.result) if result.success else None
    if blocks is None:
        return None
    files = {file.label(number): file for number, file in enumerate(result.files, 1)}
    content = [_block(block, files) for block in blocks]
    return {"content": content, "isError": False} if all(content) else None


def _beside(value: object) -> tuple[dict[str, Any], dict[str, Any]]:
    """Structured content and `_meta` that an MCP server has given with the content, or with the words of a failure."""
    if not isinstance(value, dict) or not value.keys() <= {"content", "structured", "_meta"}:
        return {}, {}
    structured = {"structuredContent": value["structured"]} if "structured" in value else {}
    return structured, foreign_meta(value.get("_meta"))


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
