"""Offers an agent its wake-ups over one loop's connections: readers of a conversation's stream, and inboxes.

Workers say so in the notes of their slots (`presence.py`).
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from toolfleet_registry.contracts.jobs import WakeUp
from toolfleet_registry.errors import MessageRefused
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.script import Script
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import machine_clock, randomness
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.aio import end, is_wanted
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.signing import Seal, seal_of
from toolfleet_tasks.redis_connection import Part, PipelinedConnection, RedisConnectionLost, run_durably, write_durably
from toolfleet_tasks.scripts import SLOTS_COUNT_SECONDS
from toolfleet_tasks.wakeups.events import outcome_line
from toolfleet_tasks.wakeups.inbox import DONE, KEEP, LEAVE, REPORTED, TAKE, CompletionInbox

log = get_logger(__name__)

WAKES_CORE = " core"
"""In the note of a worker whose news of jobs go to a core."""

_EVERY_SECONDS = 20.0
_PATIENCE_SECONDS = 1.0

_GROUP = "readers"

_NOTHING, _LOST = 0, 2  # of what `TAKE` returns

_BLOCK_MS = 4_000  # less than the connection's patience with a silent server
_KEEP_SECONDS = 10.0
_DEAD_AFTER_MS = 35_000  # a reader without a sign of life for three times as long
_LEAVE_SECONDS = 2.0
_PAUSE_SECONDS = 1.0  # after an error of Redis


class CoreWatch:
    """One agent's, over the `connection` to the Redis of the results. Says it once, in the log."""

    def __init__(self, connection: PipelinedConnection, keys: Keys) -> None:
        self._connection = connection
        self._lanes = [keys.slots(lane) for lane in ("fast", "slow")]
        self._next_at = float("-inf")
        self._is_said = False

    async def check(self) -> None:
        """Check whether there is such a worker now, for a reader that waits in vain: now and then, and not after it was logged."""
        if self._is_said or machine_clock.monotonic() < self._next_at:
            return
        self._next_at = machine_clock.monotonic() + _EVERY_SECONDS
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                workers = await self._workers()
        except (TimeoutError, RedisConnectionLost, ResponseError):  # it is looked again
            return
        if workers and not self._is_said:
            self._is_said = True
            log.warning("completions_go_to_core", workers=workers, setting="TOOLFLEET_CORE_URL")

    async def _workers(self) -> list[str]:
        """The names of live workers that wake a core."""
        now = int((await self._connection.execute("TIME"))[0])
        since = now - SLOTS_COUNT_SECONDS
        found = [await self._connection.execute("ZRANGEBYSCORE", lane, since, "+inf") for lane in self._lanes]
        words = [note.decode(errors="replace").split() for notes in found for note in notes]
        return sorted({note[1] for note in words if WAKES_CORE.strip() in note[2:]})


@dataclass(frozen=True, slots=True)
class _Entry:
    stream: bytes
    entry_id: bytes
    wake: WakeUp


