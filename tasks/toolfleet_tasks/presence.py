"""Notes what each worker is, serves and runs, for agents, operators and autoscalers: at the Redis of the results, with any broker.

- Slots: `<slots> <worker>`, and from version 2 on `<slots> <worker> v<version>`; with ` replies` for a worker that announces ends on
  agents' reply channels, ` core` for one that wakes a core, and ` signs` for one that signs its reports about calls. Without these
  notes agents use the setting of workers.
- Load: `<time> <module>=<calls> …`. Workers of older versions leave none.
- Consumed queues: agents refuse calls to queues that no worker consumes.
- Replicas: JSON, `{module: {replica id: [calls in flight, failures to connect, seconds that it is left alone]}}`. It is the finding
  of this worker only: other workers may reach a process that this one cannot.
"""

import asyncio
import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import RedisError

from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.redis.servers import reason_of, sync_client
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import machine_clock
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.system.process import this_process
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.redis_connection import PipelinedConnection
from toolfleet_tasks.results.verifier import SIGNS
from toolfleet_tasks.scripts import NOTE_SECONDS, REPLIES, RESTART, SLOTS_COUNT_SECONDS, WAKES_CORE, script

NOTE = script("consumers/note")
"""Returns 0 if the queues have to be written first."""

LEAVE = script("consumers/leave")

COUNT = script("consumers/count")
"""Returns the keys of queues, each with its number of workers; a queue comes once for each digest that has it."""

log = get_logger(__name__)

_FIRST = 1  # the version whose workers do not say theirs

KEEPS_ROLLBACKS = 2
"""The first version whose workers leave a tool that was rolled back as it is when they ask its module."""

_BEAT_SECONDS = 5.0
_READERS_SECONDS = 1.0  # between two questions of an agent that publishes
_NOTE_SLOTS = script("presence/note_slots")

COUNTS_SECONDS = 20
"""A worker that has noted nothing for so long has died."""

_NOTE = script("presence/note")

_CONSUMERS_BEAT_SECONDS = 1.0
_POLL_SECONDS = 0.25  # for queues that have come, or gone
_ANSWER_SECONDS = 1.0

# How long a worker that SIGTERM ends counts as one that is being restarted: its modules' calls wait.
_RESTART_SECONDS = 60.0

_REPLICA_COUNTS_BEAT_SECONDS = 2.0
_COUNTS_SECONDS = 10  # a worker that has been silent for so long has died
_FIELDS = 3

Counts = Mapping[str, Mapping[str, tuple[int, int, float]]]
"""By module and replica: calls in flight, how often it could not be reached, and for how many seconds it is left alone."""


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """A live worker: its host, its process id, and the newest version of messages that it reads."""

    name: str
    version: int


def note_of(count: int, worker: str) -> str:
    """Return the note of a worker of this version with so many slots."""
    return f"{count} {worker} v{json_text.VERSION}{REPLIES}"


def read_notes(notes: Iterable[bytes]) -> tuple[LiveWorker, ...]:
    """Return the workers of these notes, sorted by name; invalid notes are left out."""
    found = (note.decode(errors="replace").split() for note in notes)
    return tuple(sorted({LiveWorker(words[1], _version(words[2:])) for words in found if len(words) > 1}, key=_by_name))


async def live_workers(settings: Settings, *lanes: Literal["fast", "slow"]) -> tuple[LiveWorker, ...]:
    """Return the live workers of these lanes; none without `redis_url`. Raises redis-py's errors."""
    if settings.redis_url is None:
        return ()
    async with settings.redis_client() as redis:
        return await noted_workers(redis, settings, *lanes)


async def noted_workers(
    redis: AsyncRedis, settings: Settings, *lanes: Literal["fast", "slow"]
) -> tuple[LiveWorker, ...]:
    """Return the live workers of these lanes, by the notes in this Redis. Raises redis-py's errors."""
    async with redis.pipeline(transaction=False) as commands:
        commands.time()
        for lane in lanes:
            commands.zrange(settings.keys.slots(lane), 0, -1, withscores=True)
        (now, _), *answers = await commands.execute()
    return read_notes(note for notes in answers for note, at in notes if at >= now - SLOTS_COUNT_SECONDS)


