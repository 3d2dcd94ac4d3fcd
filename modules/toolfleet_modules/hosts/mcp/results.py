"""Makes a module's reply of what a server answers to a call: as the server made it, also where that is not quite legal."""

import binascii
import json
import re
from base64 import b64decode
from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from toolfleet_modules.hosts.mcp.transports.exchanges import Malformed, words_of
from toolfleet_modules.requests.reply import Reply
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.contracts.outcomes import content_blocks, foreign_meta, text_in
from toolfleet_registry.functions.files import Audio, File, Image

_PLAIN = {"type", "text"}
_MOST_OF_A_FAILURE = 2**14  # bytes of the data next to its text
_BLANKS = re.compile(r"\s+")
_URL_SAFE = str.maketrans("-_", "+/")
_MEDIA: Mapping[object, type[File]] = {"image": Image, "audio": Audio}


def reply_of(tool: ToolDefinition, answer: object, *, most_bytes: int) -> Reply:
    """The reply to a call that has come to its end. Raises `Malformed` for an answer that has nothing of a result."""
    if not isinstance(answer, dict) or answer.get("content") is answer.get("structuredContent") is None:
        raise Malformed(words_of(answer))
    content, structure = answer.get("content"), answer.get("structuredContent")
    parts = [_part_of(block) for block in (content if isinstance(content, list) else [content]) if block is not None]
    structured = {} if structure is None else {"structured": structure}
    meta = {"_meta": found} if (found := foreign_meta(answer.get("_meta"))) else {}
    if answer.get("isError") is True or answer.get("isError") == "true":
        return _failure(tool, parts, {**structured, **meta})
    is_text = len(parts) == 1 and parts[0].keys() == _PLAIN and not meta
    if (
        structured
        and not meta
        and content_blocks(structure) is None
        and (not parts or (is_text and _is_same(parts[0]["text"], structure)))
    ):
        return Reply.success(tool.name, structure, most_bytes=most_bytes)
    if not structured and (is_text or not (parts or meta)):
        return Reply.success(tool.name, text_in(parts), most_bytes=most_bytes)
    return Reply.success(tool.name, {"content": parts, **structured, **meta}, most_bytes=most_bytes)


def _failure(tool: ToolDefinition, parts: list[dict[str, Any]], more: dict[str, Any]) -> Reply:
    """A failure that the server states. Only what changes nothing has surely changed nothing."""
    text = text_in(part for part in parts if "text" in part) or (
        words_of(more["structured"]) if "structured" in more else ""
    )
    return Reply.failure(
        tool.name,
        text or f"{tool.name} failed, and does not say why.",
        effect_state="none" if tool.effect == "read" else "unknown",
        result=more if more and len(to_json(more, fallback=str)) <= _MOST_OF_A_FAILURE else None,
    )


def _is_same(text: str, structure: object) -> bool:
    """Return whether a text is only the JSON of the structure, as servers write it for older clients."""
    try:
        return bool(json.loads(text) == structure)
    except (ValueError, RecursionError):
        return False


def _part_of(block: object) -> dict[str, Any]:
    """A block as it is, with a file in the place of its bytes. One that no client could read becomes a text."""
    said = {name: value for name, value in block.items() if value is not None} if isinstance(block, dict) else {}
    match said:
        case {"type": "text", "text": str()}:
            return said
        case {"type": "image" | "audio" as kind, "data": str(data)}:
            media_type = said.get("mimeType")
            return _with_file(
                said, "data", _file(_MEDIA[kind], data, media_type if isinstance(media_type, str) else None)
            )
        case {"type": "resource", "resource": {"uri": str()} as resource}:
            return _resource(said, {name: value for name, value in resource.items() if value is not None})
        case {"type": "resource_link", "uri": str(uri)}:
            return {"name": uri, **said}
        case _:
            return {"type": "text", "text": block if isinstance(block, str) else to_json(block, fallback=str).decode()}


def _resource(said: dict[str, Any], resource: dict[str, Any]) -> dict[str, Any]:
    if "_meta" in resource:
        resource["resourceMeta"] = resource.pop("_meta")
    part = {**{name: value for name, value in said.items() if name != "resource"}, **resource, "type": "resource"}
    if isinstance(resource.get("text"), str) or not isinstance(blob := resource.get("blob"), str):
        return {**part, "text": words_of(resource.get("text", ""))} if "text" not in resource else part
    media_type = resource.get("mimeType")
    return _with_file(part, "blob", _file(File, blob, media_type if isinstance(media_type, str) else None))


def _with_file(part: dict[str, Any], member: str, file: File | None) -> dict[str, Any]:
    rest = {name: value for name, value in part.items() if name != member}
    if file is not None:
        return {**rest, "file": file}
    return {"type": "text", "text": f"({part['type']} without readable data: {words_of(rest)})"}


def _file(kind: type[File], data: str, media_type: str | None) -> File | None:
    """The bytes, under the type that they have: servers name wrong ones. They may come as a `data:` URL, in lines, or unpadded."""
    written = data.partition(",")[2] if data.startswith("data:") else data
    plain = _BLANKS.sub("", written).translate(_URL_SAFE).rstrip("=")
    try:
        content = b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
    for made, said in ((kind, media_type), (kind, None), (File, None)):
        try:
            return made(content, said)
        except ValueError:
            continue
    return None
