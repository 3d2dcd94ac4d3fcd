"""Pipelines commands and scripts over one Redis connection: all commands of one tick of the loop leave in one write.

It speaks RESP3, so subscriptions and commands share it: announcements come as push frames between the replies. redis-py
makes the connection (TLS, users, Sentinel are its part); this file takes over the established one. It reconnects after
a break, for as long as the connection is open.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sized
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

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

from toolfleet_registry.errors import BrokerUnavailable, FleetUnavailable
from toolfleet_registry.redis.script import Parameters, Script
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.aio import end, is_wanted

log = get_logger(__name__)

T = TypeVar("T")

Part = str | bytes | int | float
Push = list[Any]

_ANSWER_SECONDS = 5.0
_CONNECT_SECONDS = 5.0
_FIRST_BACKOFF, _LONGEST_BACKOFF = 0.05, 2.0  # seconds between attempts; calls wait for them
_WANTED_BACKOFF = 0.25  # the longest, once a caller wants the connection: requests have a second
_PATIENCE_SECONDS = 0.5  # before a command is repeated that Redis cannot take just now
_COMPLAINT_SECONDS = 10.0  # between two log lines about that: a thousand calls may wait for the same thing
_REPAIR_SECONDS = 5.0  # between attempts while the user of Redis lacks a right: an operator will notice and repair it
_BEAT_SECONDS = 5.0  # a line that was silent for so long is asked for a sign of life
_HALF_OPEN_SECONDS = 12.0  # two unanswered questions: the connection is half open
_READ_BYTES = 2**16  # at a time

# Redis takes no writes until an operator frees memory, repairs its disk, or brings its replicas back.
_LASTING = ("OOM", "MISCONF", "NOREPLICAS")
# Redis loads its data, runs a script, or is a replica of a master that is, or soon will be, another server.
_RESTARTING = ("LOADING", "BUSY", "READONLY", "MASTERDOWN")
_PASSING = (*_LASTING, *_RESTARTING, "TRYAGAIN")
_MOVED = ("READONLY", "MASTERDOWN")  # another server is the master by now: Sentinel knows which
_FORBIDDEN = ("NOPERM", "can't run this command")

_CODES: dict[type[object], str] = {
    BusyLoadingError: "LOADING",
    MasterDownError: "MASTERDOWN",
    NoPermissionError: "NOPERM",
    NoScriptError: "NOSCRIPT",
    OutOfMemoryError: "OOM",
    ReadOnlyError: "READONLY",
}

# Redis closes the connection on a value that it finds too large, often before its answer has come. No server can be
# made to refuse one of a mebibyte; a larger one that is lost so often with its connection is taken for the cause.
_HEAVY, _LOSSES = 2**20, 3

_CONFIRMATIONS = {b"subscribe", b"unsubscribe", b"psubscribe", b"punsubscribe"}
_INCOMPLETE = object()


class RedisConnectionLost(ConnectionError):
    """The connection to Redis is away. `sent`: whether Redis may have executed the command."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class RedisConnectionClosed(RedisConnectionLost):
    """The line was closed for good: there is nothing to wait for."""


class ReplyWaiter(Protocol):
    """Gets the reply to one command, unless it is `done`: a future, or what needs no turn of the loop for that."""

    def done(self) -> bool:
        """Return whether it wants no reply any more."""

    def set_result(self, result: Any, /) -> None:
        """Take the reply."""

    def set_exception(self, exception: Any, /) -> None:
        """Take the refusal, or the loss of the connection."""


