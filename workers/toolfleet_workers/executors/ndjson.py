"""A module's reply in lines: how far it is, again and again, and then the reply itself.

`{"progress": 0.4, "message": "…"}` a line, each at most 4 kB; `progress` may be null. The last line is what would else
have been the whole body. Fields that we do not know are ignored.
"""

from typing import Any

import aiohttp
from pydantic_core import from_json

from toolfleet_registry.errors import BodyTooLarge, BodyUnreadable
from toolfleet_registry.progress import LONGEST_MESSAGE, report
from toolfleet_workers.executors.error_text import readable
from toolfleet_workers.executors.headers import read_header

CONTENT_TYPE = "application/x-ndjson"

_LINE_BYTES = 4096
_ALL_LINES_BYTES = 16 * 2**20  # an hour of a whole line every second


def is_stream(response: aiohttp.ClientResponse) -> bool:
    """Whether the module answers in lines."""
    content_type: str = response.headers.get("Content-Type", "")
    return content_type.partition(";")[0].strip().lower() == CONTENT_TYPE


async def read_last_line(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The reply, at most `limit` bytes; what comes before is reported, of each piece that arrives the latest only.

    Raises `BodyTooLarge` and `BodyUnreadable`; aiohttp's errors pass.
    """
    encoding = (read_header(response, "Content-Encoding") or "identity").strip().lower()
    if encoding != "identity":  # we asked for none
        raise BodyUnreadable("lines of progress must not be compressed")
    lines = _Lines(limit)
    while chunk := await response.content.readany():
        lines.feed(chunk)
    return lines.finish()


class _Lines:
    """Takes the lines in piece by piece."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rest = bytearray()  # of a line that has not ended
        self._reply = b""
        self._progress_bytes = 0

    def feed(self, chunk: bytes) -> None:
        """Take in what was sent next."""
        latest = None
        *whole, rest = chunk.split(b"\n")
        for line in whole:
            self._add(line)
            latest = self._ended() or latest
        self._add(rest)
        if latest is not None:
            _tell(latest)

    def finish(self) -> bytes:
        """The reply, when all was sent."""
        self._ended()
        if not self._reply:
            raise BodyUnreadable("it ends without a reply after its lines of progress")
        return self._reply

    def _add(self, part: bytes) -> None:
        if len(self._rest) + len(part) > max(self._limit, _LINE_BYTES):
            raise BodyTooLarge(self._limit)
        self._rest += part

    def _ended(self) -> dict[str, Any] | None:
        """A line has ended: progress, or the reply, after which there must be no other."""
        line = bytes(self._rest)
        self._rest.clear()
        self._progress_bytes += len(line) + 1
        if self._progress_bytes > _ALL_LINES_BYTES + self._limit:
            raise BodyTooLarge(_ALL_LINES_BYTES)
        if not line or line.isspace():
            return None
        if self._reply:
            raise BodyUnreadable("a line that is neither progress nor the last one")
        found = _progress_in(line)
        if found is None:
            if len(line) > self._limit:
                raise BodyTooLarge(self._limit)
            self._reply = line
        return found


def _progress_in(line: bytes) -> dict[str, Any] | None:
    """The line's fields, if it is one of progress; anything else can only be the reply, which is judged as such."""
    if len(line) > _LINE_BYTES:
        return None
    try:
        fields = from_json(line, allow_inf_nan=False)
    except ValueError:
        return None
    if not isinstance(fields, dict) or "progress" not in fields or "success" in fields:
        return None
    fraction, message = fields["progress"], fields.get("message", "")
    is_number = fraction is None or (isinstance(fraction, (int, float)) and not isinstance(fraction, bool))
    return fields if is_number and isinstance(message, str | None) else None


def _tell(fields: dict[str, Any]) -> None:
    """A share that lies a little outside, as rounding makes it, is no reason to lose a result."""
    report(fields["progress"], readable(fields.get("message") or "")[:LONGEST_MESSAGE])
