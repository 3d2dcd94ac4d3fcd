"""Gives an agent the wake-ups of its conversations: to readers, each once, or to a user's inbox, until the user confirms each.

Wake-ups are entries of a stream (`id`: the wake's, `body`: JSON) for each user of a conversation, with all readers in
one consumer group. Older processes write all users' to one stream. A reader has at most one entry at a time: its other
pending entries are those that it was given and never received, or that it left behind when it died. A read entry is
removed.

Of entries that were trimmed before they were read, their number is kept, and the first entry that was left: `<number>
<id>`.

Readers and inboxes share the streams: an entry that one of them is done with is not given to the other. An inbox moves what older
processes have written for all users of the conversation into the user's stream when it is read.
"""

import asyncio
import itertools
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from redis.exceptions import ResponseError

from toolfleet_registry.contracts.jobs import WakeUp
from toolfleet_registry.errors import MessageRefused
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.script import Parameters, Script
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import machine_clock, randomness
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.aio import end, is_wanted
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.signing import seal_of
from toolfleet_tasks.redis_connection import (
    Part,
    PipelinedConnection,
    RedisConnectionLost,
    answered,
    run,
    run_durably,
    write_durably,
)
from toolfleet_tasks.scripts import SLOTS_COUNT_SECONDS, WAKES_CORE, script
from toolfleet_tasks.wakeups.events import outcome_line

TAKE = script("wakeups/take")
"""Returns [1, stream, entry id, fields], or [2, key, value] for entries that were trimmed, or [0, streams, the ids after which there will
be more in them]."""

KEEP = script("wakeups/keep")
"""Returns 0 if another reader has the entry, or none."""

DONE, LEAVE = script("wakeups/read"), script("wakeups/leave")

REPORTED = script("wakeups/reported")
"""Returns 1 if it was not reported before, and nothing was trimmed since."""

CARRY = script("wakeups/carry")
"""Returns 1 if the entry was there."""


_Fields: TypeAlias = tuple[str, dict[bytes, bytes]]
Entry: TypeAlias = tuple[str, WakeUp | int]
"""A wake-up, and its id in the conversation; or how many were trimmed before they were read, and the id that confirms this."""

COMPLETIONS_KEPT_SECONDS: Final = 7 * 86_400
"""How long wake-ups wait for an agent without HTTP, from the last one on: as long as their jobs can be looked at."""

_GROUP = "readers"  # which takes the entries of a stream

log = get_logger(__name__)

_PAGE = 100  # entries at once, of about a thousand that are kept
_EVERY_SECONDS = 0.5  # between two questions: a thousand readers that wait are nothing to Redis
_MOST_IN_A_MOMENT = 10**18  # entries of one millisecond
_CORE_SECONDS = 20.0  # between two looks whether workers wake a core
_PATIENCE_SECONDS = 1.0
_NOTHING, _LOST = 0, 2  # of what `TAKE` returns
_BLOCK_MS = 4_000  # less than the connection's patience with a silent server
_KEEP_SECONDS = 10.0
_DEAD_AFTER_MS = 35_000  # a reader without a sign of life for three times as long
_LEAVE_SECONDS = 2.0
_PAUSE_SECONDS = 1.0  # after an error of Redis
_ENTRY_ID = re.compile(r"(0|[1-9][0-9]{0,18})-(0|[1-9][0-9]{0,18})", re.ASCII)


class _WakesOf:
    """The wake-ups of one conversation."""

    def __init__(self, service: "WakeupService", conversation_id: str) -> None:
        self._conversation_id = conversation_id
        self._keys, self._seal = service.keys, service.seal
        self._connection, self._check_core = service.connection, service.watch.check

    def _opened(self, body: bytes) -> WakeUp:
        """Parse an entry's body. Raises `MessageRefused` for one that the fleet has not written for this conversation, or `ValueError`."""
        wake = json_text.load(WakeUp, self._seal.read(body.decode()))
        if wake.conversation_id != self._conversation_id:
            raise MessageRefused("The wake-up is of another conversation.")
        return wake

    def _done_by(self, by: str, stream: Part, entry_id: Part, wake: WakeUp | None) -> Parameters:
        """Return the parameters that take an entry out of its stream; its job keeps that it was read."""
        job = stream if wake is None else self._keys.job(wake.job_id)
        outcome = "" if wake is None else outcome_line(wake.wake_id, "read", by)
        return DONE.parameters(stream=stream, job=job, group=_GROUP, entry_id=entry_id, outcome=outcome)