class ApartReaders:
    """Knows whether every live worker reads calls with arguments that stand apart, as far as an agent has heard in the last seconds.

    It asks once a second, over the agent's `connection` to the Redis of the results, while calls are published, and as
    long as `is_awaited` says that some have not ended. `on_older` is called when an older worker has come since
    `are_all` was true last: it cannot read what was published before. Fails closed: a worker counts as live until its
    note has run out.
    """

    def __init__(
        self,
        connection: PipelinedConnection,
        settings: Settings,
        *,
        is_awaited: Callable[[], bool],
        on_older: Callable[[], object],
    ) -> None:
        self._connection = connection
        self._keys = [settings.keys.slots("fast"), settings.keys.slots("slow")]
        self._is_awaited, self._on_older = is_awaited, on_older
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._were_all = self._has_answered = False
        self.are_all = False
        """Whether every live worker is known to read such calls."""
        self.is_wanted = False
        """Whether `are_all` was needed since Redis was asked last. Both are attributes because each call reads them."""

    def want(self) -> None:
        """Ask within a second. Call this before `are_all` is read, unless it `is_wanted` already."""
        self.is_wanted = True
        if self._timer is None:
            self._ask()

    def _ask(self) -> None:
        self._timer, is_answered = None, self._has_answered
        is_needed = (self.is_wanted or self._is_awaited()) and not self._connection.is_closed
        self.are_all = self.are_all and is_answered and is_needed
        self.is_wanted = self._has_answered = False
        if is_needed:
            self._timer = self._loop.call_later(_READERS_SECONDS, self._ask)
            asked = [self._connection.send("ZRANGE", key, 0, -1) for key in self._keys]
            asyncio.gather(*asked, return_exceptions=True).add_done_callback(self._answered)

    def _answered(self, asked: "asyncio.Future[list[Any]]") -> None:
        is_late = self._timer is None  # nothing is asked any more
        if is_late or asked.cancelled() or any(isinstance(notes, BaseException) for notes in asked.result()):
            return
        workers = read_notes(note for notes in asked.result() for note in notes)
        self._has_answered = True
        self.are_all = bool(workers) and all(worker.version >= json_text.READS_APART for worker in workers)
        if self._were_all and workers and not self.are_all:
            self._on_older()
        self._were_all = self.are_all or (self._were_all and not workers)


async def older_workers(settings: Settings, version: int) -> tuple[str, ...]:
    """Return the names of the live workers, of any lane, that cannot read messages of a version.

    Raises redis-py's errors.
    """
    found = await live_workers(settings, "fast", "slow")
    return tuple(sorted({worker.name for worker in found if worker.version < version}))


def mixed_versions(workers: Iterable[LiveWorker]) -> str:
    """Describe which versions run together, and on which workers; "" if all have the same."""
    by_version = dict[int, list[str]]()
    for worker in workers:
        by_version.setdefault(worker.version, []).append(worker.name)
    if len(by_version) < 2:  # noqa: PLR2004 - else they are mixed
        return ""
    return "; ".join(f"version {version}: {', '.join(names)}" for version, names in sorted(by_version.items()))


def _version(words: list[str]) -> int:
    number = words[0].removeprefix("v") if words else ""
    return int(number) if number.isdigit() else _FIRST


def _by_name(worker: LiveWorker) -> tuple[str, int]:
    return worker.name, worker.version


async def _keep(note: Callable[[], Awaitable[None]], seconds: float, *, event: str) -> None:
    while True:
        try:
            await note()
        except (RedisError, OSError) as exc:
            log.warning(event, error=str(exc))
        await asyncio.sleep(seconds)


class LaneCapacity:
    """The note of one worker's slots, in its lane, or in both if it serves all.

    Without `redis_url` there is no note.
    """

    def __init__(self, settings: Settings, *, count: int) -> None:
        self._settings = settings
        lanes = ("fast", "slow") if settings.lane == "all" else (settings.lane,)
        self._names = [settings.keys.slots(lane) for lane in lanes]
        core, signs = "" if settings.core_url is None else WAKES_CORE, "" if settings.signing_key is None else SIGNS
        self._note = note_of(count, this_process().name) + core + signs
        self._mixed = ""  # as it was last logged

    async def keep(self) -> None:
        """Write the note again and again until cancelled. Raises nothing while Redis is away."""
        if self._settings.redis_url is not None:
            await _keep(self.note, _BEAT_SECONDS, event="slots_not_noted")

    async def note(self) -> None:
        """Write the note once, and log it when workers of other versions have come to its lanes, or gone.

        Raises redis-py's errors.
        """
        async with self._settings.redis_client() as redis:
            parameters = _NOTE_SLOTS.parameters_of(self._names, note=self._note, seconds=SLOTS_COUNT_SECONDS)
            notes = await redis.eval(_NOTE_SLOTS.text, *parameters)
        mixed = mixed_versions(read_notes(notes))
        if mixed != self._mixed:
            log.warning("workers_of_mixed_versions", workers=mixed or "no more")
            self._mixed = mixed

    async def leave(self) -> None:
        """Remove the note: the worker ends. Raises nothing."""
        if self._settings.redis_url is None:
            return
        with contextlib.suppress(RedisError, OSError):  # the note counts for some seconds only
            async with self._settings.redis_client(timeout_seconds=1) as redis, redis.pipeline() as commands:
                for name in self._names:
                    commands.zrem(name, self._note)
                await commands.execute()


