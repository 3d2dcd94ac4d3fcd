"""Reads how each queue of a fleet is: what operators have done to it, what waits in it, and what workers have of it."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, TypeAlias, cast

from redis.asyncio import Redis
from redis.client import NEVER_DECODE

from toolfleet_registry.directory.directory import ModuleDirectory
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.redis.servers import answering, async_client
from toolfleet_registry.redis.urls import fleet_url, is_redis_url
from toolfleet_registry.settings import Settings
from toolfleet_tasks.operations.fleet_facts import FleetFacts, FleetReader, QueueFacts
from toolfleet_tasks.queue_states import LANE_PREFIX, QueueStates, QueueStateStore, stored_name
from toolfleet_tasks.queues import CONTROL, queue_of

OverviewState: TypeAlias = Literal["open", "paused", "draining", "drained"]

_SECONDS = 3.0  # for one reading
_POLL_SECONDS = 0.3  # between two readings, while a caller waits
_NOTED_SECONDS = 2.5  # by then each worker has noted what it runs: it does so once a second
_SCANNED = 500  # held messages of one answer
_AS_BYTES: Final[dict[str, Any]] = {NEVER_DECODE: True}


@dataclass(frozen=True, slots=True)
class QueueOverview:
    """One queue at one moment."""

    queue: str
    """Its name."""
    module: str
    """The module whose calls wait there."""
    lane: Literal["fast", "slow"]
    """The lane that serves it."""
    state: OverviewState
    """`open`, `paused`, `draining`, or `drained`: it drains, and nothing waits or runs any more."""
    since: float | None
    """Since when, in seconds since the epoch; `None` where it is open."""
    by: str
    """Who has done it."""
    reason: str
    """Why, as they said."""
    is_lanes: bool
    """Whether it holds for the whole lane."""
    waiting: int | None
    """Calls in the queue; `None` while a broker that is not the fleet's Redis does not answer."""
    held: int
    """Calls that workers have taken and that have not ended, those that wait for a retry among them; with RabbitMQ those that run, as workers said last."""
    oldest_seconds: float | None
    """Since when the oldest call has waited; `None` where nobody knows it."""
    workers: int
    """How many live workers serve it."""

    @property
    def is_empty(self) -> bool:
        """Return whether nothing waits or runs, as far as that is known."""
        return self.waiting == 0 and not self.held


class Emptiness:
    """Distinguishes an empty queue from one that only seems so: a call on its way to a worker is for a moment in neither place.

    If the broker says what workers hold, two readings in a row are sure. Otherwise it takes as long as a worker may
    need to note that it has started a call which has left its queue.
    """

    def __init__(self, *, sees_held: bool) -> None:
        self._calm_seconds = 0.0 if sees_held else _NOTED_SECONDS
        self._since = 0.0
        self.seen = 0
        """How many readings in a row have found nothing."""

    def is_over(self, asked_at: float, *, is_empty: bool, until: float, waits: bool = True) -> bool:
        """Note a reading at this time. Return whether the queues are surely empty, or `until` has come and they are not even probably so.

        Times are of one clock, in seconds.
        """
        self.seen = self.seen + 1 if is_empty else 0
        if self.seen == 1:
            self._since = asked_at
        if self.seen > 1 and asked_at - self._since >= self._calm_seconds:
            return True
        return asked_at >= until and not (waits and self.seen)


