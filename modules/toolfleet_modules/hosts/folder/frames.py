"""Sends messages between a host and the process of its tools over a socket.

A message has the lengths of its head and its body, the head in JSON, and the body in bytes. The first one says which files
the process imports.
"""

import asyncio
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

PACKAGE = "_toolfleet_tools"
"""The package of the files, as in `_toolfleet_tools.owls`; files import each other with `from . import owls`."""

Head: TypeAlias = dict[str, Any]
OnFrame: TypeAlias = Callable[[Head, bytes], None]

_LENGTHS = struct.Struct("!II")  # of the head and of the body, in bytes
_MOST_BYTES = 64 * 2**20  # of one message; a process that says that it sends more is not to be believed


@dataclass(frozen=True, slots=True)
class SourceText:
    """A file's path and its text."""

    path: str
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The files that a process can import, by their names without `.py`, and those that it imports now.

    A result over `result_bytes` is refused.

    `packages` is a folder of the files' packages. `named` are functions by dotted paths, which Python looks for in
    `python_path`, too. `exception_text`: models read the texts of exceptions.
    """

    module: str
    files: Mapping[str, SourceText]
    stems: Sequence[str]
    threads: int
    result_bytes: int
    packages: str | None = None
    named: Sequence[str] = ()
    python_path: Sequence[str] = ()
    exception_text: bool = False


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """The tools of each file, and the faults: `(kind, message, line)`."""

    offered: Mapping[str, Sequence[Mapping[str, Any]]]
    faults: Mapping[str, tuple[str, str, int | None]]


class FramesClosed(Exception):
    """The connection is closed."""


class Frames(asyncio.Protocol):
    """One end of the socket. `on_frame` takes what comes, in its order; `on_lost` is called once, at the end.

    What the other end sends is checked for its lengths and that heads are JSON objects: with anything else, the socket is closed.
    """

    def __init__(self, on_frame: OnFrame, on_lost: Callable[[], None]) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._buffer = bytearray()
        self._transport: asyncio.WriteTransport | None = None

    def send(self, head: Head, body: bytes = b"") -> None:
        """Send a message; it waits in memory until the other end reads. Raises `FramesClosed`."""
        if self._transport is None or self._transport.is_closing():
            raise FramesClosed
        written = json.dumps(head, separators=(",", ":")).encode()
        self._transport.write(b"".join((_LENGTHS.pack(len(written), len(body)), written, body)))

    def close(self) -> None:
        """Close the socket; `on_lost` follows."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the reader."""
        del exc
        self._transport = None
        self._on_lost()

    def data_received(self, data: bytes) -> None:
        """Take every message that is complete."""
        self._buffer += data
        at = 0
        try:
            while (end := self._end_of_next(at)) is not None:
                head_bytes, _ = _LENGTHS.unpack_from(self._buffer, at)
                begin = at + _LENGTHS.size
                head = _head_in(self._buffer[begin : begin + head_bytes])
                self._on_frame(head, bytes(self._buffer[begin + head_bytes : end]))
                at = end
        except ValueError:
            self.close()
            at = len(self._buffer)
        del self._buffer[:at]

    def _end_of_next(self, at: int) -> int | None:
        if len(self._buffer) - at < _LENGTHS.size:
            return None
        head_bytes, body_bytes = _LENGTHS.unpack_from(self._buffer, at)
        if head_bytes + body_bytes > _MOST_BYTES:
            raise ValueError("too long")
        end = at + _LENGTHS.size + int(head_bytes) + int(body_bytes)
        return end if len(self._buffer) >= end else None


def _head_in(data: bytearray) -> Head:
    """Parse a head. Raises `ValueError` if it is no object."""
    head = json.loads(data)
    if not isinstance(head, dict):
        raise ValueError("a head is an object")
    return head
