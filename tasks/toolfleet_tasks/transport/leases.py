"""Leases the messages that a worker holds: kept while it lives, forgotten when acked, given to others when it dies.

This is done only with calls of which a repeat does no harm: a worker that dies before it has started one leaves an
attempt that may have been. Until its task takes a claim over, nothing was sent; if the message is released before, the
claim is undone.

A worker that has a parent with an interest in it writes down who it is before it holds anything. Its parent believes that only of
the very process that it has started and waited for, and Redis does nothing while that worker is connected. What becomes of its calls
is decided as after any lease that has run out.

Each message is on lease. A live worker renews the leases, however long a call takes; expired ones are requeued into
their queues by any worker. After an outage of Redis all workers renew before any requeues; a Redis that takes no writes
is away, too. A Redis whose clock was set is treated alike.
"""

import asyncio
import itertools
import os
import re
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from redis.exceptions import RedisError, ResponseError

from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.script import Parameters
from toolfleet_registry.redis.servers import sync_client
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock, machine_clock
from toolfleet_registry.system.fleet_clock import STEP_SECONDS
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.redis_connection import Part, PipelinedConnection, RedisConnectionLost, ignored, is_unknown_script
from toolfleet_tasks.transport import scripts
from toolfleet_tasks.worker_runtime import WorkerRuntime

log = get_logger(__name__)

_AVOIDED_SECONDS = (
    30.0  # that a queue's calls are claimed by themselves after a claim that was made as one was fetched was of no use
)

NOTE_VARIABLE = "TOOLFLEET_WORKER_NOTE"
"""Names the file in which a worker notes who it is."""

_ANSWER_SECONDS = 1.0  # for Redis: the parent has other children
_AGAIN_SECONDS = 0.5
_SECOND_SECONDS = 3.0  # by then Redis has run what the worker had sent, and may have reserved more for it
_TRIES_SECONDS = 60.0  # by then the leases have run out by themselves
_CHUNK = 100  # messages a script, each of which is read as JSON
_EXPIRED = 1.0  # since when an expired lease runs: no other one began so long ago
_NOTE = re.compile(r"([0-9a-f]+) (\S+) (\d+) (\d+)\n")

_POLL_SECONDS = 0.01
_PATIENCE_SECONDS = 1.0  # before acks are repeated that Redis cannot take just now
_TAGS_AT_ONCE = MOST_RESTORED = 500  # tags a command, so that no script holds Redis up
_RENEWALS = 6  # a lease is renewed so often within its time: some may fail
_LEFT_SECONDS = 3600  # a note that a worker was told to end is there for a worker that finds its messages late
_GRACE = 3  # after an outage, others have a third of a lease to renew theirs, before any is requeued


class FetchedClaim(NamedTuple):
    """A call's claim. `token`: the ledger knows it by this. `sent_at`: when it was asked for, by both clocks."""

    token: str
    call_id: str
    sent_at: tuple[float, float]