class QueueOverviews:
    """Reads them of one fleet. Raises `FleetUnavailable` within some seconds."""

    def __init__(self, redis: Redis, broker: Redis | None, settings: Settings) -> None:
        self._redis, self._broker = redis, broker
        self._settings = settings
        self._reader = FleetReader(redis, settings, broker=broker)
        self.broker_error: str | None = None
        """Why the last reading does not say what waits; `None` if it does."""

    @classmethod
    @asynccontextmanager
    async def of(cls, settings: Settings) -> AsyncGenerator[Self]:
        """Open the overview for the fleet of these settings. Raises `SettingsError` if they name none."""
        url, broker = fleet_url(settings.redis_url), str(settings.broker)
        async with AsyncExitStack() as stack:
            redis = await stack.enter_async_context(async_client(url, master=settings.sentinel_master))
            other = None
            if broker != url and is_redis_url(broker):
                other = await stack.enter_async_context(async_client(broker, master=settings.sentinel_master))
            overviews = cls(redis, other, settings)
            stack.callback(overviews._reader.close)
            yield overviews

    async def read(self) -> tuple[QueueOverview, ...]:
        """Return the overviews of all modules' queues, by name.

        If the broker is away, only the waiting calls are missing: see `broker_error`.
        """
        async with answering(self._redis, seconds=_SECONDS):
            held = (
                await self._held()
            )  # first: what goes from a queue to a worker meanwhile is counted twice, and never missed
            facts = await self._reader.read()
        self.broker_error = facts.broker_error
        states = await QueueStateStore(self._redis, self._settings).read()
        return tuple(_overview(queue, states, held) for queue in _of_modules(facts))

    async def named(self, name: str) -> tuple[QueueOverview, ...]:
        """The one of this name, or those of this lane. Raises `NoSuchQueue`."""
        known = KnownModules(self._settings)
        known.take((await ModuleDirectory(self._redis, self._settings).read()).entries)
        stored = stored_name(name, known, await QueueStateStore(self._redis, self._settings).read())
        lane = stored.removeprefix(LANE_PREFIX) if stored.startswith(LANE_PREFIX) else None
        return tuple(queue for queue in await self.read() if (queue.lane == lane if lane else queue.module == stored))

    async def wait_until_empty(self, name: str, *, seconds: float) -> tuple[QueueOverview, ...]:
        """Return when surely nothing waits or runs there any more, or after so long; as it is then. Raises as `named`.

        Where it seems empty then, a moment later: see `Emptiness`.
        """
        loop = asyncio.get_running_loop()
        until, emptiness = loop.time() + seconds, Emptiness(sees_held=is_redis_url(str(self._settings.broker)))
        while True:
            asked_at = loop.time()
            queues = await self.named(name)
            is_empty = all(queue.is_empty for queue in queues)
            if emptiness.is_over(asked_at, is_empty=is_empty, until=until, waits=seconds > 0):
                return queues
            await asyncio.sleep(_POLL_SECONDS if emptiness.seen else min(_POLL_SECONDS, max(until - loop.time(), 0.0)))

    async def _held(self) -> Counter[str] | None:
        """Return how many messages of each queue workers hold; `None` if the broker does not say."""
        if not is_redis_url(str(self._settings.broker)):
            return None
        redis, counted, cursor = self._broker or self._redis, Counter[str](), 0
        while True:
            words = ("HSCAN", f"{self._settings.key_prefix}unacked", cursor, "COUNT", _SCANNED)
            answer = cast("Any", await redis.execute_command(*words, **_AS_BYTES))
            cursor, held = int(answer[0]), answer[1]
            counted.update(map(_queue_in, held.values() if isinstance(held, dict) else held[1::2]))
            if not cursor:
                return counted


def _queue_in(held: bytes) -> str:
    """The queue of a held message, which is its last text: `[<message>,"","<queue>"]`."""
    return held[:-2].rpartition(b'"')[2].decode(errors="replace")


def _of_modules(facts: FleetFacts) -> Iterable[QueueFacts]:
    return (queue for queue in facts.queues if queue.queue != CONTROL)


def _overview(queue: QueueFacts, states: QueueStates, held: Counter[str] | None) -> QueueOverview:
    module, state = queue.queue.removeprefix(queue_of("")), queue.state
    taken, waiting = queue.running if held is None else held[queue.queue], queue.waiting
    shown: OverviewState = "open" if state is None else state.state
    if shown == "draining" and waiting == 0 and not taken:
        shown = "drained"
    return QueueOverview(
        queue=queue.queue,
        module=module,
        lane=queue.lane,
        state=shown,
        since=None if state is None else state.since,
        by="" if state is None else state.by,
        reason="" if state is None else state.reason,
        is_lanes=state is not None and states.stored.get(module) != state,
        waiting=waiting,
        held=taken,
        oldest_seconds=queue.oldest_seconds,
        workers=queue.workers,
    )
