"""Finds the large parts of a result, and writes the previews that a model sees in their place.

A result has one artifact of its value, and one of each file. Everything is bounded in bytes.
"""

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from pydantic_core import to_json

from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.contracts.artifacts import JSON_TYPE
from toolfleet_registry.contracts.attempts import content_blocks
from toolfleet_registry.contracts.calls import ResultArtifact

_TEXT_TYPE: Final = "text/plain"
_SMALL = 4 * 2**10  # bytes: a preview of less would save nothing
_HEAD, _TAIL = 1_000, 400  # bytes
_MOST_BYTES = 1_500  # of a preview of JSON
_MOST_FILES = 20  # each is an object and a record: a call's end waits for all of them
_MOST_BESIDE = 2 * 2**10  # bytes of a server's other blocks, such as images and links
# Keys, rows, characters of a text, and levels: the first that fit are shown.
_SCALES: Final = ((24, 3, 200, 3), (16, 3, 80, 2), (12, 2, 40, 2), (8, 1, 20, 1))
_LARGEST_NUMBER = 2**64
_MEDIA_TYPE = re.compile(r"[a-z0-9.+-]{1,60}/[a-z0-9.+-]{1,100}")
_MORE = 'read and search it with the tools of `artifacts`, or pass it on whole as an argument: {{"$artifact": "{id}"}}'


@dataclass(frozen=True, slots=True)
class LargePart:
    """A part of a result that is to be kept; `place` as `ResultArtifact` has it."""

    place: str
    media_type: str
    data: bytes


def is_large(result: ToolResult, *, from_bytes: int) -> bool:
    """Return whether a result has such parts. Nothing is copied of one that is much larger."""
    left, values = from_bytes, [result.result]
    while values and left >= 0:  # what all of it has at least, each text as ASCII without escapes
        value = values.pop()
        if isinstance(value, Mapping):
            values += [*value, *value.values()] if len(value) <= left else ()
        elif isinstance(value, list):
            values += value if len(value) <= left else ()
        left -= len(value) if isinstance(value, str | Mapping | list) else 1
    return bool(result.files) or left < 0 or len(_part("", result.result).data) > from_bytes


def large_parts(result: ToolResult, *, from_bytes: int) -> list[LargePart]:
    """Return the parts of a result that are to be kept as artifacts: its first 20 files, and its value from that size on.

    An MCP server's result is kept as its largest text, or its structured content, if the rest is below that size; else as JSON.
    """
    files = enumerate(result.files[:_MOST_FILES])
    parts = [LargePart(f"/files/{number}", _media_type(file.media_type), file.read()) for number, file in files]
    value, blocks = result.result, content_blocks(result.result)
    whole = _part("/result", value)
    if len(whole.data) <= from_bytes:
        return parts
    if blocks is None:
        return [*parts, whole]
    texts = {f"/result/content/{at}/text": block.get("text") for at, block in enumerate(blocks)}
    places = {"/result/structured": value.get("structured")}
    places |= {place: text for place, text in texts.items() if isinstance(text, str)}
    sizes = {place: len(_json(each)) for place, each in places.items()}
    largest = max(places, key=sizes.__getitem__)
    is_one = sizes[largest] > _SMALL and len(whole.data) - sizes[largest] <= from_bytes
    return [*parts, _part(largest, places[largest]) if is_one else whole]


def previewed(result: ToolResult) -> ToolResult:
    """Return the result as a model sees it: the same without artifacts, else with a preview of each, and no artifacts.

    A part that a program has removed, or replaced, has none.
    """
    if not result.artifacts:
        return result
    value, notes = result.result, list[str]()
    for artifact in result.artifacts:
        field, *path = artifact.place.split("/")[1:]
        with contextlib.suppress(LookupError, TypeError, ValueError):  # another value is there, or none
            if field == "files":
                notes.append(f"{result.files[int(path[0])].label(int(path[0]) + 1)} is artifact {artifact.id}")
            else:
                value = _with_preview(value, path, artifact)
    said = [*([result.hint] if result.hint else []), *([f"{'; '.join(notes)}."] if notes else [])]
    return result.model_copy(update={"result": value, "hint": "\n".join(said) or None, "artifacts": ()})


