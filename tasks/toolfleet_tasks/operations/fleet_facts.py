"""Reads the state of the fleet from Redis in one pipeline, writes it as metrics, and computes how many workers a lane needs.

The list of modules is read every few seconds. If the broker is another Redis or RabbitMQ, it is asked how long its queues are.
"""

import asyncio
import json
import math
from base64 import b64decode
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self, TypeAlias

from redis.asyncio import Redis
from redis.client import NEVER_DECODE
from redis.exceptions import RedisError

from toolfleet_registry import metric_families
from toolfleet_registry.contracts.names import LOCAL
from toolfleet_registry.directory.directory import ModuleDirectory
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.errors import BrokerAway, FleetError, FleetUnavailable
from toolfleet_registry.live_copy import PAUSE_SECONDS, LiveCopy
from toolfleet_registry.metric_families import Family
from toolfleet_registry.metrics import Sample
from toolfleet_registry.redis.keys import ApprovalKeys, Keys
from toolfleet_registry.redis.servers import answering, async_client
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock, machine_clock
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.presence import COUNT, read_loads, read_notes
from toolfleet_tasks.queue_states import QueueState, QueueStates, states_of
from toolfleet_tasks.queues import CONTROL, lane_of, queue_of
from toolfleet_tasks.scripts import SLOTS_COUNT_SECONDS, script

if TYPE_CHECKING:
    from toolfleet_tasks.operations.queue_lengths import QueueLengths

Lane = Literal["fast", "slow"]
LANES: Final[tuple[Lane, ...]] = ("fast", "slow")

READ_SECONDS = 3.0
"""For one reading: Prometheus gives a scrape ten."""

BROKER_SECONDS = 1.5
"""For an answer of a broker that is not the fleet's Redis."""

QUEUES = script("queues/oldest")
"""Returns of each queue that holds something its number, from 1, its length, and its oldest message, '' if that is not known."""

BREAKERS = script("breaker/failing")
"""Returns of each breaker that has seen failures its number, from 1, what it is, for how many ms, the failures in a row, and why it was opened."""

_FRESH_SECONDS = 1.0  # many who ask at once cost Redis one reading
_MODULES_SECONDS = 5.0  # between two readings of which modules there are
_AT_ONCE = 500  # queues or breakers of one script: it takes Redis about a millisecond
_LARGEST_MESSAGE, _MESSAGES = 64 * 2**10, 50  # bytes of a message that is brought to see how old it is, and how many
_LATE_MS = 5_000  # a job that is due is run within a second or two
_AS_BYTES = {NEVER_DECODE: True}

log = get_logger(__name__)

_Waiting: TypeAlias = dict[
    str, tuple[int | None, float | None]
]  # by queue: how many, and for how long, as far as known


class _Count(NamedTuple):
    """One number that Redis counts, by the command that reads it at a moment (ms); and its metric."""

    command: Callable[[Keys, float], tuple[str | float, ...]]
    family: Family | None = None
    labels: tuple[str, ...] = ()


