"""Pipelines commands and scripts over one Redis connection: all commands of one tick of the loop leave in one write.

It speaks RESP3, so subscriptions and commands share it: announcements come as push frames between the replies. redis-py
makes the connection (TLS, users, Sentinel are its part); this file takes over the established one. It reconnects after
a break, for as long as the connection is open.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError, ResponseError

from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.redis.script import Parameters, Script
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.aio import end, is_wanted
from toolfleet_tasks.redis.protocol import (
    Part,
    Push,
    RedisConnectionClosed,
    RedisConnectionLost,
    RespProtocol,
    is_one_of,
)

log = get_logger(__name__)

T = TypeVar("T")

_SECONDS = 5.0

__all__ = ["Part", "PipelinedConnection", "Push", "RedisConnectionClosed", "RedisConnectionLost"]

_CONNECT_SECONDS = 5.0

_FIRST_BACKOFF, _LONGEST_BACKOFF = 0.05, 2.0  # seconds between attempts; calls wait for them

_WANTED_BACKOFF = 0.25  # the longest, once a caller wants the connection: requests have a second

_PATIENCE_SECONDS = 0.5  # before a command is repeated that Redis cannot take just now

_SILENCE_SECONDS = 10.0  # between two log lines about that: a thousand calls may wait for the same thing

_PASSING = ("LOADING", "READONLY", "MASTERDOWN", "OOM", "MISCONF", "BUSY", "NOREPLICAS", "TRYAGAIN")


async def answered(work: Awaitable[T]) -> T:
    """Await the work. Raises `FleetUnavailable` instead of any error of Redis and the connection, or after 5 s."""
    try:
        async with asyncio.timeout(_SECONDS):
            return await work
    except (RedisError, RedisConnectionLost, TimeoutError) as exc:
        raise FleetUnavailable(f"Redis does not answer: {exc or 'it took too long'}.") from exc


class PipelinedConnection:
    """The connection, and who waits for which reply. Belongs to one event loop.

    `connect` makes a redis-py connection, not connected yet. `on_connect` is called after each connect, before anything
    else can be sent: subscribe there again. `on_push` gets each push frame, `on_lost` hears of each loss.
    """

    def __init__(
        self, connect: Callable[[], AbstractConnection], *, name: str, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self._connect = connect
        self._name = name
        self._loop = loop or asyncio.get_running_loop()
        self._protocol: RespProtocol | None = None
        self._ready = asyncio.Event()  # also set when the connection is closed, for those who wait
        self._wanted = asyncio.Event()  # a caller has come since the last attempt
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._silent_until = 0.0
        self.on_push: Callable[[Push], None] = _ignore
        self.on_connect: list[Callable[[], None]] = []
        self.on_lost: list[Callable[[], None]] = []

    @property
    def is_connected(self) -> bool:
        """Whether the connection is established, as far as is known."""
        return self._ready.is_set() and not self._is_closed

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
        self._task = self._loop.create_task(self._run(), name=f"toolfleet-line-{self._name}")

    async def aclose(self) -> None:
        """Give the connection back; who still waits gets `RedisConnectionLost` or `RedisConnectionClosed`."""
        self._is_closed = True
        if self._task is not None:
            await end([self._task])
        self._ready.set()

    async def connected(self) -> None:
        """Wait until the connection stands; it is tried soon. Has no deadline of its own. Raises `RedisConnectionClosed`."""
        self._wanted.set()
        await self._ready.wait()
        if self._is_closed:
            raise RedisConnectionClosed(f"the line to Redis was closed ({self._name})", sent=True)

    def send(self, *command: Part) -> "asyncio.Future[Any]":
        """Send a command with the others of this tick. The future brings its reply, `ResponseError` or `RedisConnectionLost`."""
        return self._away() if self._protocol is None else self._protocol.send(command)

    def send_built(self, build: Callable[[], tuple[Part, ...]]) -> "asyncio.Future[Any]":
        """Send a command as `send` does, but build it when it leaves, at the end of this tick.

        `build` must not raise.
        """
        return self._away() if self._protocol is None else self._protocol.send_built(build)

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
        kind = RedisConnectionClosed if self._is_closed else RedisConnectionLost
        lost.set_exception(kind(f"no connection to Redis ({self._name})", sent=False))
        return lost

    def _complain(self, error: ResponseError) -> None:
        if self._loop.time() >= self._silent_until:
            self._silent_until = self._loop.time() + _SILENCE_SECONDS
            log.warning("redis_refuses_for_now", line=self._name, error=str(error))

    async def _run(self) -> None:
        backoff = 0.0
        while is_wanted():
            began_at = self._loop.time()
            self._wanted.clear()
            try:
                await self._live(await self._open())
            except (RedisError, OSError, TimeoutError) as exc:
                log.warning("redis_line_away", line=self._name, error=str(exc) or repr(exc))
            except Exception:  # a hook's, or redis-py's: without its connection a worker would wait for ever
                log.exception("redis_line_broken", line=self._name)
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
                protocol = RespProtocol(connection, self._hear, self._ready.clear)
                await protocol.send(("PING",))  # a server that is loading its data takes connections, too
        except BaseException:
            connection._close()  # noqa: SLF001 - its public sibling waits for the server
            raise
        return protocol

    def _hear(self, frame: Push) -> None:
        try:
            self.on_push(frame)
        except Exception:  # the other replies must get through
            log.exception("push_frame_not_taken", line=self._name)

    async def _live(self, protocol: "RespProtocol") -> None:
        """Serve the connection from the first command to its loss."""
        self._protocol = protocol
        try:
            for hook in self.on_connect:
                hook()
            if not protocol.lost.done():
                self._ready.set()
            await protocol.watch()
        finally:
            self._protocol = None
            protocol.close("the line was closed")
            for hook in self.on_lost:
                hook()


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


def is_unknown_script(error: ResponseError) -> bool:
    """Return whether Redis has not seen the script that was named, and so has done nothing."""
    return is_one_of(("NOSCRIPT",), error)


def _ignore(_: Push) -> None:
    """Do nothing: there is no listener."""