class PipelinedConnection:
    """The connection, and who waits for which reply. Belongs to one event loop.

    `connect` makes a redis-py connection, not connected yet. `on_connect` is called after each connect, before anything
    else can be sent: subscribe there again. `on_push` gets each push frame, `on_lost` hears of each loss.
    """

    def __init__(
        self, connect: Callable[[], AbstractConnection], *, name: str, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self._connect = connect
        self.name = name
        self._loop = loop or asyncio.get_running_loop()
        self._protocol: RespProtocol | None = None
        self._ready = asyncio.Event()  # also set when the connection is closed, for those who wait
        self._wanted = asyncio.Event()  # a caller has come since the last attempt
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self.is_connected = False
        """Whether the connection is established, as far as is known."""
        self._silent_until = 0.0
        self.on_push: Callable[[Push], None] = _ignore
        self.on_connect: list[Callable[[], None]] = []
        self.on_lost: list[Callable[[], None]] = []

    @property
    def is_closed(self) -> bool:
        """Whether the connection was closed for good."""
        return self._is_closed

    @property
    def heard_at(self) -> float:
        """The time when the server was last heard over this connection, by the loop's clock; long ago while there is none."""
        return float("-inf") if self._protocol is None else self._protocol.heard_at

    def start(self) -> None:
        """Connect, and keep at it until `aclose`."""
        self._task = self._loop.create_task(self._run(), name=f"toolfleet-line-{self.name}")

    async def aclose(self) -> None:
        """Give the connection back; who still waits gets `RedisConnectionLost` or `RedisConnectionClosed`."""
        self._is_closed, self.is_connected = True, False
        if self._task is not None:
            await end([self._task])
        self._ready.set()

    async def connected(self) -> None:
        """Wait until the connection stands; it is tried soon. Has no deadline of its own. Raises `RedisConnectionClosed`."""
        self._wanted.set()
        await self._ready.wait()
        if self._is_closed:
            raise RedisConnectionClosed(f"the line to Redis was closed ({self.name})", sent=True)

    def send(self, *command: Part) -> "asyncio.Future[Any]":
        """Send a command with the others of this tick. The future brings its reply, `ResponseError` or `RedisConnectionLost`."""
        return self._away() if self._protocol is None else self._protocol.send(command)

    def send_built(self, build: Callable[[], tuple[Part, ...]]) -> "asyncio.Future[Any]":
        """Send a command as `send` does, but build it when it leaves, at the end of this tick.

        `build` must not raise.
        """
        return self._away() if self._protocol is None else self._protocol.send_built(build)

    def send_for(self, waiter: "ReplyWaiter", build: Callable[[], tuple[Part, ...]]) -> None:
        """Send a command that is built when it leaves, and have the waiter get the reply in the turn in which it is read.

        It leaves at the end of this tick, or at once if it is the only thing to do. `build` must not raise.
        """
        if self._protocol is None:
            waiter.set_exception(self._loss())
        else:
            self._protocol.send_for(waiter, build)

    def tell(self, *command: Part) -> None:
        """Send SUBSCRIBE or one of its kind, whose replies are push frames, one for each channel named.

        Dropped while the connection is away. A refusal is logged.
        """
        if self._protocol is not None:
            self._protocol.tell(command)

    def tell_built(self, build: Callable[[], tuple[Part, ...]]) -> None:
        """Send a command as `tell` does, but build it when it leaves, at the end of this tick.

        `build` must not raise.
        """
        if self._protocol is not None:
            self._protocol.tell_built(build)

    async def execute(self, *command: Part, losses: int = 0) -> Any:
        """Send a command repeatedly until Redis has answered: for commands that may run twice. Has no deadline.

        Raises `ResponseError`, `RedisConnectionClosed` or `RedisConnectionLost` if the connection is closed meanwhile,
        and `RedisConnectionLost` if `losses` is given and so many connections were lost with the command on its way: it
        may be the reason why Redis closes them.
        """
        while True:
            try:
                return await self.send(*command)
            except RedisConnectionLost as exc:
                losses -= exc.sent
                if self._is_closed or (exc.sent and losses == 0):
                    raise
                await self.connected()
            except ResponseError as exc:
                if not is_one_of(_PASSING, exc):
                    raise
                self._complain(exc)
                await asyncio.sleep(_PATIENCE_SECONDS)

    async def read(self, *command: Part) -> Any:
        """Send a command that changes nothing and may have a large answer. It is not sent again after a loss.

        Redis cuts a connection for an answer that exceeds its limit, and would do so again, together with all other
        commands on it. Raises `RedisConnectionLost` when the connection was lost with the command on its way.
        """
        return await self.execute(*command, losses=1)

    def _away(self) -> "asyncio.Future[Any]":
        lost: asyncio.Future[Any] = self._loop.create_future()
        lost.set_exception(self._loss())
        return lost

    def _loss(self) -> RedisConnectionLost:
        kind = RedisConnectionClosed if self._is_closed else RedisConnectionLost
        return kind(f"no connection to Redis ({self.name})", sent=False)

    def _complain(self, error: ResponseError) -> None:
        if self._loop.time() >= self._silent_until:
            self._silent_until = self._loop.time() + _COMPLAINT_SECONDS
            log.warning("redis_refuses_for_now", line=self.name, error=str(error))

    async def _run(self) -> None:
        backoff = 0.0
        while is_wanted():
            began_at = self._loop.time()
            self._wanted.clear()
            try:
                await self._live(await self._open())
            except (RedisError, OSError, TimeoutError) as exc:
                log.warning("redis_line_away", line=self.name, error=str(exc) or repr(exc))
            except Exception:  # a hook's, or redis-py's: without its connection a worker would wait for ever
                log.exception("redis_line_broken", line=self.name)
            # One that lived for longer than was waited for it has proved the server well: so a connection that is cut again and
            # again stands for at least half of the time, and a server that hangs up at once is tried ever more seldom.
            lived = self._loop.time() - began_at
            backoff = _FIRST_BACKOFF if lived > backoff else min(backoff * 2, _LONGEST_BACKOFF)
            await self._rest(backoff)

    async def _rest(self, seconds: float) -> None:
        """Wait before the next attempt. Those who have waited since before the last one have it made no sooner."""
        await asyncio.sleep(min(seconds, _WANTED_BACKOFF))
        if seconds > _WANTED_BACKOFF:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds - _WANTED_BACKOFF):
                    await self._wanted.wait()

    async def _open(self) -> "RespProtocol":
        connection = self._connect()
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await connection.connect()
                protocol = RespProtocol(connection, self, self._disconnected)
                await protocol.send(("PING",))  # a server that is loading its data takes connections, too
        except BaseException:
            connection._close()  # noqa: SLF001 - its public sibling waits for the server
            raise
        return protocol

    def _disconnected(self) -> None:
        self._ready.clear()
        self.is_connected = False

    async def _live(self, protocol: "RespProtocol") -> None:
        """Serve the connection from the first command to its loss."""
        self._protocol = protocol
        try:
            for hook in self.on_connect:
                hook()
            if not protocol.lost.done():
                self._ready.set()
                self.is_connected = not self._is_closed
            await protocol.watch()
        finally:
            self._protocol = None
            protocol.close("the line was closed")
            for hook in self.on_lost:
                hook()


