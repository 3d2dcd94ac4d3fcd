"""Chooses a worker's publisher: one over its own connection to the broker's Redis, or one through kombu."""

from typing import Any

from toolfleet_registry.redis.servers import connection_factory
from toolfleet_registry.settings import Settings
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.publish.publisher import Publisher
from toolfleet_tasks.publish.redis_publisher import RedisPublisher, database_of
from toolfleet_tasks.worker_runtime import WorkerRuntime


def worker_publisher(app: Any) -> Publisher:
    """The one of the worker of `app`, a `FleetApp`; always the same."""
    here = worker_runtime.current()
    if here is not None and app.settings.has_redis_broker:
        return here.part(_make_publisher, app.settings)
    publisher: Publisher = app.publisher
    return publisher


def _make_publisher(here: WorkerRuntime, settings: Settings) -> RedisPublisher:
    broker, master = settings.broker or "", settings.sentinel_master
    database = database_of(connection_factory(broker, master=master))
    return RedisPublisher(here.to(broker, master=master), keys=settings.keys, database=database, signing=settings)