class Reader:
    """One reader of a conversation's streams.

    `connection` is shared with others; `connect` makes a connection of its own, which it blocks.

    `check_core` is called while there is nothing to read, and `on_lost` with how many unread entries were trimmed.
    """

    def __init__(
        self,
        keys: Keys,
        conversation_id: str,
        *,
        seal: Seal,
        connection: PipelinedConnection,
        connect: Callable[[], PipelinedConnection],
        check_core: Callable[[], Awaitable[None]],
        consumer: str | None = None,
        on_lost: Callable[[int], object] | None = None,
    ) -> None:
        self._all = {"stream": keys.completions(conversation_id), "users": keys.completion_users(conversation_id)}
        self._lost_key = keys.completions_lost(conversation_id)
        self._job_key = keys.job
        self._on_lost = on_lost
        self._turns = itertools.count()
        self._conversation_id = conversation_id
        self._seal = seal
        self._connection = connection
        self._connect = connect
        self._check_core = check_core
        self._consumer = consumer or randomness.uuid4().hex

    async def read(self) -> AsyncGenerator[WakeUp]:
        """Yield the wake-ups, for ever; one is removed from the stream when the next is asked for.

        Ends with the connections.
        """
        blocking = self._connect()
        try:
            while True:
                entry = await self._next(blocking)
                async with self._kept(entry):
                    yield entry.wake
                await self._done(entry.stream, entry.entry_id, entry.wake)
        except RedisConnectionLost:  # for good: the fleet was left
            return
        finally:
            await blocking.aclose()
            await self._leave()

    async def _next(self, blocking: PipelinedConnection) -> _Entry:
        while True:
            what, *found = await self._take()
            if what == _NOTHING:
                await self._wait_for_more(blocking, *found)
                continue
            if what == _LOST:
                await self._tell_lost(*found)
                continue
            stream, entry_id, fields = found
            body = dict(zip(fields[::2], fields[1::2], strict=False)).get(b"body", b"")
            try:
                return _Entry(stream, entry_id, self._read(body))
            except (
                MessageRefused
            ) as exc:  # foreign, or our key is not the fleet's: it stays in the stream, for inspection
                log.error("completion_refused", entry_id=entry_id.decode(), reason=str(exc))  # noqa: TRY400
                await write_durably(self._connection, ("XACK", stream, _GROUP, entry_id), size=0)
            except ValueError as exc:  # of another version: it will not get better
                log.error("completion_unreadable", entry_id=entry_id.decode(), error=type(exc).__name__)  # noqa: TRY400
                await self._done(stream, entry_id, None)

    def _read(self, body: bytes) -> WakeUp:
        wake = json_text.load(WakeUp, self._seal.read(body.decode()))
        if wake.conversation_id != self._conversation_id:
            raise MessageRefused("The news are those of another conversation.")
        return wake

    async def _take(self) -> Any:
        while True:
            try:
                turn, lost, names, ids = next(self._turns), self._lost_key, list[bytes](), list[bytes]()
                known: dict[str, Part] = {
                    **self._all,
                    "lost": lost,
                    "consumer": self._consumer,
                    "idle_ms": _DEAD_AFTER_MS,
                    "turn": turn,
                }
                for page in itertools.count():
                    what, *found = await self._run(TAKE, **known, page=page)
                    if what != _NOTHING:
                        return [what, *found]
                    names += found[0]
                    ids += found[1]
                    if not found[2]:
                        return [what, names, ids]
            except ResponseError as exc:  # the stream went just then, or is none
                log.warning("completions_not_read", error=str(exc))
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _tell_lost(self, key: bytes, said: bytes) -> None:
        """Say once how many entries were trimmed: again if this process dies before it is written down."""
        count = int(said.partition(b" ")[0])
        log.warning("completions_lost", conversation_id=self._conversation_id, count=count)
        if self._on_lost is not None:
            self._on_lost(count)
        await run_durably(self._connection, REPORTED, REPORTED.parameters(lost=key, said=said))

    async def _wait_for_more(self, blocking: PipelinedConnection, streams: list[bytes], after: list[bytes]) -> None:
        """Return once there is an entry after these, or when entries of dead readers are due to be checked."""
        await self._check_core()
        try:
            await blocking.execute("XREAD", "COUNT", 1, "BLOCK", _BLOCK_MS, "STREAMS", *streams, *after)
        except ResponseError as exc:
            log.warning("completions_not_awaited", error=str(exc))
            await asyncio.sleep(_PAUSE_SECONDS)

    @asynccontextmanager
    async def _kept(self, entry: _Entry) -> AsyncGenerator[None]:
        """Keep this reader marked as alive while it processes an entry."""
        keeping = asyncio.create_task(self._keep(entry), name="toolfleet-completion")
        try:
            yield
        finally:
            await end([keeping])

    async def _keep(self, entry: _Entry) -> None:
        while is_wanted():
            await asyncio.sleep(_KEEP_SECONDS)
            try:
                await self._run(KEEP, stream=entry.stream, consumer=self._consumer, entry_id=entry.entry_id)
            except RedisConnectionLost:  # as above
                return
            except ResponseError as exc:
                log.warning("completion_not_kept", error=str(exc))

    async def _leave(self) -> None:
        try:
            async with asyncio.timeout(_LEAVE_SECONDS):
                await self._run(LEAVE, **self._all, consumer=self._consumer)
        except (TimeoutError, RedisConnectionLost, ResponseError):  # it is taken over, a little later
            log.info("completions_left_behind")

    async def _done(self, stream: bytes, entry_id: bytes, wake: WakeUp | None) -> None:
        """Take an entry out of its stream; its job keeps that it was read."""
        job = stream if wake is None else self._job_key(wake.job_id)
        outcome = "" if wake is None else outcome_line(wake.wake_id, "read", f"reader {self._consumer}")
        parameters = DONE.parameters(stream=stream, job=job, group=_GROUP, entry_id=entry_id, outcome=outcome)
        await run_durably(self._connection, DONE, parameters)

    async def _run(self, script: Script, **args: Part) -> Any:
        return await run_durably(self._connection, script, script.parameters(group=_GROUP, **args))


class WakeupService:
    """`connect` makes a connection of that name, which is not started yet."""

    def __init__(
        self, connection: PipelinedConnection, connect: Callable[[str, str], PipelinedConnection], settings: Settings
    ) -> None:
        self._seal = seal_of(settings, purpose="job")
        self._connection = connection
        self._connect = connect
        self._settings = settings
        self._connections: list[PipelinedConnection] = []
        self._watch = CoreWatch(connection, settings.keys)

    def reader(
        self, conversation_id: str, consumer: str | None, on_lost: Callable[[int], object] | None = None
    ) -> Reader:
        """Return a reader of the conversation's wake-ups; many may read concurrently."""
        return Reader(
            self._settings.keys,
            conversation_id,
            seal=self._seal,
            connection=self._connection,
            connect=self._own_connection,
            check_core=self._watch.check,
            consumer=consumer,
            on_lost=on_lost,
        )

    def inbox(self, conversation_id: str, user_id: str | None) -> CompletionInbox:
        """The user's news of the conversation, to be read and confirmed; needs no connection of its own."""
        return CompletionInbox(
            self._settings.keys,
            conversation_id,
            user_id,
            seal=self._seal,
            connection=self._connection,
            check_core=self._watch.check,
        )

    async def aclose(self) -> None:
        """End all readers."""
        for connection in self._connections:
            await connection.aclose()

    def _own_connection(self) -> PipelinedConnection:
        self._connections = [connection for connection in self._connections if not connection.is_closed]
        connection = self._connect(str(self._settings.redis_url), "completions")
        self._connections.append(connection)
        connection.start()
        return connection
