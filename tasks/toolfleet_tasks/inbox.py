"""One Redis connection on which all results and news of an agent arrive.

Celery announces a finished task on the channel that is named like its result key. Pub/sub loses what is sent while
nobody listens, so what may have been missed is read: after each reconnect, and for old calls every few seconds.
"""

import asyncio
import contextlib
import json
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from toolfleet_registry.errors import NotPublished
from toolfleet_tasks.cancelling import end, is_wanted

log = structlog.get_logger(__name__)

READY = frozenset({"SUCCESS", "FAILURE", "REVOKED"})
"""Celery's states that nothing follows."""

BEGUN = frozenset({"STARTED", "RETRY"})
"""Those that a worker sets when it takes a call, and before the retry."""

Meta = dict[str, Any]
"""What Celery stores of a task: status, result, traceback and more."""

_RESULT_KEY = "celery-task-meta-"
_BEAT_SECONDS = 5  # how often a quiet connection is asked for a sign of life, and old calls are swept
_SILENCE_SECONDS = 12  # two unanswered questions: the connection is half open
_CLOSE_SECONDS = 1  # for a connection to say goodbye
_LONGEST_BACKOFF = 2.0  # seconds between reconnects; an agent's call waits for them
_SWEEP_CHUNK = 500  # keys a read, so that a sweep never holds Redis up


@dataclass(slots=True)
class Expected:
    """A call that is waited for.

    `listening` is done when nothing sent from now on can be missed; `begun` once a worker was heard to take the call.
    """

    meta: asyncio.Future[Meta]
    listening: asyncio.Future[None]
    begun: bool = False
    since: float = field(default_factory=time.monotonic)


