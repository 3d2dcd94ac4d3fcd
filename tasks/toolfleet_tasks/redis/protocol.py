"""Speaks RESP over one socket, from the moment it stands to its loss: matches replies to those who wait, and tells refusals apart.

Takes a connection of redis-py's over, with RESP3 negotiated, and never gives it back.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hiredis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import (
    BusyLoadingError,
    MasterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from toolfleet_registry.errors import BrokerUnavailable
from toolfleet_registry.system.loggers import get_logger

log = get_logger(__name__)

# Redis takes no writes until an operator frees memory, repairs its disk, or brings its replicas back.
_LASTING = ("OOM", "MISCONF", "NOREPLICAS")
# Redis loads its data, runs a script, or is a replica of a master that is, or soon will be, another server.
_PASSING = ("LOADING", "BUSY", "READONLY", "MASTERDOWN")

_CODES: dict[type[object], str] = {
    BusyLoadingError: "LOADING",
    MasterDownError: "MASTERDOWN",
    NoPermissionError: "NOPERM",
    NoScriptError: "NOSCRIPT",
    OutOfMemoryError: "OOM",
    ReadOnlyError: "READONLY",
}

Part = str | bytes | int | float
Push = list[Any]

_READ_BYTES = 2**16  # at a time
_BEAT_SECONDS = 5.0  # a line that was silent for so long is asked for a sign of life
_SILENCE_SECONDS = 12.0  # two unanswered questions: the connection is half open
_MOVED = ("READONLY", "MASTERDOWN")  # another server is the master by now: Sentinel knows which
_CONFIRMATIONS = {b"subscribe", b"unsubscribe", b"psubscribe", b"punsubscribe"}
_INCOMPLETE = object()


def is_one_of(codes: tuple[str, ...], error: RedisError | str) -> bool:
    """Return whether Redis refused a command with one of these codes, such as `OOM`.

    redis-py turns some codes into a class and takes them out of the text. Redis before version 7 has a script's errors as
    `ERR Error running script … -OOM …`.
    """
    text = str(error)
    return text.startswith(codes) or any(f": -{code} " in text for code in codes) or _CODES.get(type(error)) in codes


def unavailable(reason: RedisError | str) -> BrokerUnavailable | None:
    """Return the error to raise where Redis gave this reason for not taking a call, or None for any other reason.

    Redis gives these reasons before it has written anything: it does not take the script, or not its first write.
    """
    if is_one_of(_LASTING, reason):
        return BrokerUnavailable(str(reason), passes=False)
    if is_one_of(_PASSING, reason):
        return BrokerUnavailable(str(reason), passes=True)
    return None


class RedisConnectionLost(ConnectionError):
    """The connection to Redis is away. `sent`: whether Redis may have executed the command."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class RedisConnectionClosed(RedisConnectionLost):
    """The line was closed for good: there is nothing to wait for."""