async def answered(work: Awaitable[T]) -> T:
    """Await the work. Raises `FleetUnavailable` instead of any error of Redis and the connection, or after 5 s."""
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            return await work
    except (RedisError, RedisConnectionLost, TimeoutError) as exc:
        raise FleetUnavailable(f"Redis does not answer: {exc or 'it took too long'}.") from exc


async def run(connection: PipelinedConnection, script: Script, parameters: Parameters, *, reads: bool = False) -> Any:
    """Run the script and return its result, over any connection; one that only `reads` is sent once, as by `PipelinedConnection.read`.

    Raises `ResponseError`, `RedisConnectionLost` and `RedisConnectionClosed`.
    """
    ask = connection.read if reads else connection.execute
    try:
        return await ask("EVALSHA", script.digest, *parameters)
    except ResponseError as exc:
        if not is_unknown_script(exc):
            raise
    return await ask("EVAL", script.text, *parameters)


async def write_durably(connection: PipelinedConnection, command: tuple[Part, ...], *, size: int) -> object:
    """Send a command that writes a value of so many bytes until Redis has answered it; it may run twice.

    Raises `ResponseError` or `RedisConnectionLost` where Redis refuses it for good, and `RedisConnectionClosed`.
    """
    while True:
        try:
            return await connection.execute(*command, losses=_LOSSES if size > _HEAVY else 0)
        except ResponseError as exc:
            await _repaired(exc)


async def run_durably(
    connection: PipelinedConnection, script: Script, parameters: Parameters, *, size: int = 0
) -> object:
    """Run a script as `write_durably` sends a command: until Redis has answered it."""
    while True:
        try:  # not through `write_durably`: this is what a worker does most
            losses = _LOSSES if size > _HEAVY else 0
            return await connection.execute("EVALSHA", script.digest, *parameters, losses=losses)
        except ResponseError as exc:
            if is_unknown_script(exc):
                return await write_durably(connection, ("EVAL", script.text, *parameters), size=size)
            await _repaired(exc)


def is_one_of(codes: tuple[str, ...], error: RedisError | str) -> bool:
    """Return whether Redis refused a command with one of these codes, such as `OOM`.

    redis-py turns some codes into a class and takes them out of the text. Redis before version 7 has a script's errors as
    `ERR Error running script … -OOM …`.
    """
    text = str(error)
    return text.startswith(codes) or any(f": -{code} " in text for code in codes) or _CODES.get(type(error)) in codes


def is_unknown_script(error: ResponseError) -> bool:
    """Return whether Redis has not seen the script that was named, and so has done nothing."""
    return is_one_of(("NOSCRIPT",), error)


def unavailable(reason: RedisError | str) -> BrokerUnavailable | None:
    """Return the error to raise where Redis gave this reason for not taking a call, or None for any other reason.

    Redis gives these reasons before it has written anything: it does not take the script, or not its first write.
    """
    if is_one_of(_LASTING, reason):
        return BrokerUnavailable(str(reason), passes=False)
    if is_one_of(_RESTARTING, reason):
        return BrokerUnavailable(str(reason), passes=True)
    return None


