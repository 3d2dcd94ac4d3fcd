"""Recognises a file's type by its first bytes, well enough for providers, which refuse mislabelled files."""

import re

_BEGINNINGS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
    (b"fLaC", "audio/flac"),
)
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}  # by what follows the size
_KNOWN = frozenset({name for _, name in _BEGINNINGS} | set(_RIFF.values())) - {"audio/mpeg"}
_MEDIA_TYPE = re.compile(r"([a-z0-9][a-z0-9!#$&^_.+-]{0,63}|\*)/([a-z0-9][a-z0-9!#$&^_.+-]{0,63}|\*)", re.ASCII)
_SAME = {
    "image/jpg": "image/jpeg",
    "audio/mp3": "audio/mpeg",
    "audio/wave": "audio/wav",
    "audio/x-wav": "audio/wav",
    "audio/x-flac": "audio/flac",
}


def recognised(data: bytes) -> str | None:
    """The media type that the first bytes show, or `None`."""
    if data[:4] == b"RIFF":
        return _RIFF.get(data[8:12])
    return next((name for beginning, name in _BEGINNINGS if data.startswith(beginning)), None)


def plain_type(text: str) -> str:
    """A media type in small letters, under its usual name, without parameters. Raises `ValueError` if it is none."""
    name = text.partition(";")[0].strip().lower()
    if not _MEDIA_TYPE.fullmatch(name):
        raise ValueError(f"{text[:80]!r} is no media type, such as image/png.")
    return _SAME.get(name, name)


def fits(wanted: str, found: str) -> bool:
    """Return whether a media type is the wanted one; `image/*` takes all images, `*/*` anything."""
    if wanted.endswith("/*"):
        return wanted == "*/*" or found.startswith(wanted[:-1])
    return found == wanted


def is_known_by_bytes(name: str) -> bool:
    """Return whether bytes of this type are always recognised, so that unrecognised ones are not of it."""
    return name in _KNOWN