class CompletionInbox(_WakesOf):
    """The wake-ups of one user's ended jobs in a conversation; others' are not shown, and cannot be confirmed."""

    def __init__(self, service: "WakeupService", conversation_id: str, user_id: str | None) -> None:
        super().__init__(service, conversation_id)
        self._old = self._keys.completions(conversation_id)
        self._stream = self._keys.completions_of(conversation_id, user_id)
        self._lost_key = self._keys.completions_lost(conversation_id) + self._stream.removeprefix(self._old)
        self._user_id = user_id

    async def follow(self) -> AsyncGenerator[Entry]:
        """All that are not confirmed, in order, and then those that come, for ever, also over losses of Redis. Ends when the fleet is left."""
        after = carried = "0-0"
        reported: _Lost | None = None
        while is_wanted():
            page, lost = list[_Fields](), reported
            try:
                carried = await self._carry(carried)
                page, lost = await asyncio.gather(self._read(self._stream, f"({after}", "+"), self._lost())
            except RedisConnectionLost:  # for good: the fleet was left
                return
            except ResponseError as exc:
                log.warning("completions_not_read", error=str(exc))
            if lost is not None and lost != reported and _order(lost.last) > _order(after):
                yield lost.last, lost.count - (0 if reported is None or reported.count > lost.count else reported.count)
            reported = lost
            if not page:
                await self._check_core()
                await asyncio.sleep(_EVERY_SECONDS)
            for entry_id, fields in page:
                after = entry_id
                if (wake := self._own(fields)) is not None:
                    yield entry_id, wake

    async def confirm(self, entry_id: str) -> bool:
        """Have one not shown again. Returns whether it was there. Raises `FleetUnavailable` after 5 s without an answer."""
        return await answered(self._confirm_one(entry_id))

    async def confirm_up_to(self, entry_id: str) -> int:
        """Confirm that one as `confirm` does, and all before it. Returns how many there were.

        An id later than all entries was never returned, or Redis has lost it: then nothing is confirmed.
        """
        return await answered(self._confirm_handed_out(entry_id))

    async def _confirm_handed_out(self, entry_id: str) -> int:
        """Confirm an entry.

        The ids of the two streams are not comparable: an id confirms entries of its own stream, or else they come
        again.
        """
        newest: Any
        newest, is_old, here, there = await asyncio.gather(
            self._connection.execute("XREVRANGE", self._stream, "+", "-", "COUNT", 1),
            self._connection.execute("EXISTS", self._old),
            self._read(self._stream, entry_id, entry_id),
            self._read(self._old, entry_id, entry_id),
        )
        if any(self._own(fields) is not None for _, fields in there):
            return (
                0 if here else await self._confirm(self._old, "-", entry_id)
            )  # in both: of which it is cannot be told
        is_handed_out = bool(here or not is_old) and bool(newest) and _order(entry_id) <= _order(newest[0][0].decode())
        await self._note_reported(entry_id, is_behind=is_handed_out)
        return await self._confirm(self._stream, "-", entry_id) if is_handed_out else 0

    async def _confirm_one(self, entry_id: str) -> bool:
        """Confirm the entry of an id. Of one that is in both streams its reader has seen one, and which cannot be told: both come again."""
        streams = (self._stream, self._old)
        here, there = [await self._read(stream, entry_id, entry_id) for stream in streams]
        if here and any(self._own(fields) is not None for _, fields in there):
            return False
        confirmed = sum([await self._confirm(stream, entry_id, entry_id) for stream in streams])
        return await self._note_reported(entry_id, is_behind=confirmed > 0) or confirmed > 0

    async def _note_reported(self, entry_id: str, *, is_behind: bool) -> bool:
        """Have what was lost not told again if this id confirms it, or `is_behind` it: its reader has heard of that before."""
        lost = await self._lost()
        if lost is None or not (entry_id == lost.last or (is_behind and _order(entry_id) > _order(lost.last))):
            return False
        return bool(await run(self._connection, REPORTED, REPORTED.parameters(lost=self._lost_key, said=lost.said)))

    async def _lost(self) -> "_Lost | None":
        found: Any = await self._connection.execute("GET", self._lost_key)
        return None if found is None else _Lost.read(found)

    async def _carry(self, behind: str) -> str:
        """Put this user's entries into their own stream. Returns up to where those of all users have been looked at."""
        while page := await self._read(self._old, f"({behind}", "+"):
            for behind, fields in page:  # noqa: PLR1704 - it is the last one that was looked at
                if self._own(fields) is not None:
                    names = {"old": self._old, "stream": self._stream}
                    parameters = CARRY.parameters(**names, entry_id=behind, seconds=COMPLETIONS_KEPT_SECONDS)
                    await run(self._connection, CARRY, parameters)
        return behind

    async def _confirm(self, stream: str, first: str, last: str) -> int:
        confirmed = 0
        while page := await self._read(stream, first, last):
            own = [(entry_id, wake) for entry_id, fields in page if (wake := self._own(fields)) is not None]
            done = [self._done(stream, entry_id, wake) for entry_id, wake in own]
            confirmed += sum(await asyncio.gather(*done))
            first = f"({page[-1][0]}"
            if len(page) < _PAGE:
                break
        return confirmed

    async def _done(self, stream: str, entry_id: str, wake: WakeUp) -> int:
        parameters = self._done_by(self._user_id or "user", stream, entry_id, wake)
        return int(cast("int", await run(self._connection, DONE, parameters)))

    async def _read(self, stream: str, first: str, last: str) -> list[_Fields]:
        found: Any = await self._connection.execute("XRANGE", stream, first, last, "COUNT", _PAGE)
        return [
            (entry_id.decode(), dict(zip(fields[::2], fields[1::2], strict=False))) for entry_id, fields in found or ()
        ]

    def _own(self, fields: dict[bytes, bytes]) -> WakeUp | None:
        """Return the wake-up, if the fleet has written it, for this conversation and this user."""
        try:
            wake = self._opened(fields.get(b"body", b""))
        except (MessageRefused, ValueError):
            return None
        return wake if wake.user_id == self._user_id else None