_COUNTS: Final[Mapping[str, _Count]] = {
    "approvals_waiting": _Count(
        lambda keys, _: ("ZCARD", ApprovalKeys(keys).waiting), metric_families.APPROVALS_WAITING
    ),
    "jobs": _Count(lambda keys, _: ("ZCARD", keys.jobs_due), metric_families.JOBS),
    "jobs_due": _Count(lambda keys, now: ("ZCOUNT", keys.jobs_due, "-inf", now), metric_families.JOBS_DUE),
    "jobs_late": _Count(lambda keys, now: ("ZCOUNT", keys.jobs_due, "-inf", now - _LATE_MS), metric_families.JOBS_LATE),
    "wakeups": _Count(lambda keys, _: ("ZCARD", keys.wakes_due), metric_families.WAKEUPS_WAITING, ("job",)),
    "wakeup_calls": _Count(lambda keys, _: ("ZCARD", keys.calls_due), metric_families.WAKEUPS_WAITING, ("call",)),
    "dead_calls": _Count(lambda keys, _: ("ZCARD", keys.dead_order), metric_families.DEAD_LETTERS, ("call",)),
    "dead_wakeups": _Count(lambda keys, _: ("ZCARD", keys.dead_wakes_order), metric_families.DEAD_LETTERS, ("wake",)),
    "dead_webhooks": _Count(
        lambda keys, _: ("ZCARD", keys.dead_webhooks("-order")), metric_families.DEAD_LETTERS, ("webhook",)
    ),
    "quarantined": _Count(lambda keys, _: ("GET", keys.quarantined), metric_families.QUARANTINED),
    "in_quarantine": _Count(lambda keys, _: ("LLEN", keys.quarantine)),
}


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """One queue. `waiting` is `None` where that is not known, and `oldest_seconds` where no message says it.

    `state`: what operators have done to it, `None` for nothing. `in_lines`: how many calls wait for their turn, before they are in
    the queue: no worker could take them, and more workers end no turn earlier.
    """

    queue: str
    lane: Lane
    waiting: int | None
    oldest_seconds: float | None
    running: int
    workers: int
    state: QueueState | None = None
    in_lines: int = 0

    @property
    def all_waiting(self) -> int | None:
        """The number of calls that wait in the queue and in lines for it; `None` where that is not known."""
        return None if self.waiting is None else self.waiting + self.in_lines

    @property
    def module(self) -> str:
        """The module that the waiting calls are for."""
        return self.queue.removeprefix(queue_of(""))

    @property
    def is_paused(self) -> bool:
        """Whether its waiting calls are held."""
        return self.state is not None and self.state.state == "paused"


@dataclass(frozen=True, slots=True)
class LaneFacts:
    """One lane: the names of its live workers, and how many calls each of them runs at once, in the same order."""

    lane: Lane
    names: tuple[str, ...]
    slots: tuple[int, ...]

    @property
    def workers(self) -> int:
        """The number of live workers."""
        return len(self.slots)


@dataclass(frozen=True, slots=True)
class BreakerFacts:
    """A module's breaker: `closed`, `half` or `open`, for how many more ms, why, and how many calls in a row were not answered."""

    module: str
    state: str
    failures: int
    rest_ms: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """The fleet at one moment.

    `modules`: the lane of each module. `held`: messages that workers have taken; `None` if that is not known. `counts` are those of
    `_COUNTS`. `changes`: of manifests, tools and modules, by kind. `broker_error`: why the broker does not say what waits;
    `None` if it does, or is the fleet's Redis.
    """

    modules: Mapping[str, Lane] = field(default_factory=dict[str, Lane])
    states: QueueStates = field(default_factory=QueueStates)
    queues: tuple[QueueFacts, ...] = ()
    lanes: tuple[LaneFacts, ...] = ()
    breakers: tuple[BreakerFacts, ...] = ()
    held: int | None = None
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    changes: Mapping[str, int] = field(default_factory=dict[str, int])
    broker_error: str | None = None

    def of_lane(self, lane: Lane) -> tuple[QueueFacts, ...]:
        """The queues of its modules; the fleet's own is no call's."""
        return tuple(queue for queue in self.queues if queue.lane == lane and queue.queue != CONTROL)


