"""Follows the events of approvals, and puts notices of them into the outbox of webhooks: each event once.

A follower can read old events again, in any process; a forged entry shows nothing but what an approval has.

Any worker may do so, and several at once: the position moves in one step with the write to the outbox.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias, get_args

from redis.exceptions import ResponseError

from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.approvals.approvers import Approver
from toolfleet_tasks.approvals.records import ApprovalRecords, ListedApproval
from toolfleet_tasks.approvals.views import shown
from toolfleet_tasks.messages.signing import seal_of
from toolfleet_tasks.redis_connection import PipelinedConnection, RedisConnectionLost
from toolfleet_tasks.wakeups.webhook_feed import approval_receiver_of, feed_receiver, notice_body, outbox_id

log = get_logger(__name__)

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

_AWAY = (RedisConnectionLost, ResponseError, TimeoutError)

_AT_ONCE, _MOST_BATCHES = 100, 10  # events in one script, and scripts in one tick
_NOTICES_START: Final = "0-0"

_NOBODY: Final = Approver("webhook", None, "guest")
"""Who reads a notice: sensitive arguments are not for them."""


@dataclass(frozen=True, slots=True)
class ApprovalEvent:
    """One event: its `id` in the stream, and the approval as it is now, if there is one."""

    id: str
    kind: ApprovalEventKind
    found: ListedApproval | None = None


class ApprovalFeed:
    """The events of one Redis. `watching` follows a channel."""

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


async def _either(woken: asyncio.Event, seconds: float) -> None:
    """Wait until something is announced, or the time is over."""
    try:
        async with asyncio.timeout(seconds):
            await woken.wait()
    except TimeoutError:
        return


class ApprovalNotices:
    """The notices of one process, for the webhooks of its settings. Raises Redis's errors."""

    def __init__(self, connection: PipelinedConnection, records: ApprovalRecords, settings: Settings) -> None:
        self._connection, self._records, self._keys = connection, records, settings.keys
        self._seal = seal_of(settings, purpose="job")
        self._kinds = {approval_receiver_of(each.url): frozenset(each.events) for each in settings.approvals.webhooks}

    async def put(self) -> int:
        """Put all new events into the outbox. A new receiver is told of events from now on.

        Returns how far the receivers got, in events.
        """
        if not self._kinds:
            return 0
        names = list(self._kinds)
        found = await self._connection.execute("HMGET", self._keys.webhook_positions, *names)
        return sum(await asyncio.gather(*map(self._put, names, found)))

    async def _put(self, receiver: str, at: bytes | None) -> int:
        if at is None:
            last = await self._connection.execute("XREVRANGE", self._records.keys.events, "+", "-", "COUNT", "1")
            start = last[0][0] if last else _NOTICES_START
            await self._connection.execute("HSETNX", self._keys.webhook_positions, receiver, start)
            return 0
        position, done = at.decode(), 0
        if position != _NOTICES_START and not await self._connection.execute(
            "XRANGE", self._records.keys.events, position, position
        ):
            await self._note_gap(receiver, position)
        for _ in range(_MOST_BATCHES):
            entries: list[Any] = await self._connection.execute(
                "XRANGE", self._records.keys.events, f"({position}", "+", "COUNT", str(_AT_ONCE)
            )
            if not entries:
                break
            until = entries[-1][0].decode()
            if not await self._move(receiver, position, until, entries):
                break
            position, done = until, done + len(entries)
        return done

    async def _note_gap(self, receiver: str, position: str) -> None:
        """Log that events may be lost: the stream no longer has the receiver's place, and has later ones."""
        if await self._connection.execute("EXISTS", self._records.keys.events):
            log.error("approval_events_lost", receiver=receiver, after=position)

    async def _move(self, receiver: str, at: str, to: str, entries: list[Any]) -> bool:
        """Put these into the outbox and store the new place, in one step. Returns whether it was done."""
        made = await asyncio.gather(*(self._notice(receiver, name.decode(), said) for name, said in entries))
        events = [each for each in made if each is not None]
        became = await feed_receiver(self._connection, self._keys, receiver, at=at, to=to, events=events)
        if became == "full":
            log.warning("approval_webhook_waits", receiver=receiver, reason="too many events wait")
        return became == "fed"

    async def _notice(self, receiver: str, event_id: str, said: list[bytes]) -> tuple[str, str] | None:
        """Return the notice of an event; `None` if the receiver does not want it, or the approval is gone."""
        fields = {said[i].decode(): said[i + 1].decode(errors="replace") for i in range(0, len(said), 2)}
        kind = fields.get("kind", "")
        if kind not in self._kinds[receiver]:
            return None
        found = await self._records.listed(fields.get("id", ""))
        if found is None:
            return None
        data = shown(found, _NOBODY).model_dump(mode="json", exclude={"may_decide"})
        at = datetime.fromtimestamp(int(event_id.partition("-")[0]) / 1000, UTC)
        payload = {"type": f"approval.{kind}", "timestamp": at.isoformat().replace("+00:00", "Z"), "data": data}
        return outbox_id(event_id, receiver), self._seal.sign(notice_body(event_id, receiver, payload))
