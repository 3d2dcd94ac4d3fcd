"""Describes the results of MCP servers: `{"content": blocks, "structured": …, "_meta": …}`, the last two only if they are given.

In a block a file's label replaces its bytes, as everywhere in results. A resource's own `_meta` is its `resourceMeta`;
its other members are next to its `uri`.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

_FIELDS = frozenset({"content", "structured", "_meta"})
_KINDS = frozenset({"text", "image", "audio", "resource", "resource_link"})
_OWN = ("toolfleet/", "io.toolfleet/", "io.modelcontextprotocol/")  # what the fleet says by itself to its clients


def content_blocks(value: object) -> list[dict[str, Any]] | None:
    """Return the blocks of such a result, or None for any other: a tool may have a member `content` of its own."""
    if not isinstance(value, dict) or not value.keys() <= _FIELDS:
        return None
    blocks = value.get("content")
    if not isinstance(blocks, list) or not all(
        isinstance(each, dict) and each.get("type") in _KINDS for each in blocks
    ):
        return None
    return blocks if blocks or len(value) > 1 else None


def checked_part(value: Any) -> Any:
    """Return what a tool's output schema says something of: structured content, or the result."""
    return value["structured"] if content_blocks(value) is not None and "structured" in value else value


def text_in(blocks: Iterable[Mapping[str, Any]]) -> str:
    """Return what a model may read of blocks: texts, the labels of files, and links as JSON."""
    return "\n".join(
        str(each["text"] if "text" in each else each.get("file") or json.dumps(each, ensure_ascii=False))
        for each in blocks
    )


def foreign_meta(meta: object) -> dict[str, Any]:
    """Return a server's `_meta`, without the names that belong to the fleet and the protocol."""
    found = meta if isinstance(meta, dict) else {}
    return {name: value for name, value in found.items() if not name.startswith(_OWN) and value is not None}
