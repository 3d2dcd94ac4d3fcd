"""Chooses a worker's publisher (over its own connection to Redis, or through kombu), and publishes the fleet's own tasks at once."""

from typing import Any

from toolfleet_registry.redis.servers import connection_factory
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.messages.ids import EVALUATE
from toolfleet_tasks.transport.publisher import Publisher
from toolfleet_tasks.transport.redis_publisher import RedisPublisher, database_of
from toolfleet_tasks.worker_runtime import WorkerRuntime

log = get_logger(__name__)

_EVALUATE_SECONDS = 20.0  # for a job to hear of its call's end


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


async def control_soon(app: Any, task: str, *args: str) -> None:
    """Publish one of our own tasks from a worker of `app`. Raises nothing but cancellation."""
    try:
        await worker_publisher(app).control(task, *args)
    except Exception as exc:  # noqa: BLE001 - Redis, kombu and its transports raise anything
        log.warning("kick_not_published", task=task, args=args, error=str(exc) or repr(exc))


async def evaluate_soon(task: Any, job_id: str) -> None:
    """Evaluate a job whose call has ended: in this worker, if it has a loop, else in any.

    If that gets lost, the sweep finds it.
    """
    here, evaluate = worker_runtime.current(), task.app.evaluate_job
    if here is None or evaluate is None:
        await control_soon(task.app, EVALUATE, job_id)
    else:  # the call's message is not held for that
        here.later(evaluate(job_id, seconds=_EVALUATE_SECONDS))