def note_load(redis: Redis, settings: Settings, worker: str, calls: Mapping[str, int]) -> None:
    """Write the load once. Raises redis-py's errors."""
    note = " ".join(f"{module}={count}" for module, count in calls.items())
    keys = {"notes": settings.keys.worker_loads}
    redis.eval(_NOTE.text, *_NOTE.parameters(**keys, worker=worker, note=note, seconds=COUNTS_SECONDS))


def forget_load(redis: Redis, settings: Settings, worker: str) -> None:
    """Remove the load: the worker ends. Raises redis-py's errors."""
    redis.hdel(settings.keys.worker_loads, worker)


def read_loads(notes: Mapping[bytes, bytes], *, now: float) -> Counter[str]:
    """Return how many calls of each module run in live workers; invalid notes are left out.

    `now`: seconds by Redis's clock.
    """
    calls = Counter[str]()
    for note in notes.values():
        at, *words = note.decode(errors="replace").split() or [""]
        if not at.isdigit() or abs(now - int(at)) > COUNTS_SECONDS:
            continue
        for word in words:
            module, _, count = word.partition("=")
            if count.isdigit():
                calls[module] += int(count)
    return calls


class ConsumerNotes:
    """The notes of one worker's queues.

    `consumed` names them as they are now, `running` how many calls it runs, by module. They are written by a thread of
    their own.

    A thread, as a tool that blocks the worker's loop for a while is no reason to take the worker for dead.
    """

    def __init__(
        self,
        settings: Settings,
        consumed: Callable[[], Iterable[str]],
        running: Callable[[], Mapping[str, int]] | None = None,
        *,
        restart_seconds: float = _RESTART_SECONDS,
    ) -> None:
        self._settings = settings
        self._keys = settings.keys
        self._consumed = consumed
        self._running = running
        self._restart_seconds = restart_seconds
        process = this_process()
        self._worker = process.name
        self._queues: tuple[str, ...] | None = None
        self._noted_at = float("-inf")
        self._is_silent = False  # nothing is noted, as was logged
        self._awake = process.event()
        self._is_over = False
        self._thread = process.thread(self._run, name="toolfleet-consumers")

    def start(self) -> None:
        """Write notes from now on, until `leave`. Without `redis_url` there are none."""
        if self._settings.redis_url is not None:
            self._thread.start()

    def wake(self) -> None:
        """Check the queues at once: they have changed."""
        self._awake.set()

    def leave(self, *, restarts: bool) -> None:
        """Remove the notes: the worker ends.

        One that `restarts` leaves its queues served for a minute. Takes some seconds at most, raises nothing.
        """
        if not self._thread.is_alive():
            return
        self._is_over = True
        self._awake.set()
        self._thread.join(2 * _ANSWER_SECONDS)
        if self._queues is None or self._is_silent:  # the notes end by themselves
            return
        try:
            with self._client() as redis:
                if restarts:
                    self._note(redis, RESTART, self._queues, self._restart_seconds)
                self._leave(redis, self._queues)
                if self._running is not None:
                    forget_load(redis, self._settings, self._worker)
        except (RedisError, OSError) as exc:
            log.warning("consumer_notes_not_left", error=str(exc))

    def _run(self) -> None:
        with self._client() as redis:
            while not self._is_over:
                try:
                    self._poll(redis)
                except (RedisError, OSError) as exc:
                    if not self._is_silent:
                        log.warning("consumed_queues_not_noted", error=str(exc))
                    self._is_silent = True
                except Exception:  # a defect of ours: a worker that is taken for dead would be worse
                    if not self._is_silent:
                        log.exception("consumed_queues_not_noted")
                    self._is_silent = True
                self._awake.wait(_POLL_SECONDS)
                self._awake.clear()

    def _poll(self, redis: Redis) -> None:
        queues = tuple(sorted(map(self._keys.queue, self._consumed())))
        before, now = self._queues, machine_clock.monotonic()
        if queues == before and now - self._noted_at < _CONSUMERS_BEAT_SECONDS:
            return
        self._note(redis, self._worker, queues, NOTE_SECONDS)
        if self._running is not None:
            note_load(redis, self._settings, self._worker, self._running())
        self._queues, self._noted_at, self._is_silent = queues, now, False
        if before is not None and before != queues:
            self._leave(redis, before)

    def _leave(self, redis: Redis, queues: tuple[str, ...]) -> None:
        parameters = LEAVE.parameters(notes=self._keys.consumers, note=f"{self._worker} {digest_of(queues)}")
        redis.eval(LEAVE.text, *parameters)

    def _note(self, redis: Redis, name: str, queues: tuple[str, ...], seconds: float) -> None:
        digest = digest_of(queues)
        keys = {"notes": self._keys.consumers, "consumed": self._keys.consumed(digest)}
        parameters = NOTE.parameters(**keys, note=f"{name} {digest}", seconds=seconds)
        if not redis.eval(NOTE.text, *parameters) and queues:
            redis.eval(NOTE.text, *parameters, *queues)

    def _client(self) -> Redis:
        url, master = str(self._settings.redis_url), self._settings.sentinel_master
        return sync_client(url, master=master, timeout_seconds=_ANSWER_SECONDS)