class RespProtocol(asyncio.BufferedProtocol):
    """One connection's life.

    It has a buffer of its own: asyncio's, new with each read, costs ten times as much as its content.
    """

    def __init__(self, connection: AbstractConnection, owner: PipelinedConnection, on_end: Callable[[], None]) -> None:
        # redis-py's reader is not asked any more. Its writer is kept: it would close the transport when collected.
        self._connection = connection
        writer: asyncio.StreamWriter = connection._writer  # type: ignore[assignment] # noqa: SLF001 - it has just connected
        self._transport: asyncio.WriteTransport = writer.transport
        self._transport.set_protocol(self)
        self._loop = asyncio.get_running_loop()
        self._owner = owner
        self._on_end = on_end
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._replies = hiredis.Reader(replyError=ResponseError, notEnoughData=_INCOMPLETE)
        self._pending: deque[ReplyWaiter | _Sent] = deque()
        self._unsent: list[bytes | Callable[[], tuple[Part, ...]]] = []
        self._unsent_pending: list[ReplyWaiter | _Sent] = []
        # What the loop runs next. A loop that does not show it counts as busy.
        self._due: Sized = getattr(self._loop, "_ready", (None,))
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

    def send_for(self, waiter: "ReplyWaiter", build: Callable[[], tuple[Part, ...]]) -> None:
        """Send a command as `PipelinedConnection.send_for` does."""
        if self.lost.done():
            waiter.set_exception(RedisConnectionLost("the connection to Redis was lost", sent=False))
        elif self._pending or self._unsent or self._due:
            self._queue(build, waiter)
        else:  # nothing could join it: a turn of the loop would only delay it
            command = _packed(build)  # first: whoever is pending gets the next reply
            self._pending.append(waiter)
            self._transport.write(command)

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
            if asked_at is not None and now - asked_at >= _HALF_OPEN_SECONDS - _BEAT_SECONDS:
                raise ConnectionResetError(f"no sign of life for {now - self.heard_at:.0f} s")
            if now - self.heard_at >= _BEAT_SECONDS and not self.lost.done():
                asked_at = now if asked_at is None else asked_at
                self.send(("PING",)).add_done_callback(ignored)
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

    def _queue(self, command: bytes | Callable[[], tuple[Part, ...]], waiter: "ReplyWaiter | _Sent") -> None:
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(command)
        self._unsent_pending.append(waiter)

    def _flush(self) -> None:
        if self.lost.done():
            return
        try:
            commands = b"".join([_packed(command) for command in self._unsent])
        except Exception as exc:
            log.exception("command_not_written")
            self.close(f"a command could not be written: {exc!r}")
            return
        self._pending.extend(self._unsent_pending)
        self._unsent_pending.clear()
        self._unsent.clear()
        self._transport.write(commands)

    def _take(self, frame: Any) -> None:
        if isinstance(frame, hiredis.PushNotification):
            if frame[0] in _CONFIRMATIONS and self._pending and isinstance(sent := self._pending[0], _Sent):
                sent.left -= 1
                if not sent.left:
                    self._pending.popleft()
            try:
                self._owner.on_push(frame)
            except Exception:  # the other replies must get through
                log.exception("push_frame_not_taken", line=self._owner.name)
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

    def _end(self, reason: Exception) -> None:
        if self.lost.done():
            return
        self.lost.set_exception(reason)
        self.lost.exception()  # seen: the watch may have ended before
        self._on_end()  # before a waiter learns of it and tries again
        for waiters, sent in ((self._pending, True), (self._unsent_pending, False)):
            for waiter in waiters:
                if not isinstance(waiter, _Sent) and not waiter.done():
                    waiter.set_exception(RedisConnectionLost(f"the connection to Redis was lost: {reason}", sent=sent))
            waiters.clear()


def _ignore(_: Push) -> None:
    """Do nothing: there is no listener."""


@dataclass(slots=True)
class _Sent:
    """A placeholder among the waiting replies: it gets so many push frames, or one refusal."""

    left: int


def _packed(command: bytes | Callable[[], tuple[Part, ...]]) -> bytes:
    if isinstance(command, bytes):
        return command
    packed: bytes = hiredis.pack_command(command())  # type: ignore[arg-type] # as above
    return packed


def ignored(reply: "asyncio.Future[Any]") -> None:
    """Take note of the reply to a command that may get lost: asyncio logs an error that nothing has looked at."""
    if not reply.cancelled():
        reply.exception()


async def _repaired(error: ResponseError) -> None:
    """Wait until it may work again. Raises the error if Redis will never accept it."""
    if not any(text in str(error) for text in _FORBIDDEN):
        raise error
    log.warning("result_forbidden", error=str(error))
    await asyncio.sleep(_REPAIR_SECONDS)