@dataclass(frozen=True, slots=True)
class _Lost:
    """The number of trimmed entries, as it is stored, and the last id that one of them can have had."""

    said: bytes
    count: int
    last: str

    @classmethod
    def read(cls, said: bytes) -> "_Lost":
        count, _, first = said.decode().partition(" ")
        moment, number = _order(first)
        return cls(said, int(count), f"{moment}-{number - 1}" if number else f"{moment - 1}-{_MOST_IN_A_MOMENT}")


def is_entry_id(text: str) -> bool:
    """Return whether a text may be the id of an entry."""
    return _ENTRY_ID.fullmatch(text) is not None and all(int(part) < 2**64 for part in text.split("-"))


def _order(entry_id: str) -> tuple[int, ...]:
    return tuple(int(part) for part in entry_id.split("-"))


class CoreWatch:
    """Looks for workers that wake a core, for which a reader waits in vain. Logs that once."""

    def __init__(self, connection: PipelinedConnection, keys: Keys) -> None:
        self._connection = connection
        self._lanes = [keys.slots(lane) for lane in ("fast", "slow")]
        self._next_at = float("-inf")
        self._is_said = False

    async def check(self) -> None:
        """Check whether there is such a worker now, for a reader that waits in vain: now and then, and not after it was logged."""
        if self._is_said or machine_clock.monotonic() < self._next_at:
            return
        self._next_at = machine_clock.monotonic() + _CORE_SECONDS
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


class Reader(_WakesOf):
    """One reader of a conversation's streams. `on_lost` is told how many unread entries were trimmed."""

    def __init__(
        self,
        service: "WakeupService",
        conversation_id: str,
        consumer: str | None = None,
        on_lost: Callable[[int], object] | None = None,
    ) -> None:
        super().__init__(service, conversation_id)
        self._all = {
            "stream": self._keys.completions(conversation_id),
            "users": self._keys.completion_users(conversation_id),
        }
        self._lost_key = self._keys.completions_lost(conversation_id)
        self._on_lost = on_lost
        self._turns = itertools.count()
        self._connect = service.own_connection
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
                return _Entry(stream, entry_id, self._opened(body))
            except (
                MessageRefused
            ) as exc:  # foreign, or our key is not the fleet's: it stays in the stream, for inspection
                log.error("completion_refused", entry_id=entry_id.decode(), reason=str(exc))  # noqa: TRY400
                await write_durably(self._connection, ("XACK", stream, _GROUP, entry_id), size=0)
            except ValueError as exc:  # of another version: it will not get better
                log.error("completion_unreadable", entry_id=entry_id.decode(), error=type(exc).__name__)  # noqa: TRY400
                await self._done(stream, entry_id, None)

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
        await run_durably(self._connection, DONE, self._done_by(f"reader {self._consumer}", stream, entry_id, wake))

    async def _run(self, script: Script, **args: Part) -> Any:
        return await run_durably(self._connection, script, script.parameters(group=_GROUP, **args))


class WakeupService:
    """The wake-ups of one agent's fleet. `connect` makes a connection of that name, which is not started yet."""

    def __init__(
        self, connection: PipelinedConnection, connect: Callable[[str, str], PipelinedConnection], settings: Settings
    ) -> None:
        self.keys, self.seal, self.connection = settings.keys, seal_of(settings, purpose="job"), connection
        self.watch = CoreWatch(connection, settings.keys)
        self._connect, self._url = connect, str(settings.redis_url)
        self._connections: list[PipelinedConnection] = []

    def reader(
        self, conversation_id: str, consumer: str | None, on_lost: Callable[[int], object] | None = None
    ) -> Reader:
        """Return a reader of the conversation's wake-ups; many may read concurrently."""
        return Reader(self, conversation_id, consumer, on_lost)

    def inbox(self, conversation_id: str, user_id: str | None) -> CompletionInbox:
        """Return the user's wake-ups of the conversation, to be read and confirmed; it needs no connection of its own."""
        return CompletionInbox(self, conversation_id, user_id)

    async def aclose(self) -> None:
        """End all readers."""
        for connection in self._connections:
            await connection.aclose()

    def own_connection(self) -> PipelinedConnection:
        """Return a new connection that its user blocks, and closes."""
        self._connections = [connection for connection in self._connections if not connection.is_closed]
        connection = self._connect(self._url, "completions")
        self._connections.append(connection)
        connection.start()
        return connection
