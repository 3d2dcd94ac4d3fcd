"""Reads how the fleet is out of Redis in one pipeline, and computes how many workers a lane needs.

Which these are is read every few seconds. Where the broker is RabbitMQ, that is asked how long its queues are.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from redis.asyncio import Redis
from redis.client import NEVER_DECODE

from toolfleet_registry.contracts.names import LOCAL, SCHEDULER
from toolfleet_registry.directory.directory import ModuleDirectory
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.errors import BrokerAway
from toolfleet_registry.redis.keys import ApprovalKeys, QueueKeys, WorkerKeys
from toolfleet_registry.redis.urls import is_redis_url
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock, machine_clock
from toolfleet_tasks.operations.fleet_status import BREAKERS, BROKER_SECONDS, QUEUES, age_of
from toolfleet_tasks.presence import COUNT, read_loads, read_notes
from toolfleet_tasks.queue_states import QueueState, states_of
from toolfleet_tasks.queues import CONTROL, lane_of, queue_of
from toolfleet_tasks.scripts import SLOTS_COUNT_SECONDS

if TYPE_CHECKING:
    from toolfleet_tasks.operations.queue_lengths import QueueLengths

Lane = Literal["fast", "slow"]
LANES: Final[tuple[Lane, ...]] = ("fast", "slow")

_MODULES_SECONDS = 5.0  # between two readings of which modules there are
_AT_ONCE = 500  # queues or breakers of one script: Redis is at them for about a millisecond
_LARGEST_MESSAGE, _MESSAGES = 64 * 2**10, 50  # bytes of a message that is brought to see how old it is, and how many
_LATE_MS = 5_000  # a job that is due is looked at within a second or two
_AS_BYTES = {NEVER_DECODE: True}

_Waiting: TypeAlias = dict[str, tuple[int | None, float | None]]  # by queue: how many, and since when, as far as known

_COUNTS: Final = (
    "approvals_waiting",
    "jobs",
    "jobs_due",
    "jobs_late",
    "wakeups",
    "wakeup_calls",
    "dead_calls",
    "dead_wakeups",
    "dead_webhooks",
    "quarantined",
)


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """One queue. `waiting` is `None` where that is not known, and `oldest_seconds` where no message says it.

    `state`: what operators have done to it, `None` for nothing.
    """

    queue: str
    lane: Lane
    waiting: int | None
    oldest_seconds: float | None
    running: int
    workers: int
    state: QueueState | None = None

    @property
    def is_paused(self) -> bool:
        """Whether its waiting calls are held."""
        return self.state is not None and self.state.state == "paused"


@dataclass(frozen=True, slots=True)
class LaneFacts:
    """One lane: its live `workers`, and how many calls each of them runs at once."""

    lane: Lane
    slots: tuple[int, ...]

    @property
    def workers(self) -> int:
        """The number of live workers."""
        return len(self.slots)


@dataclass(frozen=True, slots=True)
class BreakerFacts:
    """A module's breaker: `closed`, `half` or `open`, and how many calls in a row were not answered."""

    module: str
    state: str
    failures: int


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """A fleet at one moment. `held` as `FleetStatus` has it; `counts` by what they are called below.

    `broker_error`: why RabbitMQ does not say what waits; `None` where it does, or Redis is the broker.
    """

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
    """Reads the facts of the settings' fleet, whose Redis the client is; `broker` is another Redis, if the queues are there.

    Close it at the end: it keeps a connection to RabbitMQ, if that is the broker.
    """

    def __init__(self, redis: Redis, settings: Settings, *, broker: Redis | None = None) -> None:
        self._redis, self._broker = redis, broker or redis
        self._settings, self._keys = settings, settings.keys
        self._known = KnownModules(settings)
        self._directory = ModuleDirectory(redis, settings)
        self._read_at = float("-inf")
        self._has_redis_broker = is_redis_url(str(settings.broker))
        self._lengths: QueueLengths | None = None

    def close(self) -> None:
        """Let go of what it has opened."""
        if self._lengths is not None:
            self._lengths.close()

    async def read(self) -> FleetFacts:
        """The facts now. Raises redis-py's errors, and `FleetUnavailable`; is bounded by the client's own time-outs.

        A RabbitMQ that is away takes nothing from it but what waits in its queues.
        """
        if machine_clock.monotonic() - self._read_at > _MODULES_SECONDS:
            self._known.take((await self._directory.read()).entries)
            self._read_at = machine_clock.monotonic()
        modules = sorted(self._known.names | self._known.served | self._known.ending)
        lanes: dict[str, Lane] = {queue_of(module): lane_of(module, self._known.settings) for module in modules}
        names, checked = [CONTROL, *lanes], [module for module in modules if module not in {LOCAL, SCHEDULER}]
        answers = await self._ask_all(checked)
        waiting, broker_error = await self._waiting(names)
        workers, running = Counter[str](), read_loads(answers["loads"], now=answers["time"][0])
        states = states_of(answers["states"])
        for queue, count in answers["consumers"]:
            workers[queue.decode().removeprefix(self._settings.key_prefix)] += count
        return FleetFacts(
            queues=tuple(
                QueueFacts(
                    name,
                    lanes.get(name, "fast"),
                    *waiting.get(name, (None, None)),
                    running[_module(name)],
                    workers[name],
                    None if name == CONTROL else states.of(_module(name), lanes[name]),
                )
                for name in names
            ),
            lanes=tuple(LaneFacts(lane, _slots_of(answers[lane])) for lane in LANES),
            breakers=_breakers_of(checked, answers["breakers"]),
            held=answers["held"],
            counts={name: int(answers[name] or 0) for name in _COUNTS},
            changes={kind.decode(): int(count) for kind, count in answers["changes"].items()},
            broker_error=broker_error,
        )

    async def _ask_all(self, modules: Sequence[str]) -> dict[str, Any]:
        keys, pipe, names = self._keys, self._redis.pipeline(transaction=False), list[str]()

        def ask(name: str, *words: str | float) -> None:
            names.append(name)
            pipe.execute_command(*words, **_AS_BYTES)

        now = fleet_clock.now()
        ask("time", "TIME")
        for lane in LANES:
            ask(lane, "ZRANGEBYSCORE", keys.slots(lane), now - SLOTS_COUNT_SECONDS, "+inf")
        ask("loads", "HGETALL", WorkerKeys(keys.prefix).loads)
        ask("consumers", *COUNT.command(notes=keys.consumers, consumed_prefix=keys.consumed("")))
        for name, key in self._sorted_sets().items():
            ask(name, "ZCARD", key)
        ask("jobs_due", "ZCOUNT", keys.jobs_due, "-inf", now * 1000)
        ask("jobs_late", "ZCOUNT", keys.jobs_due, "-inf", now * 1000 - _LATE_MS)
        ask("states", "HGETALL", QueueKeys(keys.prefix).states)
        ask("quarantined", "GET", keys.quarantined)
        ask("changes", "HGETALL", keys.tool_changes)
        for part in _parts(modules):
            ask("breakers", *BREAKERS.command(breakers=[keys.breaker(module) for module in part]))
        found = dict[str, Any]({"breakers": []})
        for name, answer in zip(names, await pipe.execute(), strict=True):
            if name == "breakers":
                found["breakers"].append(answer)
            else:
                found[name] = answer
        found["held"] = int(await self._broker.hlen(f"{keys.prefix}unacked")) if self._has_redis_broker else None
        return found

    def _sorted_sets(self) -> dict[str, str]:
        keys = self._keys
        return {
            "approvals_waiting": ApprovalKeys(keys).waiting,
            "jobs": keys.jobs_due,
            "wakeups": keys.wakes_due,
            "wakeup_calls": keys.calls_due,
            "dead_calls": keys.dead_order,
            "dead_wakeups": keys.dead_wakes_order,
            "dead_webhooks": keys.dead_webhooks("-order"),
        }

    async def _waiting(self, names: Sequence[str]) -> tuple[_Waiting, str | None]:
        if self._has_redis_broker:
            return await self._waiting_in_redis(names), None
        try:
            return await self._waiting_in_rabbitmq(names), None
        except BrokerAway as exc:
            return {}, str(exc)

    async def _waiting_in_redis(self, names: Sequence[str]) -> _Waiting:
        pipe = self._broker.pipeline(transaction=False)
        for part in _parts(names):
            keys = [self._keys.queue(name) for name in part]
            command = QUEUES.command(queues=keys, most_bytes=_LARGEST_MESSAGE, most_reads=_MESSAGES)
            pipe.execute_command(*command, **_AS_BYTES)
        found: _Waiting = dict.fromkeys(names, (0, 0.0))
        now = fleet_clock.now()
        for part, answer in zip(_parts(names), await pipe.execute(), strict=True):
            for number, length, oldest in answer:
                found[part[int(number) - 1]] = (length, age_of(oldest, now))
        return found

    async def _waiting_in_rabbitmq(self, names: Sequence[str]) -> _Waiting:
        """Read the lengths from RabbitMQ. It does not show the age of its messages, not even that a queue is empty."""
        if self._lengths is None:
            # Celery takes longer to load than all the rest, and at Redis nothing needs it.
            from toolfleet_tasks.operations.queue_lengths import QueueLengths  # noqa: PLC0415

            self._lengths = QueueLengths(self._settings)
        lengths = await self._lengths.read(names, seconds=BROKER_SECONDS)
        return {name: (waiting, None) for name, waiting in zip(names, lengths, strict=True)}


def _module(queue: str) -> str:
    return queue.removeprefix(queue_of(""))


def _slots_of(notes: Sequence[bytes]) -> tuple[int, ...]:
    live = {worker.name for worker in read_notes(notes)}
    found = (note.split() for note in notes)
    by_name = {
        words[1].decode(errors="replace"): int(words[0]) for words in found if len(words) > 1 and words[0].isdigit()
    }
    return tuple(by_name[name] for name in sorted(live & by_name.keys()))


def _breakers_of(modules: Sequence[str], answers: Sequence[Sequence[Any]]) -> tuple[BreakerFacts, ...]:
    found = {module: BreakerFacts(module, "closed", 0) for module in modules}
    for part, answer in zip(_parts(modules), answers, strict=True):
        for number, kind, _, failures, _ in answer:
            module = part[int(number) - 1]
            found[module] = BreakerFacts(module, kind.decode(), int(failures))
    return tuple(found.values())


def _parts(names: Sequence[str]) -> list[Sequence[str]]:
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