class FleetReader:
    """Reads the facts of the settings' fleet over the client of its Redis; `broker` is another Redis, if the queues are there.

    Close it at the end: it keeps a connection to RabbitMQ, if that is the broker.
    """

    def __init__(self, redis: Redis, settings: Settings, *, broker: Redis | None = None) -> None:
        self.redis, self.broker = redis, broker or redis
        self.known = KnownModules(settings)
        self._settings, self._keys = settings, settings.keys
        self._directory = ModuleDirectory(redis, settings)
        self._read_at = float("-inf")
        self._lengths: QueueLengths | None = None

    @classmethod
    @asynccontextmanager
    async def of(cls, settings: Settings, *, timeout_seconds: float = 5) -> AsyncGenerator[Self]:
        """Open a reader of the fleet of these settings. Raises `SettingsError` if they name none."""
        async with AsyncExitStack() as stack:
            other = None
            redis = await stack.enter_async_context(settings.redis_client(timeout_seconds=timeout_seconds))
            if (broker := str(settings.broker)) != settings.redis_url and settings.has_redis_broker:
                client = async_client(broker, master=settings.sentinel_master, timeout_seconds=timeout_seconds)
                other = await stack.enter_async_context(client)
            reader = cls(redis, settings, broker=other)
            stack.callback(reader.close)
            yield reader

    def close(self) -> None:
        """Close the connection to RabbitMQ."""
        if self._lengths is not None:
            self._lengths.close()

    async def read(self, *, now: float | None = None) -> FleetFacts:
        """Read the facts at the fleet's time `now`, by default that of this process.

        If the broker is not the fleet's Redis and is away, only what waits in its queues is missing. Raises redis-py's errors, and
        `FleetUnavailable`; is bounded by the client's own time-outs.
        """
        moment = fleet_clock.now() if now is None else now
        if machine_clock.monotonic() - self._read_at > _MODULES_SECONDS:
            self.known.take((await self._directory.read()).entries)
            self._read_at = machine_clock.monotonic()
        modules = sorted(self.known.names | self.known.served | self.known.ending)
        lanes: dict[str, Lane] = {module: lane_of(module, self.known.settings) for module in modules}
        own = self._settings.worker_modules
        names, checked = [CONTROL, *map(queue_of, modules)], [one for one in modules if one not in own]
        answers = await self._ask_all(checked, moment)  # first: a call that goes from a line to its queue is not missed
        waiting, held, broker_error = await self._waiting(names, moment)
        in_lines = {queue_of(module): int(count or 0) for module, count in zip(checked, answers["lines"], strict=True)}
        workers, running = Counter[str](), read_loads(answers["loads"], now=answers["time"][0])
        states = states_of(answers["states"])
        for queue, count in answers["consumers"]:
            workers[queue.decode().removeprefix(self._settings.key_prefix)] += count
        return FleetFacts(
            modules=lanes,
            states=states,
            queues=tuple(
                QueueFacts(
                    name,
                    lanes.get(module, "fast"),
                    *waiting.get(name, (None, None)),
                    running[module],
                    workers[name],
                    None if name == CONTROL else states.of(module, lanes[module]),
                    in_lines.get(name, 0),
                )
                for name in names
                for module in [name.removeprefix(queue_of(""))]
            ),
            lanes=tuple(_lane_of_notes(lane, answers[lane], answers["time"][0]) for lane in LANES),
            breakers=_breakers_of(checked, answers["breakers"]),
            held=held,
            counts={name: int(answers[name] or 0) for name in _COUNTS},
            changes={kind.decode(): int(count) for kind, count in answers["changes"].items()},
            broker_error=broker_error,
        )

    async def _ask_all(self, modules: Sequence[str], now: float) -> dict[str, Any]:
        keys, pipe, names = self._keys, self.redis.pipeline(transaction=False), list[str]()

        def ask(name: str, *words: str | float, **options: Any) -> None:
            names.append(name)
            pipe.execute_command(*words, **_AS_BYTES, **options)

        ask("time", "TIME")
        for lane in LANES:
            ask(lane, "ZRANGE", keys.slots(lane), 0, -1, "WITHSCORES", withscores=True)
        ask("loads", "HGETALL", keys.worker_loads)
        ask("consumers", *COUNT.command(notes=keys.consumers, consumed_prefix=keys.consumed("")))
        for name, count in _COUNTS.items():
            ask(name, *count.command(keys, now * 1000))
        ask("states", "HGETALL", keys.queue_states)
        ask("changes", "HGETALL", keys.tool_changes)
        for part in in_parts(modules):
            ask("breakers", *BREAKERS.command(breakers=[keys.breaker(module) for module in part]))
        for module in modules:
            ask("lines", "HGET", keys.line_load(keys.queue(queue_of(module))), "calls")
        found = dict[str, Any]({"breakers": [], "lines": []})
        for name, answer in zip(names, await pipe.execute(), strict=True):
            if name in {"breakers", "lines"}:
                found[name].append(answer)
            else:
                found[name] = answer
        return found

    async def _waiting(self, names: Sequence[str], now: float) -> tuple[_Waiting, int | None, str | None]:
        """Return what waits in each queue, how many messages workers hold, and why the broker does not say it."""
        if self.broker is self.redis and self._settings.has_redis_broker:
            return *await self._waiting_in_redis(names, now), None
        try:
            if not self._settings.has_redis_broker:
                return await self._waiting_in_rabbitmq(names), None, None
            async with answering(self.broker, seconds=BROKER_SECONDS):
                return *await self._waiting_in_redis(names, now), None
        except BrokerAway as exc:
            return {}, None, str(exc)
        except FleetUnavailable as exc:
            return {}, None, f"The broker does not answer: {exc}"

    async def _waiting_in_redis(self, names: Sequence[str], now: float) -> tuple[_Waiting, int]:
        pipe = self.broker.pipeline(transaction=False)
        for part in in_parts(names):
            keys = [self._keys.queue(name) for name in part]
            command = QUEUES.command(queues=keys, most_bytes=_LARGEST_MESSAGE, most_reads=_MESSAGES)
            pipe.execute_command(*command, **_AS_BYTES)
        pipe.hlen(f"{self._keys.prefix}unacked")
        found: _Waiting = dict.fromkeys(names, (0, 0.0))
        *answers, held = await pipe.execute()
        for part, answer in zip(in_parts(names), answers, strict=True):
            for number, length, oldest in answer:
                found[part[int(number) - 1]] = (length, age_of(oldest, now))
        return found, int(held)

    async def _waiting_in_rabbitmq(self, names: Sequence[str]) -> _Waiting:
        """Read the lengths from RabbitMQ. It does not show the age of its messages, not even that a queue is empty."""
        if self._lengths is None:
            # Celery takes longer to load than all the rest, and at Redis nothing needs it.
            from toolfleet_tasks.operations.queue_lengths import QueueLengths

            self._lengths = QueueLengths(self._settings)
        lengths = await self._lengths.read(names, seconds=BROKER_SECONDS)
        return {name: (waiting, None) for name, waiting in zip(names, lengths, strict=True)}


