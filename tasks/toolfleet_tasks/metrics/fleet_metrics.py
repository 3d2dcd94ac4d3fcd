"""Collects the fleet's metrics on request: once a second at most, within a bounded time, and with the last known values if Redis is away."""

import asyncio
from collections.abc import Iterable, Iterator

from redis.exceptions import RedisError

from toolfleet_registry.errors import FleetError
from toolfleet_registry.metrics import families
from toolfleet_registry.metrics.families import Family
from toolfleet_registry.metrics.recorder import Sample
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.metrics.fleet_facts import LANES, FleetFacts, FleetReader
from toolfleet_tasks.metrics.lane_load import lane_load

READ_SECONDS = 3.0
"""For one reading: Prometheus gives a scrape ten."""

_FRESH_SECONDS = 1.0  # many who ask at once cost Redis one reading
_PAUSE_SECONDS = 0.2  # after a failed reading: requests meanwhile wait for the next one, as Redis may be back
_STATE = {"open": 0.0, "draining": 1.0, "paused": 2.0}
_BREAKER = {"closed": 0.0, "half": 1.0, "open": 2.0}

log = get_logger(__name__)


class FleetMetrics:
    """The metrics of one gateway, on its loop."""

    def __init__(self, reader: FleetReader, settings: Settings) -> None:
        self._reader = reader
        self._settings = settings
        self._reading: asyncio.Task[FleetFacts | None] | None = None
        self._read_at = float("-inf")
        self._seconds = 0.0
        self._is_away = False

    async def facts(self) -> FleetFacts | None:
        """The facts of now, or of a second ago; `None` where Redis does not answer in time."""
        if self._reading is None or (self._reading.done() and not self._is_fresh(self._reading)):
            self._reading = asyncio.create_task(self._read(), name="toolfleet-fleet-metrics")
        return await asyncio.shield(self._reading)  # others may wait for it, too

    async def samples(self) -> list[Sample]:
        """The facts as metrics. Raises nothing."""
        facts = await self.facts()
        return [
            Sample(families.REDIS_UP, float(facts is not None)),
            Sample(families.FLEET_READ, self._seconds),
            *(() if facts is None else _samples(facts, self._settings)),
        ]

    def _is_fresh(self, reading: "asyncio.Task[FleetFacts | None]") -> bool:
        """Return whether its facts are still current; a failed reading has none."""
        is_good = not reading.cancelled() and reading.exception() is None and reading.result() is not None
        return is_good and asyncio.get_running_loop().time() - self._read_at <= _FRESH_SECONDS

    async def _read(self) -> FleetFacts | None:
        loop = asyncio.get_running_loop()
        if self._is_away:
            await asyncio.sleep(self._read_at + _PAUSE_SECONDS - loop.time())
        began_at = loop.time()
        try:
            async with asyncio.timeout(READ_SECONDS):
                facts = await self._reader.read()
        except (RedisError, FleetError, OSError, TimeoutError) as exc:
            if not self._is_away:
                log.warning("fleet_metrics_not_read", error=str(exc) or repr(exc))
            self._is_away = True
            return None
        else:
            self._is_away = False
            if facts.broker_error is not None:
                log.warning("queue_lengths_not_read", error=facts.broker_error)
            return facts
        finally:
            self._read_at = loop.time()
            self._seconds = self._read_at - began_at


def _samples(facts: FleetFacts, settings: Settings) -> Iterator[Sample]:
    yield Sample(families.BROKER_UP, float(facts.broker_error is None))
    for queue in facts.queues:
        labels = (queue.queue, queue.lane)
        yield from _known(families.QUEUE_WAITING, queue.waiting, labels)
        yield from _known(families.QUEUE_OLDEST, queue.oldest_seconds, labels)
        yield Sample(families.QUEUE_RUNNING, queue.running, labels)
        yield Sample(families.QUEUE_WORKERS, queue.workers, labels)
        yield Sample(families.QUEUE_STATE, _STATE["open" if queue.state is None else queue.state.state], labels)
    for lane in facts.lanes:
        yield Sample(families.LANE_WORKERS, lane.workers, (lane.lane,))
        yield Sample(families.LANE_SLOTS, sum(lane.slots), (lane.lane,))
    for name in LANES:
        load = lane_load(facts, name, usual_slots=settings.worker_concurrency)
        yield from _known(families.LANE_WANTED, None if load is None else load.wanted, (name,))
    for breaker in facts.breakers:
        yield Sample(families.BREAKER, _BREAKER.get(breaker.state, 0.0), (breaker.module,))
        yield Sample(families.MODULE_FAILURES, breaker.failures, (breaker.module,))
    yield from _known(families.HELD, facts.held)
    yield from _counted(facts)


def _counted(facts: FleetFacts) -> Iterable[Sample]:
    counts = facts.counts
    yield Sample(families.APPROVALS_WAITING, counts["approvals_waiting"])
    yield Sample(families.JOBS, counts["jobs"])
    yield Sample(families.JOBS_DUE, counts["jobs_due"])
    yield Sample(families.JOBS_LATE, counts["jobs_late"])
    yield Sample(families.WAKEUPS_WAITING, counts["wakeups"], ("job",))
    yield Sample(families.WAKEUPS_WAITING, counts["wakeup_calls"], ("call",))
    yield Sample(families.DEAD_LETTERS, counts["dead_calls"], ("call",))
    yield Sample(families.DEAD_LETTERS, counts["dead_wakeups"], ("wake",))
    yield Sample(families.DEAD_LETTERS, counts["dead_webhooks"], ("webhook",))
    yield Sample(families.QUARANTINED, counts["quarantined"])
    for kind, count in facts.changes.items():
        yield Sample(families.REGISTRY_CHANGES, count, (kind,))


def _known(family: Family, value: float | None, labels: tuple[str, ...] = ()) -> Iterable[Sample]:
    return () if value is None else (Sample(family, value, labels),)
