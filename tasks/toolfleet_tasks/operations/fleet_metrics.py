"""Collects the fleet's metrics on request: once a second at most, within a bounded time, and with the last known values if Redis is away."""

import asyncio
from collections.abc import Iterable, Iterator

from redis.exceptions import RedisError

from toolfleet_registry import metric_families
from toolfleet_registry.errors import FleetError, FleetUnavailable
from toolfleet_registry.live_copy import PAUSE_SECONDS, LiveCopy
from toolfleet_registry.metric_families import Family
from toolfleet_registry.metrics import Sample
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.operations.fleet_facts import LANES, FleetFacts, FleetReader, lane_load

READ_SECONDS = 3.0
"""For one reading: Prometheus gives a scrape ten."""

_FRESH_SECONDS = 1.0  # many who ask at once cost Redis one reading
_STATE = {"open": 0.0, "draining": 1.0, "paused": 2.0}
_BREAKER = {"closed": 0.0, "half": 1.0, "open": 2.0}

log = get_logger(__name__)


class FleetMetrics:
    """The metrics of one gateway, on its loop."""

    def __init__(self, reader: FleetReader, settings: Settings) -> None:
        self._reader = reader
        self._settings = settings
        self._copy = LiveCopy(self._read, event="fleet_metrics_not_read")
        self._facts: FleetFacts | None = None
        self._seconds = 0.0

    async def facts(self) -> FleetFacts | None:
        """The facts of now, or of a second ago; `None` where Redis does not answer in time."""
        is_known = await self._copy.confirm(_FRESH_SECONDS, patience_seconds=READ_SECONDS + PAUSE_SECONDS)
        return self._facts if is_known else None

    async def samples(self) -> list[Sample]:
        """The facts as metrics. Raises nothing."""
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
        yield Sample(metric_families.LANE_WORKERS, lane.workers, (lane.lane,))
        yield Sample(metric_families.LANE_SLOTS, sum(lane.slots), (lane.lane,))
    for name in LANES:
        load = lane_load(facts, name, usual_slots=settings.worker_concurrency)
        yield from _known(metric_families.LANE_WANTED, None if load is None else load.wanted, (name,))
    for breaker in facts.breakers:
        yield Sample(metric_families.BREAKER, _BREAKER.get(breaker.state, 0.0), (breaker.module,))
        yield Sample(metric_families.MODULE_FAILURES, breaker.failures, (breaker.module,))
    yield from _known(metric_families.HELD, facts.held)
    yield from _counted(facts)


def _counted(facts: FleetFacts) -> Iterable[Sample]:
    counts = facts.counts
    yield Sample(metric_families.APPROVALS_WAITING, counts["approvals_waiting"])
    yield Sample(metric_families.JOBS, counts["jobs"])
    yield Sample(metric_families.JOBS_DUE, counts["jobs_due"])
    yield Sample(metric_families.JOBS_LATE, counts["jobs_late"])
    yield Sample(metric_families.WAKEUPS_WAITING, counts["wakeups"], ("job",))
    yield Sample(metric_families.WAKEUPS_WAITING, counts["wakeup_calls"], ("call",))
    yield Sample(metric_families.DEAD_LETTERS, counts["dead_calls"], ("call",))
    yield Sample(metric_families.DEAD_LETTERS, counts["dead_wakeups"], ("wake",))
    yield Sample(metric_families.DEAD_LETTERS, counts["dead_webhooks"], ("webhook",))
    yield Sample(metric_families.QUARANTINED, counts["quarantined"])
    for kind, count in facts.changes.items():
        yield Sample(metric_families.REGISTRY_CHANGES, count, (kind,))


def _known(family: Family, value: float | None, labels: tuple[str, ...] = ()) -> Iterable[Sample]:
    return () if value is None else (Sample(family, value, labels),)