def age_of(message: bytes, now: float) -> float | None:
    """Return how long ago (seconds) a call's message was published, by its own timestamp; `None` if it is no call's message.

    Verifies nothing: it is only displayed.
    """
    try:
        found = json.loads(message)
        if "body" in found:
            text = json.loads(b64decode(found["body"]))[0][0]
            call = json.loads(text if text.startswith("{") else text.partition(" ")[2])
        else:
            call = found["sealed"]["call"]
        published_at = call["published_at"]
        return max(0.0, now - float(published_at))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None


def _lane_of_notes(lane: Lane, notes: Sequence[tuple[bytes, float]], now: float) -> LaneFacts:
    slots = dict[str, int]()
    for note, noted_at in notes:
        count = note.partition(b" ")[0]
        if noted_at >= now - SLOTS_COUNT_SECONDS and count.isdigit() and (live := read_notes([note])):
            slots[live[0].name] = int(count)
    return LaneFacts(lane, tuple(sorted(slots)), tuple(slots[name] for name in sorted(slots)))


def _breakers_of(modules: Sequence[str], answers: Sequence[Sequence[Any]]) -> tuple[BreakerFacts, ...]:
    found = {module: BreakerFacts(module, "closed", 0) for module in modules}
    for part, answer in zip(in_parts(modules), answers, strict=True):
        for number, kind, rest_ms, failures, why in answer:
            module = part[int(number) - 1]
            found[module] = BreakerFacts(module, kind.decode(), int(failures), int(rest_ms), why.decode())
    return tuple(found.values())


def in_parts(names: Sequence[str]) -> list[Sequence[str]]:
    """Return the names in parts of a size that one command may have."""
    return [names[start : start + _AT_ONCE] for start in range(0, len(names), _AT_ONCE)]


@dataclass(frozen=True, slots=True)
class LaneLoad:
    """A lane at one moment.

    `slots`: of one worker, as the live ones say, or the settings where none lives. `oldest_seconds`: since when the oldest of its
    calls has waited; `None` where that is not known. `paused`: calls that wait in queues which operators have paused, and are not
    among those that are `waiting`.
    """

    lane: Lane
    running: int
    waiting: int
    workers: int
    slots: int
    oldest_seconds: float | None
    paused: int = 0

    @property
    def wanted(self) -> int:
        """The number of workers that have a slot for each of these calls."""
        return math.ceil((self.running + self.waiting) / self.slots)


