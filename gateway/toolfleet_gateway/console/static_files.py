"""Serves the console's own files: each is read once, and its address has its digest, so that browsers keep it for ever."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from toolfleet_gateway.http.problems import not_found

FOLDER: Final = Path(__file__).parent / "static"

_MEDIA = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_DIGITS = 12


@dataclass(frozen=True, slots=True)
class _StaticFile:
    content: bytes
    media: str
    version: str


class StaticFiles:
    """The files of a folder that browsers may have. Other names are not looked up."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._files = {
            path.relative_to(folder).as_posix(): _read(path)
            for path in sorted(folder.rglob("*"))
            if path.suffix in _MEDIA
        }

    def address(self, name: str) -> str:
        """Return the path below the console's, with the digest of the file. Raises `KeyError`."""
        return f"/static/{name}?v={self._files[name].version}"

    def answer(self, request: Request, name: str) -> Response:
        """The file. Raises `Problem`, 404."""
        file = self._files.get(name)
        if file is None:
            raise not_found("There is no such file.")
        is_exact = request.query_params.get("v") == file.version
        kept = "public, max-age=31536000, immutable" if is_exact else "no-cache"
        return Response(file.content, headers={"cache-control": kept}, media_type=file.media)


def _read(path: Path) -> _StaticFile:
    content = path.read_bytes()
    return _StaticFile(content, _MEDIA[path.suffix], hashlib.sha256(content).hexdigest()[:_DIGITS])