class FetchedClaims:
    """A worker's, by the tags of its messages. Belongs to its loop's thread; makes none until it is told how."""

    def __init__(self, here: WorkerRuntime) -> None:
        self._loop = here.loop
        self._connection: PipelinedConnection | None = None
        self._record_key: Callable[[str], str] = str
        self._may_claim: Callable[[], bool] = _never
        self._worker: Callable[[], str] = str
        self.record_seconds = 0
        """How long a claim's record lives at least, as it does with the ledger."""
        self._lease_ms = 0
        self.leases: Leases | None = None
        """The leases of the messages."""
        self.ending: Leases | None = None
        """The same, if the end of a call can forget its message: its ledger is in the same Redis."""
        self.made = dict[str, FetchedClaim]()
        """Claims by the tags of their messages, until the task that starts a call takes its claim out."""
        self._avoided = dict[str, float]()  # queues, until when by the loop's clock

    def enable(
        self,
        connection: PipelinedConnection,
        *,
        record_key: Callable[[str], str],
        lease_ms: int,
        may_claim: Callable[[], bool],
        worker: Callable[[], str],
        record_seconds: int,
    ) -> None:
        """Claim calls from now on whenever `may_claim`. `connection`: that of the ledger, over which messages are fetched as well.

        `worker`: who makes the claims, as their tokens show it.
        """
        self._connection, self._record_key = connection, record_key
        self._lease_ms, self._may_claim, self._worker = lease_ms, may_claim, worker
        self.record_seconds = record_seconds
        self.ending = self.leases

    @property
    def worker(self) -> str:
        """The maker of the claims, as their tokens show it; '' if unknown."""
        return self._worker()

    @property
    def lease_ms(self) -> int:
        """The lease of calls claimed with a fetch now, 0 for no claims."""
        return self._lease_ms if self._may_claim() else 0

    def avoided(self, queues: Sequence[str]) -> list[int]:
        """Return the numbers, from 1, of the queues whose calls must not be claimed now."""
        if not self._avoided:
            return []
        now = self._loop.time()
        self._avoided = {queue: until for queue, until in self._avoided.items() if until > now}
        return [number for number, queue in enumerate(queues, 1) if queue in self._avoided]

    def give_back(self, claim: FetchedClaim, queue: str = "") -> None:
        """Take a claim back of which nothing came. Is not waited for: commands that follow over the connection find it done.

        Of calls from `queue` none is claimed so for a while: more of them may be of that kind.
        """
        if queue:
            self._avoided[queue] = self._loop.time() + _AVOIDED_SECONDS
        if self._connection is not None:
            command = scripts.FORGET.command(record=self._record_key(claim.call_id), token=claim.token)
            self._connection.send(*command).add_done_callback(ignored)  # if it is lost, the lease runs out

    def drop(self, tag: str) -> None:
        """Forget a finished message: its claim is undone if no task has started it."""
        if (claim := self.made.pop(tag, None)) is not None:
            self.give_back(claim)