class RespProtocol(asyncio.BufferedProtocol):
    """One connection's life.

    It has a buffer of its own: asyncio's, new with each read, costs ten times as much as its content.
    """

    def __init__(
        self, connection: AbstractConnection, on_push: Callable[[Push], None], on_end: Callable[[], None]
    ) -> None:
        # redis-py's reader is not asked any more. Its writer is kept: it would close the transport when collected.
        self._connection = connection
        writer: asyncio.StreamWriter = connection._writer  # type: ignore[assignment] # noqa: SLF001 - it has just connected
        self._transport: asyncio.WriteTransport = writer.transport
        self._transport.set_protocol(self)
        self._loop = asyncio.get_running_loop()
        self._on_push = on_push
        self._on_end = on_end
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._replies = hiredis.Reader(replyError=ResponseError, notEnoughData=_INCOMPLETE)
        self._pending: deque[asyncio.Future[Any] | _Sent] = deque()
        self._unsent: list[bytes | Callable[[], tuple[Part, ...]]] = []
        self._unsent_pending: list[asyncio.Future[Any] | _Sent] = []
        self.heard_at = self._loop.time()
        self.lost: asyncio.Future[None] = self._loop.create_future()

    def send(self, command: tuple[Part, ...]) -> "asyncio.Future[Any]":
        """Queue a command for the next write; the future brings its reply."""
        reply: asyncio.Future[Any] = self._loop.create_future()
        if self.lost.done():
            reply.set_exception(RedisConnectionLost("the connection to Redis was lost", sent=False))
        else:
            self._queue(hiredis.pack_command(command), reply)  # type: ignore[arg-type] # its stub says a tuple of one
        return reply

    def send_built(self, build: Callable[[], tuple[Part, ...]]) -> "asyncio.Future[Any]":
        """Send a command as `send` does, but build it when the write is made. `build` must not raise."""
        reply: asyncio.Future[Any] = self._loop.create_future()
        if self.lost.done():
            reply.set_exception(RedisConnectionLost("the connection to Redis was lost", sent=False))
        else:
            self._queue(build, reply)
        return reply

    def tell(self, command: tuple[Part, ...]) -> None:
        """Queue a command that push frames answer."""
        if not self.lost.done():
            self._queue(hiredis.pack_command(command), _Sent(len(command) - 1))  # type: ignore[arg-type] # as above

    def tell_built(self, build: Callable[[], tuple[Part, ...]]) -> None:
        """Send a command as `tell` does, but build it when the write is made. `build` must not raise."""
        sent = _Sent(0)

        def counted() -> tuple[Part, ...]:
            command = build()
            sent.left = len(command) - 1
            return command

        if not self.lost.done():
            self._queue(counted, sent)

    async def watch(self) -> None:
        """Return never; raise when the connection is lost, or silent for too long although it was asked."""
        asked_at: float | None = None
        while not self.lost.done():
            await asyncio.wait([self.lost], timeout=_BEAT_SECONDS)
            now = self._loop.time()
            if asked_at is not None and self.heard_at >= asked_at:
                asked_at = None
            # Not by the silence alone: it may have been this process that was stopped, or the loop.
            if asked_at is not None and now - asked_at >= _SILENCE_SECONDS - _BEAT_SECONDS:
                raise ConnectionResetError(f"no sign of life for {now - self.heard_at:.0f} s")
            if now - self.heard_at >= _BEAT_SECONDS and not self.lost.done():
                asked_at = now if asked_at is None else asked_at
                self.send(("PING",)).add_done_callback(_seen)
        self.lost.result()

    def close(self, reason: str) -> None:
        """Cut the connection."""
        self._transport.abort()
        self._connection._close()  # noqa: SLF001 - or redis-py warns of it
        self._end(ConnectionResetError(reason))

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer. Called by asyncio."""
        del sizehint
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Process the received bytes. Called by asyncio."""
        self.heard_at = self._loop.time()
        try:
            self._replies.feed(self._buffer[:nbytes])  # type: ignore[arg-type] # its stub knows no buffers
            while not self.lost.done() and (frame := self._replies.gets()) is not _INCOMPLETE:
                self._take(frame)
        except hiredis.ProtocolError as exc:
            self.close(f"Redis cannot be understood: {exc}")

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection. Called by asyncio."""
        self._end(exc or ConnectionResetError("the server closed the connection"))

    def _queue(self, command: bytes | Callable[[], tuple[Part, ...]], waiter: "asyncio.Future[Any] | _Sent") -> None:
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(command)
        self._unsent_pending.append(waiter)

    def _flush(self) -> None:
        if self.lost.done():
            return
        self._pending.extend(self._unsent_pending)
        self._unsent_pending.clear()
        self._transport.write(b"".join([_packed(command) for command in self._unsent]))
        self._unsent.clear()

    def _take(self, frame: Any) -> None:
        if isinstance(frame, hiredis.PushNotification):
            if frame[0] in _CONFIRMATIONS:
                self._confirm()
            self._on_push(frame)
            return
        if not self._pending:
            self.close(f"Redis says something unasked: {str(frame)[:100]}")
            return
        reply = self._pending.popleft()
        if isinstance(reply, _Sent):
            log.error("subscription_refused", error=str(frame))
        elif not reply.done():  # else its caller has gone
            if isinstance(frame, ResponseError):
                reply.set_exception(frame)
            else:
                reply.set_result(frame)
        if isinstance(frame, ResponseError) and is_one_of(_MOVED, frame):
            self.close(str(frame))

    def _confirm(self) -> None:
        if self._pending and isinstance(sent := self._pending[0], _Sent):
            sent.left -= 1
            if not sent.left:
                self._pending.popleft()

    def _end(self, reason: Exception) -> None:
        if self.lost.done():
            return
        self.lost.set_exception(reason)
        self.lost.exception()  # seen: the watch may have ended before
        self._on_end()  # before a waiter learns of it and tries again
        for waiters, sent in ((self._pending, True), (self._unsent_pending, False)):
            for waiter in waiters:
                if isinstance(waiter, asyncio.Future) and not waiter.done():
                    waiter.set_exception(RedisConnectionLost(f"the connection to Redis was lost: {reason}", sent=sent))
            waiters.clear()


@dataclass(slots=True)
class _Sent:
    """A placeholder among the waiting replies: it gets so many push frames, or one refusal."""

    left: int


def _packed(command: bytes | Callable[[], tuple[Part, ...]]) -> bytes:
    if isinstance(command, bytes):
        return command
    packed: bytes = hiredis.pack_command(command())  # type: ignore[arg-type] # as above
    return packed


def _seen(reply: "asyncio.Future[Any]") -> None:
    if not reply.cancelled():
        reply.exception()
