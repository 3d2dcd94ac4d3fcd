"""Leases the messages that a worker holds: kept while it lives, forgotten when acked, given to others when it has died.

Each message is on lease. A live worker renews the leases, however long a call takes; expired ones are requeued into
their queues by any worker. After an outage of Redis all workers renew before any requeues; a Redis that takes no writes
is away, too. A Redis whose clock was set is treated alike.
"""

import asyncio
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from redis.exceptions import ResponseError

from toolfleet_registry.redis.keys import Keys, QueueKeys
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.time import fleet_clock, machine_clock
from toolfleet_registry.time.slewed_clock import STEP_SECONDS
from toolfleet_tasks.lua import queues
from toolfleet_tasks.redis.connection import PipelinedConnection, RedisConnectionLost
from toolfleet_tasks.transport.fetched_claims import FetchedClaim, FetchedClaims

log = get_logger(__name__)

_POLL_SECONDS = 0.01
_PATIENCE_SECONDS = 1.0  # before acks are repeated that Redis cannot take just now
_CHUNK = MOST_RESTORED = 500  # tags a command, so that no script holds Redis up
_RENEWALS = 6  # a lease is renewed so often within its time: some may fail
_LEFT_SECONDS = 3600  # a note that a worker was told to end is there for a worker that finds its messages late
_GRACE = 3  # after an outage, others have a third of a lease to renew theirs, before any is requeued


@dataclass(frozen=True, slots=True)
class LeaseStore:
    """The places of held messages in Redis, and the length of a lease."""

    unacked: str
    unacked_index: str
    queue_prefix: str
    notify_prefix: str
    seconds: float
    holder_prefix: str = Keys().holder("")
    record_prefix: str = Keys().call("")
    breaker_prefix: str = Keys().breaker("")
    queue_states: str = QueueKeys("").states
    left_prefix: str = Keys().left("")

    @classmethod
    def of(cls, keys: Keys, *, unacked: str, unacked_index: str, seconds: float) -> Self:
        """Return where a fleet with these keys has them; the names of kombu's keys are given without a prefix."""
        return cls(
            unacked=keys.prefix + unacked,
            unacked_index=keys.prefix + unacked_index,
            queue_prefix=keys.prefix,
            notify_prefix=keys.notify_key(""),
            seconds=seconds,
            holder_prefix=keys.holder(""),
            record_prefix=keys.call(""),
            breaker_prefix=keys.breaker(""),
            queue_states=QueueKeys(keys.prefix).states,
            left_prefix=keys.left(""),
        )