def asked(claims: FetchedClaims | None, queues: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of `RESERVE` about the claims to make with messages of these queues."""
    if claims is None:
        return {"lease_ms": 0, "worker": "", "record_seconds": 0, "avoided": ()}
    seconds, avoided = claims.record_seconds, claims.avoided(queues)
    return {"lease_ms": claims.lease_ms, "worker": claims.worker, "record_seconds": seconds, "avoided": avoided}


def sending() -> tuple[float, float]:
    """The time by both clocks: one that counts suspension, and the fleet's."""
    return fleet_clock.suspend_aware(), fleet_clock.now()


def _never() -> bool:
    return False


class WorkerNote(NamedTuple):
    """A worker process: the name under which it holds messages, its host, its process id there, and its `start_of`."""

    holder: str
    host: str
    pid: int
    began: int


def start_of(pid: int) -> int:
    """Return when a process began, in the kernel's ticks since the machine did; 0 where there is no `/proc`, or no such process."""
    try:
        return int(
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
        )
    except (OSError, ValueError, IndexError):
        return 0


def write_note(holder: str) -> None:
    """Note for our parent, where it wants that, who we are. Without the note our leases run out by themselves, should we die."""
    path, pid = os.environ.get(NOTE_VARIABLE), os.getpid()
    if not path:
        return
    try:
        Path(path).write_text(f"{holder} {socket.gethostname()} {pid} {start_of(pid)}\n", encoding="utf-8")
    except OSError as exc:
        log.warning("worker_note_not_written", error=str(exc))


def read_note(path: Path, *, pid: int, began: int) -> WorkerNote | None:
    """Return what the process with this id and start has noted; None if it has noted nothing, or another process has."""
    try:
        found = _NOTE.fullmatch(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    note = found and WorkerNote(found[1], found[2], int(found[3]), int(found[4]))
    return note if note and note[1:] == (socket.gethostname(), pid, began) else None


@dataclass(slots=True)
class _Report:
    note: WorkerNote
    due_at: float
    ends_at: float
    was_taken: bool = False


class DeathReports:
    """Reports processes to the Redis that these settings name. Belongs to one thread; raises nothing."""

    def __init__(self, settings: Settings) -> None:
        self._settings, names = settings, {"unacked": "unacked", "unacked_index": "unacked_index"}
        self._store = LeaseStore.of(settings.keys, **names, seconds=settings.lease_seconds)
        self._reports: list[_Report] = []

    def add(self, note: WorkerNote) -> None:
        """Take in that a worker has died. Its parent must have waited for it."""
        if self._settings.has_redis_broker:  # RabbitMQ sees it by itself
            now = machine_clock.monotonic()
            self._reports.append(_Report(note, now, now + _TRIES_SECONDS))

    def tend(self) -> None:
        """Report due ones. Takes milliseconds, and up to seconds only if Redis does not answer."""
        for report in tuple(self._reports):
            if machine_clock.monotonic() < report.due_at:
                continue
            is_taken = self._is_taken(report.note)
            if (is_taken and report.was_taken) or machine_clock.monotonic() > report.ends_at:
                self._reports.remove(report)
            report.was_taken |= is_taken
            report.due_at = machine_clock.monotonic() + (_SECOND_SECONDS if is_taken else _AGAIN_SECONDS)

    def _is_taken(self, note: WorkerNote) -> bool:
        url, master = str(self._settings.broker), self._settings.sentinel_master
        try:
            with sync_client(url, master=master, timeout_seconds=_ANSWER_SECONDS) as redis:
                return self._expire(redis, note)
        except (RedisError, OSError) as exc:
            log.warning("worker_death_not_reported", worker=note.holder, error=str(exc))
            return False

    def _expire(self, redis: Any, note: WorkerNote) -> bool:
        store, match = self._store, f"w{note.holder}-*"
        tags = list({tag for tag, _ in redis.zscan_iter(store.unacked_index, match=match, count=1000)})
        names = {"unacked": store.unacked, "unacked_index": store.unacked_index, "record_prefix": store.record_prefix}
        for start in range(0, len(tags), _CHUNK):
            chunk, names["channel_prefix"] = tags[start : start + _CHUNK], store.holder_prefix
            if redis.execute_command(*scripts.EXPIRE.command(**names, holder=note.holder, tags=chunk)) < 0:
                return False
        if tags:
            log.warning("worker_death_reported", worker=note.holder, host=note.host, pid=note.pid, messages=len(tags))
            command = restore_command(store, began_by=_EXPIRED, now=float(redis.time()[0]))
            while redis.execute_command(*command)[0] == MOST_RESTORED:
                pass
        return True


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
    base: str = Keys().begin
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
            base=keys.begin,
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
        self._ending: set[str] = set()  # held, and their calls' ends are on their way
        self._ended: set[str] = set()  # forgotten by Redis with the ends of their calls, and not acked yet
        self._acks: list[str] = []
        self._unanswered: set[str] = set()  # acks that were sent
        self._requeues: set[asyncio.Task[None]] = set()
        self._is_refused = False  # as of the last renewal that Redis answered
        self._well_since = machine_clock.monotonic()  # connected, and renewals are taken
        self._lead: tuple[float, float] | None = None  # of Redis's clock over the monotonic one: at least, and at most
        self._task = loop.create_task(self._maintain(), name="toolfleet-leases")
        connection.on_connect.append(self._on_connect)
        if claims is not None:
            claims.leases = self

    def show_life(self, connection: PipelinedConnection) -> None:
        """Listen on a channel of our own, on a connection that subscribes: by that others see that the process lives, if it is slow, say."""

        def listen() -> None:
            connection.tell("SUBSCRIBE", self.store.holder_prefix + self._name)

        connection.on_connect.append(listen)
        listen()

    def leave(self) -> None:
        """The worker was told to end: if it is cut off now, no message of its has killed it."""
        note, seconds = self.store.left_prefix + self._name, round(3 * self.store.seconds) + _LEFT_SECONDS
        self._connection.send("SET", note, "1", "EX", seconds).add_done_callback(ignored)

    def next_tags(self) -> str:
        """Return the prefix of the tags of the messages of the next turn: our name, which `scripts.RESTORE` reads."""
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
        if self.claims is not None:
            found = {tag: FetchedClaim(tag + mark, call_id.decode(), sent_at) for tag, call_id in calls if call_id}
            self.claims.made.update(found)

    def drop(self, tag: str) -> None:
        """Stop holding a message that another component has handled."""
        self._held.discard(tag)
        if self.claims is not None:
            self.claims.drop(tag)

    @property
    def unbegun(self) -> frozenset[str]:
        """The held messages that surely have not been started."""
        claims = self.claims
        return frozenset(self._expected if claims is None else self._expected.union(self._held & claims.made.keys()))

    @property
    def held(self) -> frozenset[str]:
        """The tags of all messages that were neither acked nor requeued, and of those that Redis may have reserved."""
        return frozenset(self._held | self._ending | self._expected)

    @property
    def acked(self) -> frozenset[str]:
        """Acked here, but Redis has not said yet that it knows."""
        return frozenset(self._unanswered.union(self._acks))

    def ack(self, tag: str) -> None:
        """Forget a message for good, together with the others of this tick, unless the end of its call has done so."""
        if self.claims is not None and tag in self.claims.made:
            self.claims.drop(tag)
        if tag in self._ended:
            self._ended.discard(tag)
            return
        self._held.discard(tag)
        self._ending.discard(tag)
        if not self._acks and not self.loop.is_closed():
            self.loop.call_soon(self._flush)
        self._acks.append(tag)

    def end(self, tag: str) -> tuple[str, str, str] | None:
        """Return the keys and the tag of a message for the script that ends its call, which forgets it; `None` if it is held no more.

        Then tell `ended`.
        """
        if tag not in self._held:
            return None
        self._held.discard(tag)
        self._ending.add(tag)
        return self.store.unacked, self.store.unacked_index, tag

    def ended(self, tag: str, *, is_forgotten: bool) -> None:
        """Note whether that script has forgotten the message: otherwise it is held as before."""
        if tag in self._ending:  # it was not acked meanwhile
            self._ending.discard(tag)
            (self._ended if is_forgotten else self._held).add(tag)

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
        return [scripts.REQUEUE.command(**keys, **prefixes, begun="01"[begun], tags=chunk) for chunk in chunks]

    def ack_commands(self, tags: Iterable[str]) -> list[tuple[Part, ...]]:
        """Return the Redis commands that forget messages: for a worker that ends, which waits for no answer."""
        return [("EVAL", scripts.ACK.text, *self._ack_parameters(chunk)) for chunk in _chunks(list(tags))]

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

    def _ack_parameters(self, tags: list[str]) -> Parameters:
        return scripts.ACK.parameters(unacked=self.store.unacked, unacked_index=self.store.unacked_index, tags=tags)

    def _send_acks(self, tags: list[str]) -> None:
        self._send_ack("EVALSHA", scripts.ACK.digest, tags)

    def _send_ack(self, command: str, script: str, tags: list[str]) -> None:
        reply = self._connection.send(command, script, *self._ack_parameters(tags))
        reply.add_done_callback(lambda reply: self._on_acked(tags, reply))

    def _on_acked(self, tags: list[str], reply: "asyncio.Future[Any]") -> None:
        error = None if reply.cancelled() else reply.exception()
        if error is None:
            self._unanswered.difference_update(tags)
        elif isinstance(error, ResponseError) and is_unknown_script(error):
            self._send_ack("EVAL", scripts.ACK.text, tags)
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
        for chunk in _chunks([*self._held, *self._ending]) or [[]]:
            self._send_renewal(chunk)

    def _send_renewal(self, tags: list[str]) -> None:
        reply = self._connection.send(*scripts.RENEW.command(unacked_index=self.store.unacked_index, tags=tags))
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
    return scripts.RESTORE.command(
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


def _chunks(tags: list[str]) -> list[list[str]]:
    return [tags[start : start + _TAGS_AT_ONCE] for start in range(0, len(tags), _TAGS_AT_ONCE)]
