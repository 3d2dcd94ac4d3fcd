"""Reads a module's reply in lines: reports of progress and log messages, and then the reply itself.

`{"progress": 0.4, "message": "…"}` a line, each at most 4 kB; `progress` may be null. `{"log": {"level": "info",
"data": …}}` for calls whose caller wants that, and ignored for others. The last line is what would otherwise be the
whole body. Unknown fields are ignored; so are a fraction that is no number, and a message that is no text.
"""

import asyncio
import json
import math
import re
from typing import Any

from toolfleet_registry.contracts.call_context import LONGEST_MESSAGE, current_log, log_message_in, report
from toolfleet_registry.errors import BodyTooLarge, BodyUnreadable
from toolfleet_registry.time import machine_clock
from toolfleet_workers.executors.error_text import readable
from toolfleet_workers.executors.http.module_client import ModuleResponse

CONTENT_TYPE = "application/x-ndjson"
_PLAIN_JSON = "application/json"

_LINE_BYTES = 64 * 2**10  # of one that is read as progress; what is longer and begins as one is passed over
# How much progress is taken: a module that says more is read no faster than this, so that a flood costs a worker little.
# The call's time bounds it in all.
_BYTES_AT_ONCE = 4 * 2**20
_BYTES_A_SECOND = 2**20


def is_stream(response: ModuleResponse) -> bool:
    """Return whether the module answers in lines."""
    content_type = response.field("content-type") or ""
    if content_type == _PLAIN_JSON:  # nearly always
        return False
    return re.split("[;,]", content_type, maxsplit=1)[0].strip().lower() == CONTENT_TYPE


async def read_last_line(response: ModuleResponse, limit: int) -> bytes:
    """The reply, at most `limit` bytes; what comes before is reported, of the progress in each piece that arrives the latest only.

    Raises `BodyTooLarge`, `BodyUnreadable` and `NoReply`.
    """
    encoding = (response.field("content-encoding") or "identity").strip().lower()
    if encoding != "identity":  # we asked for none
        raise BodyUnreadable("lines of progress must not be compressed")
    lines, pace = _Lines(limit), _Pace()
    while chunk := await response.read_chunk():
        lines.feed(chunk)
        await asyncio.sleep(pace.pause(lines.progress_bytes))
    return lines.finish()


class _Pace:
    """The pace of reading pieces."""

    def __init__(self) -> None:
        self._begun = machine_clock.monotonic()

    def pause(self, taken: int) -> float:
        """Seconds to wait after so many bytes in all; 0 unless they are a flood."""
        due = (taken - _BYTES_AT_ONCE) / _BYTES_A_SECOND
        return max(0.0, self._begun + due - machine_clock.monotonic())


class _Lines:
    """Takes the lines in piece by piece."""

    def __init__(self, limit: int) -> None:
        self.progress_bytes = 0  # and of what else is no reply
        self._limit = limit
        self._rest = bytearray()  # of a line that has not ended
        self._is_passed_over = False  # that line
        self._reply = b""
        self._perhaps = b""  # a long line that begins like progress: the reply, if nothing comes after it

    def feed(self, chunk: bytes) -> None:
        """Take in what was sent next."""
        latest = None
        *whole, rest = chunk.split(b"\n")
        for line in whole:
            self._add(line)
            if (found := self._ended()) is None:
                continue
            if "log" in found:
                _tell_log(found["log"])
            latest = found if "progress" in found else latest
        self._add(rest)
        if latest is not None:
            tell_progress(latest)

    def finish(self) -> bytes:
        """The reply, when all was sent."""
        self._ended()
        if not (self._reply or self._perhaps):
            raise BodyUnreadable("it ends without a reply after its lines of progress")
        return self._reply or self._perhaps

    def _add(self, part: bytes) -> None:
        if len(self._rest) + len(part) > max(self._limit, _LINE_BYTES):
            start = self._rest[:_HEAD] + part[:_HEAD]
            if not self._is_passed_over and not _BEGINS_AS_REPORT.match(start):
                raise BodyTooLarge(self._limit)
            self._is_passed_over = True
        if self._is_passed_over:
            self.progress_bytes += len(part)
        else:
            self._rest += part

    def _ended(self) -> dict[str, Any] | None:
        """A line has ended: progress or a log message, or the reply, after which there must be no other."""
        line, was_passed_over = bytes(self._rest), self._is_passed_over
        self._rest.clear()
        self._is_passed_over = False
        if not was_passed_over and (not line or line.isspace()):
            self.progress_bytes += len(line) + 1
            return None
        if self._reply:
            raise BodyUnreadable("a line that is neither progress, nor a log message, nor the last one")
        self._perhaps = b""
        found = None if was_passed_over or len(line) > _LINE_BYTES else _report_in(line)
        if found is not None or was_passed_over:
            self.progress_bytes += len(line) + 1
        elif len(line) > self._limit:
            raise BodyTooLarge(self._limit)
        elif len(line) > _LINE_BYTES and _BEGINS_AS_REPORT.match(line):
            self.progress_bytes += len(line) + 1
            self._perhaps = line
        else:
            self._reply = line
        return found


def _report_in(line: bytes) -> dict[str, Any] | None:
    """Return the line's fields, if it is progress or a log message; anything else can only be the reply, which is judged as such.

    More is accepted as progress than the form allows: a mistake in displayed information must not cost the call's
    result.
    """
    try:
        fields = json.loads(line.decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or not fields.keys() & _REPORTS or fields.keys() & {"success", "tool_name"}:
        return None
    return fields


def tell_progress(fields: dict[str, Any]) -> None:
    """Report a module's `progress` and `message`. A share that lies a little outside, as rounding makes it, is taken for the nearer end."""
    fraction, message = fields["progress"], fields.get("message")
    is_number = isinstance(fraction, int | float) and not isinstance(fraction, bool)
    known = fraction if is_number and (isinstance(fraction, int) or math.isfinite(fraction)) else None
    report(known, readable(message if isinstance(message, str) else "")[:LONGEST_MESSAGE])


def _tell_log(fields: object) -> None:
    """Pass on what a module logs, where the caller of its call wants that."""
    sink = current_log()
    if sink is not None and (message := log_message_in(fields)) is not None:
        sink.pass_on(message)


_REPORTS = frozenset({"progress", "log"})
_BEGINS_AS_REPORT = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"(?:progress|log)"')
_HEAD = 64  # bytes in which that shows