def _part(place: str, value: Any) -> LargePart:
    is_text = isinstance(value, str)
    data = value.encode("utf-8", "replace") if is_text else _json(value)
    return LargePart(place, _TEXT_TYPE if is_text else JSON_TYPE, data)


def _json(value: Any) -> bytes:
    try:
        return to_json(value, inf_nan_mode="null")
    except ValueError:  # half a surrogate pair
        return json.dumps(value, default=str).encode()


def _media_type(said: str) -> str:
    """Return the type that a module has said, if it is one."""
    found = said.partition(";")[0].strip().lower()
    return found if _MEDIA_TYPE.fullmatch(found) else "application/octet-stream"


def _with_preview(value: Any, path: Sequence[str], artifact: ResultArtifact) -> Any:
    """Return a copy of the value with a preview at that path of it."""
    if path:
        at: Any = int(path[0]) if isinstance(value, list) else path[0]
        changed = _with_preview(value[at], path[1:], artifact)
        return [*value[:at], changed, *value[at + 1 :]] if isinstance(value, list) else {**value, at: changed}
    if isinstance(value, str):
        return _of_text(value, artifact)
    preview = _of_json(value, artifact)
    if preview is None:
        return value
    return preview if (blocks := content_blocks(value)) is None else _of_blocks(value, blocks, preview)


def _of_blocks(value: dict[str, Any], blocks: Sequence[dict[str, Any]], preview: dict[str, Any]) -> dict[str, Any]:
    """Return a preview of a server's whole result: as its text and its structure, with the first images and links."""
    kept, left = list[dict[str, Any]](), _MOST_BESIDE
    for block in blocks:
        if "text" not in block and (left := left - len(_json(block))) >= 0:
            kept.append(block)
    text = {"type": "text", "text": _json(preview).decode()}
    structure = {"structured": preview} if "structured" in value else {}
    meta = {"_meta": value["_meta"]} if "_meta" in value and len(_json(value["_meta"])) <= _MOST_BESIDE else {}
    return {"content": [text, *kept], **structure, **meta}


def _of_text(text: str, artifact: ResultArtifact) -> str:
    data = text.encode("utf-8", "replace")
    head, tail = data[:_HEAD].decode(errors="ignore"), data[-_TAIL:].decode(errors="ignore")
    about = f"artifact {artifact.id}, {artifact.size} bytes of {artifact.media_type}, sha256 {artifact.sha256}"
    more = _MORE.format(id=artifact.id)
    if len(data) <= _HEAD + _TAIL:  # a program has put another text there
        return text
    return f"{head}\n[… {len(text) - len(head) - len(tail)} characters are left out: {about}; {more} …]\n{tail}"


def _of_json(value: Any, artifact: ResultArtifact) -> dict[str, Any] | None:
    shown: Any = None
    for scale in _SCALES:
        shown = _shortened(value, *scale)
        if len(_json(shown)) <= _MOST_BYTES:
            break
    if shown == value:  # a program has put another value there
        return None
    facts = artifact.model_dump(include={"media_type", "size", "sha256"})
    return {"artifact": artifact.id, **facts, "hint": f"A preview: {_MORE.format(id=artifact.id)}.", "preview": shown}


def _shortened(value: Any, keys: int, rows: int, characters: int, levels: int) -> Any:
    """Return a JSON value with its first keys, rows and characters only, and how many more there are."""
    if isinstance(value, str):
        return value if len(value) <= characters else f"{value[:characters]}… ({len(value) - characters} more)"
    if isinstance(value, Mapping):
        if not levels:
            return f"{{… {len(value)} keys}}"
        first = islice(value.items(), keys)
        shown = {name[:characters]: _shortened(each, keys, rows, characters, levels - 1) for name, each in first}
        return shown if len(value) <= keys else {**shown, "…": f"{len(value) - keys} more keys"}
    if isinstance(value, list):
        if not levels:
            return f"[… {len(value)} items]"
        shown_rows = [_shortened(each, keys, rows, characters, levels - 1) for each in value[:rows]]
        return shown_rows if len(value) <= rows else [*shown_rows, f"… {len(value) - rows} more items"]
    return "…" if isinstance(value, int) and abs(value) > _LARGEST_NUMBER else value
