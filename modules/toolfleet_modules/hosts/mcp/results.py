"""Makes a module's reply of what a server answers to a call."""

import binascii
from base64 import b64decode
from collections.abc import Iterable
from typing import Any

import mcp_types as types
from pydantic import TypeAdapter

from toolfleet_modules.requests.reply import Reply
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.functions.files import Audio, File, Image

_RESULT = TypeAdapter(types.CallToolResult)


def result_of(answer: object) -> types.CallToolResult:
    """What a server has answered to a call. Raises `ValidationError` if it is no result."""
    return _RESULT.validate_python(answer, by_name=False)


def reply_of(tool: ToolDefinition, result: types.CallToolResult, *, most_bytes: int) -> Reply:
    """The reply to a call that has come to its end."""
    if result.is_error:
        # It has begun, and says no more. Only what changes nothing has surely changed nothing.
        text = _text_of(result.content) or f"{tool.name} failed, and does not say why."
        return Reply.failure(tool.name, text, effect_state="none" if tool.effect == "read" else "unknown")
    has_structure = "structured_content" in result.model_fields_set
    parts = [_part_of(block) for block in result.content]
    if has_structure and tool.output_schema is not None:
        files = [value for part in parts for value in part.values() if isinstance(value, File)]
        return Reply.success(tool.name, result.structured_content, most_bytes=most_bytes, files=files)
    if all(part["type"] == "text" for part in parts):
        value = result.structured_content if has_structure else _text_of(result.content)
    else:
        value = {"content": parts, **({"structured": result.structured_content} if has_structure else {})}
    return Reply.success(tool.name, value, most_bytes=most_bytes)


def _text_of(content: Iterable[types.ContentBlock]) -> str:
    return "\n".join(block.text for block in content if isinstance(block, types.TextContent))


def _part_of(block: types.ContentBlock) -> dict[str, Any]:
    """A block with its type; bytes as a file, for which its label stands in the result."""
    match block:
        case types.TextContent():
            return {"type": "text", "text": block.text}
        case types.ImageContent():
            return {"type": "image", "mimeType": block.mime_type, "file": _file(Image, block.data, block.mime_type)}
        case types.AudioContent():
            return {"type": "audio", "mimeType": block.mime_type, "file": _file(Audio, block.data, block.mime_type)}
        case types.EmbeddedResource():
            return _resource(block.resource)
        case types.ResourceLink():
            link = block.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"meta", "annotations"})
            return {**link, "type": "resource_link"}


def _resource(resource: types.TextResourceContents | types.BlobResourceContents) -> dict[str, Any]:
    facts = {"type": "resource", "uri": str(resource.uri)}
    if resource.mime_type is not None:
        facts["mimeType"] = resource.mime_type
    if isinstance(resource, types.TextResourceContents):
        return {**facts, "text": resource.text}
    return {**facts, "file": _file(File, resource.blob, resource.mime_type)}


def _file(kind: type[File], data: str, media_type: str | None) -> File | str:
    """The bytes, under the type that they have: servers name wrong ones. A sentence where there are none."""
    try:
        content = b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return "(its data is no base64)"
    if not content:
        return "(empty)"
    for made, said in ((kind, media_type), (kind, None), (File, None)):
        try:
            return made(content, said)
        except ValueError:
            continue
    return "(its data cannot be sent)"
