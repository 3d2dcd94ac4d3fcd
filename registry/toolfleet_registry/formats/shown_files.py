"""Shows a result's files in each provider's own form, as far as it has one for them; of the others it writes a sentence."""

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from toolfleet_registry.contracts import ResultFile
from toolfleet_registry.formats.dialects import Format

_Show = Callable[[ResultFile, int], dict[str, Any] | None]

# What each takes: of another one it refuses the whole request, and with it the conversation.
_IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_GEMINI = frozenset({"image/png", "image/jpeg", "image/webp", "application/pdf", "text/plain"})
_PDF = "application/pdf"


def shown_files(
    files: tuple[ResultFile, ...],
    format: Format,  # noqa: A002 - the word for it
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
