"""Reads how each queue of a fleet is: what operators have done to it, what waits in it, and what workers have of it."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Self, TypeAlias, cast

from redis.client import NEVER_DECODE

from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.redis.servers import answering
from toolfleet_registry.settings import Settings
from toolfleet_tasks.operations.fleet_facts import BROKER_SECONDS, FleetFacts, FleetReader, QueueFacts
from toolfleet_tasks.queue_states import lane_name, stored_name
from toolfleet_tasks.queues import CONTROL

OverviewState: TypeAlias = Literal["open", "paused", "draining", "drained"]

_SECONDS = 3.0  # for one reading; a broker that is another Redis has BROKER_SECONDS more
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
    """Calls in the queue, and in lines for it; `None` while a broker that is not the fleet's Redis does not answer."""
    held: int
    """Calls that workers have taken and that have not ended, those that wait for a retry among them; with RabbitMQ those that run, as workers said last."""
    oldest_seconds: float | None
    """For how many seconds the oldest call has waited; `None` if that is unknown."""
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
    """Reads the overviews of one fleet's queues. Raises `FleetUnavailable` within some seconds."""

    def __init__(self, reader: FleetReader, settings: Settings) -> None:
        self._reader = reader
        self._settings = settings
        self.broker_error: str | None = None
        """Why the last reading does not say what waits; `None` if it does."""

    @classmethod
    @asynccontextmanager
    async def of(cls, settings: Settings) -> AsyncGenerator[Self]:
        """Open the overview for the fleet of these settings. Raises `SettingsError` if they name none."""
        async with FleetReader.of(settings) as reader:
            yield cls(reader, settings)

    async def read(self) -> tuple[QueueOverview, ...]:
        """Return the overviews of all modules' queues, by name.

        If the broker is away, only the waiting calls are missing: see `broker_error`.
        """
        facts, held = await self._read()
        return tuple(_overview(queue, facts, held) for queue in facts.queues if queue.queue != CONTROL)

    async def named(self, name: str) -> tuple[QueueOverview, ...]:
        """Return the queue of this name, or those of this lane. Raises `NoSuchQueue`."""
        facts, held = await self._read()
        stored = stored_name(name, self._reader.known, facts.states)
        chosen = (
            queue
            for queue in facts.queues
            if queue.queue != CONTROL and stored in {queue.module, lane_name(queue.lane)}
        )
        return tuple(_overview(queue, facts, held) for queue in chosen)

    async def _read(self) -> tuple[FleetFacts, Counter[str] | None]:
        more = 0.0 if self._reader.broker is self._reader.redis else BROKER_SECONDS
        async with answering(self._reader.redis, seconds=_SECONDS + more):
            # First: a message that goes from a queue to a worker meanwhile is counted twice, and never missed.
            held, error = await self._held()
            facts = await self._reader.read()
        if error is not None and facts.broker_error is None:  # it has answered one of two questions
            unknown = tuple(replace(queue, waiting=None, oldest_seconds=None) for queue in facts.queues)
            facts = replace(facts, queues=unknown, broker_error=error)
        self.broker_error = facts.broker_error
        return facts, held

    async def wait_until_empty(self, name: str, *, seconds: float) -> tuple[QueueOverview, ...]:
        """Return when surely nothing waits or runs there any more, or after so long; as it is then. Raises as `named`.

        Where it seems empty then, a moment later: see `Emptiness`.
        """
        loop = asyncio.get_running_loop()
        until, emptiness = loop.time() + seconds, Emptiness(sees_held=self._settings.has_redis_broker)
        while True:
            asked_at = loop.time()
            queues = await self.named(name)
            is_empty = all(queue.is_empty for queue in queues)
            if emptiness.is_over(asked_at, is_empty=is_empty, until=until, waits=seconds > 0):
                return queues
            await asyncio.sleep(_POLL_SECONDS if emptiness.seen else min(_POLL_SECONDS, max(until - loop.time(), 0.0)))

    async def _held(self) -> tuple[Counter[str] | None, str | None]:
        """Return how many messages of each queue workers hold, `None` if the broker does not say; and why it fails to."""
        if not self._settings.has_redis_broker:
            return None, None
        broker, counted, cursor = self._reader.broker, Counter[str](), 0
        try:
            async with answering(broker, seconds=BROKER_SECONDS):
                while True:
                    words = ("HSCAN", f"{self._settings.key_prefix}unacked", cursor, "COUNT", _SCANNED)
                    answer = cast("Any", await broker.execute_command(*words, **_AS_BYTES))
                    cursor, held = int(answer[0]), answer[1]
                    counted.update(map(_queue_in, held.values() if isinstance(held, dict) else held[1::2]))
                    if not cursor:
                        return counted, None
        except FleetUnavailable as exc:
            if broker is self._reader.redis:
                raise
            return None, f"The broker does not answer: {exc}"


def _queue_in(held: bytes) -> str:
    """The queue of a held message, which is its last text: `[<message>,"","<queue>"]`."""
    return held[:-2].rpartition(b'"')[2].decode(errors="replace")


def _overview(queue: QueueFacts, facts: FleetFacts, held: Counter[str] | None) -> QueueOverview:
    module, state = queue.module, queue.state
    taken, waiting = queue.running if held is None else held[queue.queue], queue.all_waiting
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
        is_lanes=state is not None and facts.states.stored.get(module) != state,
        waiting=waiting,
        held=taken,
        oldest_seconds=None if queue.in_lines and not queue.waiting else queue.oldest_seconds,
        workers=queue.workers,
    )
