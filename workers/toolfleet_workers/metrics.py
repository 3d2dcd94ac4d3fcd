"""Answers for a worker's metrics while it runs: what it counts of calls, and how full, ready and late it is."""

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

from celery import Celery, bootsteps

from toolfleet_registry.errors import SettingsError
from toolfleet_registry.metrics import families, process_recorder
from toolfleet_registry.metrics.recorder import Exposition, Sample
from toolfleet_registry.settings import Settings, load_settings
from toolfleet_registry.system.process import this_process
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.operations.process_metrics import MetricsEndpoint, ProcessSampler
from toolfleet_tasks.worker.running_task import calls_held
from toolfleet_workers.pool.asyncio_pool import AsyncioPool
from toolfleet_workers.pool.bootsteps import call_when_ended, health_of


def install(app: Celery) -> None:
    """Have every worker that is started from `app` answer, if a port is set."""
    steps: Any = app.steps
    steps["worker"].add(AnsweredMetrics)


class AnsweredMetrics(bootsteps.StartStopStep):  # type: ignore[misc] # Celery ships no types
    """Answers `GET /metrics` until the worker has ended."""

    requires = ("celery.worker.components:Pool",)

    def include_if(self, parent: Any) -> bool:
        """Return whether a port is set: a worker without one counts nothing, and loads nothing for it."""
        return _settings_of(parent).metrics_port is not None

    def start(self, parent: Any) -> None:
        """Start the endpoint.

        Called by Celery when the pool has started, on the pool's thread. Ends the process if the library is missing.
        """
        settings = _settings_of(parent)
        recorder = process_recorder.start()
        recorder.gauges.append(WorkerGauges(parent, settings))
        try:
            endpoint = MetricsEndpoint(settings, Exposition(recorder).text)
        except SettingsError as exc:
            raise SystemExit(str(exc)) from exc
        if isinstance(parent.pool, AsyncioPool):
            here = worker_runtime.current()
            to_redis = None if here is None else here.to(str(settings.redis_url), master=settings.sentinel_master)
            keep = ProcessSampler(recorder, to_redis).keep()
            self._sampling = parent.pool.hub_loop.loop.create_task(keep, name="toolfleet-metrics")
        endpoint.start()
        call_when_ended(parent, endpoint.close)


class WorkerGauges:
    """The gauges of one worker. `worker` is Celery's. Called from any thread."""

    def __init__(self, worker: Any, settings: Settings) -> None:
        self._worker, self._process = worker, this_process()
        transport = "redis" if settings.has_redis_broker else "rabbitmq"
        self._info = (settings.lane, transport, version("toolfleet"))

    def __call__(self) -> Iterable[Sample]:
        """The samples."""
        yield Sample(families.WORKER_INFO, 1, self._info)
        yield Sample(families.WORKER_READY, float(health_of(self._worker.app).unready() is None))
        yield Sample(families.WORKER_LEASES, calls_held(self._process).total())
        pool = self._worker.pool
        if isinstance(pool, AsyncioPool):
            yield Sample(families.WORKER_IN_FLIGHT, pool.in_flight)
            yield Sample(families.WORKER_SLOTS, pool.capacity())
            yield Sample(families.LOOP_STALLED, pool.hub_loop.stalled_seconds)


def _settings_of(parent: Any) -> Settings:
    settings: Settings = getattr(parent.app, "settings", None) or load_settings()
    return settings
