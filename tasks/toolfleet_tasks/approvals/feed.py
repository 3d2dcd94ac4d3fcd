"""Follows the events of approvals: the stream to which every step of theirs is written, atomically with the step.

A follower can read old events again, in any process; a forged entry shows nothing but what an approval has.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from redis.exceptions import ResponseError

from toolfleet_registry.errors import FleetUnavailable
from toolfleet_tasks.approvals.records import ApprovalRecords, ListedApproval
from toolfleet_tasks.redis.connection import PipelinedConnection, RedisConnectionLost

ApprovalEventKind: TypeAlias = Literal[
    "following", "asked", "voted", "edited", "approved", "rejected", "expired", "withdrawn", "events_lost"
]
"""What has happened. `following`: the position from which on; `events_lost`: some are gone that were not heard of."""
EVENT_KINDS: tuple[ApprovalEventKind, ...] = get_args(ApprovalEventKind)

Watching: TypeAlias = Callable[[bytes, Callable[[bytes], None]], AbstractContextManager[None]]

_BATCH = 100
_READ_SECONDS = 5.0
_POLL_SECONDS = 2.0  # what is announced may not be heard
_START = "0-0"


@dataclass(frozen=True, slots=True)
class ApprovalEvent:
    """One event: its `id` in the stream, and the approval as it is now, if there is one."""

    id: str
    kind: ApprovalEventKind
    found: ListedApproval | None = None


class ApprovalFeed:
    """The events of one Redis. `watching` hears of a channel."""

    def __init__(self, connection: PipelinedConnection, records: ApprovalRecords, watching: Watching) -> None:
        self._connection, self._records, self._watching = connection, records, watching

    async def follow(self, after: str | None = None) -> AsyncGenerator[ApprovalEvent]:
        """Yield the events from now on, or since the event of the id `after`. While Redis is away it waits.

        Raises `FleetUnavailable` if Redis does not tell the stream's position when this starts.
        """
        woken = asyncio.Event()
        with self._watching(self._records.keys.changed.encode(), lambda _: woken.set()):
            try:
                at, is_lost = await self._begin(after)
            except _AWAY as exc:
                raise FleetUnavailable("Redis does not answer.") from exc
            yield ApprovalEvent(at, "events_lost" if is_lost else "following")
            while True:
                woken.clear()
                try:
                    batch = await self._after(at)
                    if len(batch) == _BATCH and not await self._has(at):
                        yield ApprovalEvent(at, "events_lost")
                    for event_id, fields in batch:
                        event = await self._event(event_id, fields)
                        if event is not None:
                            yield event
                        at = event_id
                except _AWAY:
                    batch = []
                if len(batch) < _BATCH:
                    await _either(woken, _POLL_SECONDS)

    async def of(self, approval_id: str, is_over: Callable[[], bool]) -> AsyncGenerator[ListedApproval]:
        """Yield one approval as it is, and again after each of its events, until it is decided; nothing if there is none.

        `is_over`: the follower has gone.
        """
        woken, before, name = asyncio.Event(), None, approval_id.encode()
        with self._watching(self._records.keys.changed.encode(), lambda said: woken.set() if said == name else None):
            while not is_over():
                woken.clear()
                try:
                    async with asyncio.timeout(_READ_SECONDS):
                        found = await self._records.listed(approval_id)
                except _AWAY:
                    await _either(woken, _POLL_SECONDS)
                    continue
                if found is None:
                    return
                if (facts := (found.revision, found.place == "done")) != before:
                    before = facts
                    yield found
                if not found.is_open:
                    return
                await _either(woken, _POLL_SECONDS)

    async def _begin(self, after: str | None) -> tuple[str, bool]:
        if after is not None:
            return after, not await self._has(after)
        last = await self._ask("XREVRANGE", "+", "-", "COUNT", "1")
        return (_START if not last else last[0][0].decode()), False

    async def _has(self, event_id: str) -> bool:
        return event_id == _START or bool(await self._ask("XRANGE", event_id, event_id))

    async def _after(self, event_id: str) -> list[tuple[str, dict[bytes, bytes]]]:
        found = await self._ask("XRANGE", f"({event_id}", "+", "COUNT", str(_BATCH))
        return [(name.decode(), dict(zip(said[::2], said[1::2], strict=True))) for name, said in found]

    async def _event(self, event_id: str, fields: dict[bytes, bytes]) -> ApprovalEvent | None:
        kind = fields.get(b"kind", b"").decode(errors="replace")
        if kind not in EVENT_KINDS:
            return None
        async with asyncio.timeout(_READ_SECONDS):
            found = await self._records.listed(fields.get(b"id", b"").decode(errors="replace"))
        return None if found is None else ApprovalEvent(event_id, kind, found)

    async def _ask(self, command: str, *more: str) -> list[Any]:
        async with asyncio.timeout(_READ_SECONDS):
            found: list[Any] = await self._connection.read(command, self._records.keys.events, *more)
            return found


_AWAY = (RedisConnectionLost, ResponseError, TimeoutError)


async def _either(woken: asyncio.Event, seconds: float) -> None:
    """Wait until something is announced, or the time is over."""
    try:
        async with asyncio.timeout(seconds):
            await woken.wait()
    except TimeoutError:
        return