def lane_load(facts: FleetFacts, lane: Lane, *, usual_slots: int) -> LaneLoad | None:
    """Return the load of a lane, `None` if the broker does not say what waits; `usual_slots`: of a worker without a note."""
    if facts.broker_error is not None:
        return None
    queues = facts.of_lane(lane)
    slots = next((one.slots for one in facts.lanes if one.lane == lane), ())
    ages = [queue.oldest_seconds for queue in queues if queue.waiting and not queue.is_paused]
    known = [age for age in ages if age is not None]
    return LaneLoad(
        lane,
        running=sum(queue.running for queue in queues),
        waiting=sum(queue.waiting or 0 for queue in queues if not queue.is_paused),
        workers=len(slots),
        slots=max(min(slots, default=usual_slots), 1),
        oldest_seconds=max(known, default=None if ages else 0.0),
        paused=sum(queue.waiting or 0 for queue in queues if queue.is_paused),
    )


_STATE = {"open": 0.0, "draining": 1.0, "paused": 2.0}
_BREAKER = {"closed": 0.0, "half": 1.0, "open": 2.0}


class FleetMetrics:
    """The metrics of one gateway, on its loop."""

    def __init__(self, reader: FleetReader, settings: Settings) -> None:
        self._reader = reader
        self._settings = settings
        self._copy = LiveCopy(self._read, event="fleet_metrics_not_read")
        self._facts: FleetFacts | None = None
        self._seconds = 0.0

    async def facts(self) -> FleetFacts | None:
        """Return the facts of now, or of a second ago; `None` if Redis does not answer in time."""
        is_known = await self._copy.confirm(_FRESH_SECONDS, patience_seconds=READ_SECONDS + PAUSE_SECONDS)
        return self._facts if is_known else None

    async def samples(self) -> list[Sample]:
        """Return the facts as metrics. Raises nothing."""
        facts = await self.facts()
        return [
            Sample(metric_families.REDIS_UP, float(facts is not None)),
            Sample(metric_families.FLEET_READ, self._seconds),
            *(() if facts is None else _samples(facts, self._settings)),
        ]

    async def _read(self) -> None:
        began = fleet_clock.suspend_aware()
        try:
            async with asyncio.timeout(READ_SECONDS):
                self._facts = await self._reader.read()
        except (RedisError, FleetError, OSError) as exc:  # TimeoutError is an OSError
            raise FleetUnavailable(str(exc) or repr(exc)) from exc
        finally:
            self._seconds = fleet_clock.suspend_aware() - began
        if self._facts.broker_error is not None:
            log.warning("queue_lengths_not_read", error=self._facts.broker_error)


def _samples(facts: FleetFacts, settings: Settings) -> Iterator[Sample]:
    yield Sample(metric_families.BROKER_UP, float(facts.broker_error is None))
    for queue in facts.queues:
        labels = (queue.queue, queue.lane)
        yield from _known(metric_families.QUEUE_WAITING, queue.waiting, labels)
        yield from _known(metric_families.QUEUE_OLDEST, queue.oldest_seconds, labels)
        yield Sample(metric_families.QUEUE_RUNNING, queue.running, labels)
        yield Sample(metric_families.QUEUE_WORKERS, queue.workers, labels)
        yield Sample(metric_families.QUEUE_STATE, _STATE["open" if queue.state is None else queue.state.state], labels)
    for lane in facts.lanes:
        load = lane_load(facts, lane.lane, usual_slots=settings.worker_concurrency)
        yield Sample(metric_families.LANE_WORKERS, lane.workers, (lane.lane,))
        yield Sample(metric_families.LANE_SLOTS, sum(lane.slots), (lane.lane,))
        yield from _known(metric_families.LANE_WANTED, None if load is None else load.wanted, (lane.lane,))
    for breaker in facts.breakers:
        if breaker.module == LOCAL:
            continue  # the workers themselves: their own metrics say how they are
        yield Sample(metric_families.BREAKER, _BREAKER.get(breaker.state, 0.0), (breaker.module,))
        yield Sample(metric_families.MODULE_FAILURES, breaker.failures, (breaker.module,))
    yield from _known(metric_families.HELD, facts.held)
    for name, count in _COUNTS.items():
        if count.family is not None:
            yield Sample(count.family, facts.counts[name], count.labels)
    for kind, changes in facts.changes.items():
        yield Sample(metric_families.REGISTRY_CHANGES, changes, (kind,))


def _known(family: Family, value: float | None, labels: tuple[str, ...] = ()) -> Iterable[Sample]:
    return () if value is None else (Sample(family, value, labels),)