class Leases:
    """The messages that this worker holds, by tag. Belongs to its loop's thread."""

    def __init__(
        self,
        connection: PipelinedConnection,
        store: LeaseStore,
        loop: asyncio.AbstractEventLoop,
        claims: FetchedClaims | None = None,
        *,
        name: str,
    ) -> None:
        self.store = store
        self.claims = claims
        self._name = name
        self._wait_queue = itertools.count()
        self._connection = connection
        self.loop = loop
        self._held: set[str] = set()
        self._expected: set[str] = set()  # a reserve was sent, and its reply is not there yet
        self._acks: list[str] = []
        self._unanswered: set[str] = set()  # acks that were sent
        self._requeues: set[asyncio.Task[None]] = set()
        self._is_refused = False  # as of the last renewal that Redis answered
        self._well_since = machine_clock.monotonic()  # connected, and renewals are taken
        self._lead: tuple[float, float] | None = None  # of Redis's clock over the monotonic one: at least, and at most
        self._task = loop.create_task(self._maintain(), name="toolfleet-leases")
        connection.on_connect.append(self._on_connect)

    def show_life(self, connection: PipelinedConnection) -> None:
        """Listen on a channel of our own, on a connection that subscribes: by that others see that the process lives, if it is slow, say."""

        def listen() -> None:
            connection.tell("SUBSCRIBE", self.store.holder_prefix + self._name)

        connection.on_connect.append(listen)
        listen()

    def leave(self) -> None:
        """The worker was told to end: if it is cut off now, no message of its has killed it."""
        note, seconds = self.store.left_prefix + self._name, round(3 * self.store.seconds) + _LEFT_SECONDS
        self._connection.send("SET", note, "1", "EX", seconds).add_done_callback(_seen)

    def next_tags(self) -> str:
        """Return the prefix of the tags of the messages of the next turn: our name, which `lua.queues.RESTORE` reads."""
        return f"w{self._name}-{next(self._wait_queue)}-"

    def expect(self, tags: Iterable[str]) -> None:
        """Expect messages that Redis is about to reserve under some of these tags."""
        self._expected.update(tags)

    def hold(self, tags: Iterable[str], *, of: Iterable[str]) -> None:
        """Hold the messages that were reserved; the other tags that were expected do not exist."""
        self._expected.difference_update(of)
        self._held.update(tags)

    def claimed(self, calls: Iterable[tuple[str, bytes]], sent_at: tuple[float, float], *, mark: str) -> None:
        """Note the claims of calls that came with these held messages, by tag and id; an empty id means none."""
        for tag, call_id in calls:
            if call_id and self.claims is not None:
                self.claims.note(tag, FetchedClaim(tag + mark, call_id.decode(), sent_at))

    def drop(self, tag: str) -> None:
        """Stop holding a message that another component has handled."""
        self._held.discard(tag)
        if self.claims is not None:
            self.claims.drop(tag)

    @property
    def unbegun(self) -> frozenset[str]:
        """The held messages that surely have not been started."""
        claims = self.claims
        return frozenset(
            self._expected if claims is None else self._expected.union(filter(claims.__contains__, self._held))
        )

    @property
    def held(self) -> frozenset[str]:
        """The tags of all messages that were neither acked nor requeued, and of those that Redis may have reserved."""
        return frozenset(self._held | self._expected)

    @property
    def acked(self) -> frozenset[str]:
        """Acked here, but Redis has not said yet that it knows."""
        return frozenset(self._unanswered.union(self._acks))

    def ack(self, tag: str) -> None:
        """Forget a message for good, together with the others of this tick."""
        if self.claims is not None:
            self.claims.drop(tag)
        self._held.discard(tag)
        if not self._acks and not self.loop.is_closed():
            self.loop.call_soon(self._flush)
        self._acks.append(tag)

    def requeue(self, tags: Iterable[str], *, begun: bool) -> None:
        """Give messages to the next worker; `begun` if a call may have been started already.

        Once the connection is closed they stay `held`, for the worker's end to settle.
        """
        mine = [tag for tag in tags if tag in self._held or tag in self._expected]
        if mine and not self._connection.is_closed:
            self._held.difference_update(mine)
            self._expected.difference_update(mine)
            if self.claims is not None:
                for tag in mine:
                    self.claims.drop(tag)
            task = self.loop.create_task(self._requeue(mine, begun=begun))
            self._requeues.add(task)
            task.add_done_callback(self._requeues.discard)

    def requeue_commands(self, tags: Iterable[str], *, begun: bool) -> list[tuple[str, ...]]:
        """Return the Redis commands that put messages back: for a worker that ends, whose loop is closed by then."""
        store = self.store
        keys = {"unacked": store.unacked, "unacked_index": store.unacked_index}
        prefixes = {"queue_prefix": store.queue_prefix, "notify_prefix": store.notify_prefix}
        prefixes["record_prefix"] = store.record_prefix
        chunks = _chunks(list(tags))
        return [queues.REQUEUE.command(**keys, **prefixes, begun="01"[begun], tags=chunk) for chunk in chunks]

    def ack_commands(self, tags: Iterable[str]) -> list[tuple[str, ...]]:
        """Return the Redis commands that forget messages."""
        unacked, index = self.store.unacked, self.store.unacked_index
        chunks = _chunks(list(tags))
        return [queues.ACK.command(unacked=unacked, unacked_index=index, tags=chunk) for chunk in chunks]

    async def settled(self) -> None:
        """Return when Redis knows of every ack, and of everything that was requeued."""
        while self._acks or self._unanswered or self._requeues:  # noqa: ASYNC110 - once, at the end of a worker's life
            await asyncio.sleep(_POLL_SECONDS)

    def close(self) -> None:
        """Renew and restore no more."""
        self._task.cancel()

    async def _requeue(self, tags: list[str], *, begun: bool) -> None:
        try:
            for command in self.requeue_commands(tags, begun=begun):
                await self._connection.execute(*command)
        except RedisConnectionLost:  # closed
            self._held.update(tags)
        except ResponseError as exc:
            log.warning("messages_not_put_back", messages=len(tags), error=str(exc))

    def _flush(self) -> None:
        tags, self._acks = self._acks, []
        self._unanswered.update(tags)
        for chunk in _chunks(tags):
            self._send_acks(chunk)

    def _send_acks(self, tags: list[str]) -> None:
        (command,) = self.ack_commands(tags)
        self._connection.send(*command).add_done_callback(lambda reply: self._on_acked(tags, reply))

    def _on_acked(self, tags: list[str], reply: "asyncio.Future[Any]") -> None:
        error = None if reply.cancelled() else reply.exception()
        if error is None:
            self._unanswered.difference_update(tags)
        elif isinstance(error, ResponseError):  # out of memory, or a replica: later, then
            log.warning("acks_refused", messages=len(tags), error=str(error))
            self.loop.call_later(_PATIENCE_SECONDS, self._send_acks, tags)
        # Lost with the connection: `_on_connect` sends it again.

    def _on_connect(self) -> None:
        self._well_since = machine_clock.monotonic()
        for chunk in _chunks(list(self._unanswered)):
            self._send_acks(chunk)
        self._renew()

    async def _maintain(self) -> None:
        while True:
            await asyncio.sleep(self.store.seconds / _RENEWALS)
            try:
                self._renew()
                if self._connection.is_connected:
                    await self._restore()
            except (RedisConnectionLost, ResponseError) as exc:
                log.warning("expired_leases_not_restored", error=str(exc))
            except Exception:  # without this loop all leases would run out
                log.exception("leases_not_looked_after")

    def _renew(self) -> None:
        """Renew the leases, also with nothing held: before restoring it must be known whether Redis takes writes."""
        for chunk in _chunks(list(self._held)) or [[]]:
            self._send_renewal(chunk)

    def _send_renewal(self, tags: list[str]) -> None:
        reply = self._connection.send(*queues.RENEW.command(unacked_index=self.store.unacked_index, tags=tags))
        reply.add_done_callback(self._on_renewed)

    def _on_renewed(self, reply: "asyncio.Future[Any]") -> None:
        error = None if reply.cancelled() else reply.exception()
        if error is not None:
            if not isinstance(error, RedisConnectionLost):
                self._is_refused = True
                log.warning("leases_not_renewed", error=str(error))
            return
        if self._is_refused:
            self._is_refused = False
            self._well_since = machine_clock.monotonic()
        lost = {tag.decode() for tag in reply.result()} & self._held
        if lost:
            # Their calls may run a second time elsewhere. They go on here: no other process knows how far they are.
            log.error("leases_lost", messages=len(lost))
            self._held -= lost

    async def _restore(self) -> None:
        store = self.store
        asked_at = fleet_clock.suspend_aware()
        seconds, microseconds = await self._connection.send("TIME")
        now = int(seconds) + int(microseconds) / 1e6
        if self._has_stepped((now - fleet_clock.suspend_aware(), now - asked_at)):
            log.warning("redis_clock_stepped", hint="leases are renewed before any is given up")
            self._well_since = machine_clock.monotonic()
            self._renew()
        # Only now, for the answers to this look's renewals are here as well.
        if self._is_refused or machine_clock.monotonic() - self._well_since <= store.seconds / _GRACE:
            return
        command = restore_command(store, began_by=now - store.seconds, now=now)
        expired = MOST_RESTORED
        while expired == MOST_RESTORED:
            expired, restored, stuck = await self._connection.send(*command)
            if restored:
                log.warning("expired_leases_restored", messages=restored)
            if stuck:
                log.error("expired_leases_stuck", messages=stuck)

    def _has_stepped(self, lead: tuple[float, float]) -> bool:
        """Return whether Redis's clock was set since the last check: then every lease has run out by it, or none does for long."""
        before, self._lead = self._lead, lead
        return before is not None and (lead[0] > before[1] + STEP_SECONDS or lead[1] < before[0] - STEP_SECONDS)


def restore_command(store: LeaseStore, *, began_by: float, now: float) -> tuple[str | bytes | int | float, ...]:
    """Build the command that puts back at most `MOST_RESTORED` messages whose leases began at that time of Redis's clock, or before."""
    return queues.RESTORE.command(
        unacked=store.unacked,
        unacked_index=store.unacked_index,
        queue_prefix=store.queue_prefix,
        notify_prefix=store.notify_prefix,
        began_by=f"{began_by:.6f}",
        most=MOST_RESTORED,
        now=f"{now:.6f}",
        channel_prefix=store.holder_prefix,
        ending_prefix=store.left_prefix,
    )


def _seen(reply: "asyncio.Future[Any]") -> None:
    if not reply.cancelled():
        reply.exception()


def _chunks(tags: list[str]) -> list[list[str]]:
    return [tags[start : start + _CHUNK] for start in range(0, len(tags), _CHUNK)]