class Inbox:
    """The connection, and who waits for what. Belongs to one event loop.

    `redis` is an ordinary client for reading, `url` that of the same Redis for listening. `news` maps a channel to
    what is called for each message on it, and once after each reconnect, as something may have been missed. `is_connected`: as far as we know.
    """

    def __init__(self, redis: Redis, url: str, *, news: Mapping[str, Callable[[], None]]) -> None:
        self._redis = redis
        # RESP2: answers and messages come as plain lists, one after the other. Without redis-py's own time-outs, as
        # they are made with `asyncio.wait_for`, which loses cancellations on Python 3.11; ours stand around each step.
        self._connections = ConnectionPool.from_url(url, protocol=2, socket_timeout=None, socket_connect_timeout=None)
        self._news = dict(news)
        self._expected: dict[str, Expected] = {}
        self._commands: dict[str, str] = {}  # channel -> SUBSCRIBE or UNSUBSCRIBE, not sent yet
        self._work = asyncio.Event()
        self._heard_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False
        self.is_connected = False

    def start(self) -> None:
        """Begin to listen, and keep at it until `aclose`."""
        self._task = asyncio.create_task(self._listen(), name="toolfleet-inbox")

    async def aclose(self) -> None:
        """Stop listening. Who waits for `listening` gets `NotPublished`, who waits for a result is cancelled."""
        self._is_closing = True
        if self._task is not None:
            await end([self._task])
        for expected in self._expected.values():
            expected.meta.cancel()
            if not expected.listening.done():
                expected.listening.set_exception(NotPublished("the fleet was left"))
                expected.listening.exception()  # seen: there may be nobody who waits
        self._expected.clear()

    def expect(self, call_id: str) -> Expected:
        """Listen for the end of a call. Await `listening` before publishing it; `forget` it in the end."""
        loop = asyncio.get_running_loop()
        expected = self._expected[call_id] = Expected(loop.create_future(), loop.create_future())
        self._order(_RESULT_KEY + call_id, "SUBSCRIBE")
        return expected

    def forget(self, call_id: str) -> None:
        """Listen no longer."""
        expected = self._expected.pop(call_id, None)
        if expected is not None:
            expected.listening.cancel()
            expected.meta.cancel()
            self._order(_RESULT_KEY + call_id, "UNSUBSCRIBE")

    async def peek(self, call_id: str) -> Meta | None:
        """What is stored of a call now. Raises redis-py's errors."""
        return _meta(await self._redis.get(_RESULT_KEY + call_id))

    def _order(self, channel: str, command: str) -> None:
        self._commands[channel] = command
        self._work.set()

    async def _listen(self) -> None:
        backoff = 0.05
        while not self._is_closing:
            connected_at = time.monotonic()
            try:
                await self._session()
            except* (RedisError, OSError) as group:
                log.warning("inbox_disconnected", error=str(group.exceptions[0]))
            except* Exception:  # a defect of ours: an agent that hears no results any more would be worse
                log.exception("inbox_failed")
            if time.monotonic() - connected_at > _SILENCE_SECONDS:
                backoff = 0.05
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, _LONGEST_BACKOFF)

    async def _session(self) -> None:
        """One connection's life: ends by raising a `RedisError` or `OSError`, alone or in a group."""
        connection = self._connections.make_connection()
        try:
            async with asyncio.timeout(_SILENCE_SECONDS):
                await connection.connect()
            self._heard_at = time.monotonic()
            self.is_connected = True
            self._commands = dict.fromkeys(
                [*self._news, *(_RESULT_KEY + call_id for call_id in self._expected)], "SUBSCRIBE"
            )
            self._work.set()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read(connection))
                group.create_task(self._write(connection))
                group.create_task(self._beat(connection))
                group.create_task(self._look())
        finally:
            self.is_connected = False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await connection.disconnect()

    async def _write(self, connection: AbstractConnection) -> None:
        """Send what was ordered since the last time, as one command of each kind."""
        while is_wanted():
            await self._work.wait()
            self._work.clear()
            commands, self._commands = self._commands, {}
            for command in ("SUBSCRIBE", "UNSUBSCRIBE"):
                if channels := [channel for channel, ordered in commands.items() if ordered == command]:
                    await _send(connection, command, *channels)

    async def _read(self, connection: AbstractConnection) -> None:
        while True:
            frame: Any = await connection.read_response(timeout=math.inf)
            self._heard_at = time.monotonic()
            match frame:
                case [b"message", bytes(channel), bytes(content)]:
                    self._hear(channel.decode(), content)
                case [b"subscribe", bytes(channel), _]:
                    self._listens(channel.decode())
                case _:  # the answer to a PING or an UNSUBSCRIBE: a sign of life
                    pass

    def _hear(self, channel: str, content: bytes) -> None:
        if channel in self._news:
            self._news[channel]()
        else:
            self._resolve(channel.removeprefix(_RESULT_KEY), _meta(content))

    def _listens(self, channel: str) -> None:
        if channel in self._news:
            self._news[channel]()
            return
        expected = self._expected.get(channel.removeprefix(_RESULT_KEY))
        if expected is not None and not expected.listening.done():
            expected.listening.set_result(None)

    async def _beat(self, connection: AbstractConnection) -> None:
        """Ask a quiet connection for a sign of life."""
        while is_wanted():
            await asyncio.sleep(_BEAT_SECONDS)
            if time.monotonic() - self._heard_at > _SILENCE_SECONDS:
                raise ConnectionResetError("no sign of life")
            await _send(connection, "PING")

    async def _look(self) -> None:
        """Read the results whose announcement may have been lost: of all calls now, later of the old ones."""
        await self._sweep(list(self._expected))
        while is_wanted():
            await asyncio.sleep(_BEAT_SECONDS)
            old = time.monotonic() - _BEAT_SECONDS
            await self._sweep([call_id for call_id, expected in self._expected.items() if expected.since < old])

    async def _sweep(self, call_ids: list[str]) -> None:
        for start in range(0, len(call_ids), _SWEEP_CHUNK):
            chunk = call_ids[start : start + _SWEEP_CHUNK]
            for call_id, stored in zip(chunk, await self._read_all(chunk), strict=True):
                self._resolve(call_id, _meta(stored))

    def _read_all(self, call_ids: Iterable[str]) -> Awaitable[list[bytes | str | None]]:
        return self._redis.mget([_RESULT_KEY + call_id for call_id in call_ids])

    def _resolve(self, call_id: str, meta: Meta | None) -> None:
        expected = self._expected.get(call_id)
        if expected is None or meta is None:
            return
        expected.begun = expected.begun or meta["status"] in BEGUN
        if meta["status"] in READY and not expected.meta.done():
            expected.meta.set_result(meta)


async def _send(connection: AbstractConnection, *command: str) -> None:
    async with asyncio.timeout(_SILENCE_SECONDS):
        await connection.send_command(*command, check_health=False)


def _meta(stored: bytes | str | None) -> Meta | None:
    """What Celery wrote, or `None` for anything else: a stranger's message must not end the listening."""
    try:
        meta = json.loads(stored or b"null")
    except (ValueError, RecursionError):
        return None
    return meta if isinstance(meta, dict) and isinstance(meta.get("status"), str) else None