async def workers_by_queue(settings: Settings) -> Counter[str]:
    """Return how many live workers consume each queue, by its name; those of older versions are not counted.

    Raises `FleetUnavailable`.
    """
    if settings.redis_url is None:
        return Counter()
    keys, counted = settings.keys, Counter[str]()
    try:
        async with settings.redis_client() as redis:
            found = await redis.eval(
                COUNT.text, *COUNT.parameters(notes=keys.consumers, consumed_prefix=keys.consumed(""))
            )
    except (RedisError, OSError) as exc:
        raise FleetUnavailable(f"Redis does not say who serves which module: {reason_of(exc, 'no answer')}") from exc
    for queue, workers in found:
        counted[queue.decode().removeprefix(settings.key_prefix)] += workers
    return counted


def digest_of(queues: tuple[str, ...]) -> str:
    """Return the digest of a set of queues, by their sorted keys, for a note."""
    return hashlib.sha256("\n".join(queues).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class ReplicaCount:
    """One process of a module, as all workers together find it.

    `ejected_seconds` is the longest of theirs; `workers` is how many know it.
    """

    in_flight: int = 0
    failures: int = 0
    ejected_seconds: float = 0.0
    workers: int = 0

    def plus(self, in_flight: int, failures: int, seconds: float) -> "ReplicaCount":
        """Return the same with what one more worker finds."""
        longest = max(self.ejected_seconds, seconds)
        return ReplicaCount(self.in_flight + in_flight, self.failures + failures, longest, self.workers + 1)


class ReplicaCounts:
    """The note of what one worker finds about its modules' processes, by `counts`.

    Without `redis_url` there is none.
    """

    def __init__(self, settings: Settings, counts: Callable[[], Counts]) -> None:
        self._settings = settings
        self._counts = counts
        self._worker = this_process().name
        self._is_noted = False

    async def keep(self) -> None:
        """Write the note again and again until cancelled, if there is anything to note. Raises nothing while Redis is away."""
        if self._settings.redis_url is not None:
            await _keep(self.note, _REPLICA_COUNTS_BEAT_SECONDS, event="replica_counts_not_noted")

    async def note(self) -> None:
        """Write the note once; no round trip if it is, and was, empty. Raises redis-py's errors."""
        counts = self._counts()
        if not counts and not self._is_noted:
            return
        key = self._settings.keys.hosts.counts
        async with self._settings.redis_client() as redis:
            if counts:
                text = json.dumps(counts, separators=(",", ":"))
                parameters = _NOTE.parameters(notes=key, worker=self._worker, note=text, seconds=_COUNTS_SECONDS)
                await redis.eval(_NOTE.text, *parameters)
            else:
                await redis.hdel(key, self._worker)
        self._is_noted = bool(counts)


async def replica_counts(settings: Settings) -> dict[str, dict[str, ReplicaCount]]:
    """Return what live workers have found, by module and replica's id.

    Raises redis-py's errors; empty without `redis_url`.
    """
    if settings.redis_url is None:
        return {}
    async with (
        settings.redis_client() as redis,
        redis.pipeline(transaction=False) as commands,
    ):
        commands.time()
        commands.hvals(settings.keys.hosts.counts)
        (now, _), notes = await commands.execute()
    read = (note.partition(b" ") for note in notes)
    return added_up(note for at, _, note in read if at.isdigit() and abs(now - int(at)) <= _COUNTS_SECONDS)


def added_up(notes: Iterable[bytes | str]) -> dict[str, dict[str, ReplicaCount]]:
    """Add up workers' notes. Invalid ones are ignored: a later version may write others."""
    found = dict[str, dict[str, ReplicaCount]]()
    for note in notes:
        for module, replicas in _object_in(note).items():
            for id_, numbers in replicas.items() if isinstance(replicas, dict) else ():
                if _are_counts(numbers):
                    of_module = found.setdefault(module, {})
                    of_module[id_] = of_module.get(id_, ReplicaCount()).plus(*numbers[:_FIELDS])
    return found


def _object_in(note: bytes | str) -> dict[str, Any]:
    try:
        read = json.loads(note)
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def _are_counts(numbers: Any) -> bool:
    return (
        isinstance(numbers, list)
        and len(numbers) >= _FIELDS
        and all(isinstance(number, int | float) and number >= 0 for number in numbers[:_FIELDS])
    )
