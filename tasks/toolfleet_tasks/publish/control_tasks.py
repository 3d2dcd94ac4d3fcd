"""Publishes one of our own tasks at once, rather than with beat's next tick. Best effort: a lost one is only late."""

import asyncio
from collections.abc import Sequence

from celery import Celery, Task

from toolfleet_registry.errors import PublishUnconfirmed
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.broker.kombu_connections import KombuConnections
from toolfleet_tasks.messages.ids import EVALUATE
from toolfleet_tasks.publish.redis_publisher import RedisPublisher
from toolfleet_tasks.queues import CONTROL
from toolfleet_tasks.worker_runtime import WorkerRuntime

log = get_logger(__name__)

_EVALUATE_SECONDS = 20.0  # for a job to hear of its call's end


async def kick(app: Celery, settings: Settings, here: WorkerRuntime | None, task: str, *args: str) -> None:
    """From a worker: over its connection where there is one, else through kombu, in a thread. Raises nothing but cancellation."""
    try:
        if here is not None and settings.is_fast:
            connection = here.to(settings.broker or "", master=settings.sentinel_master)
            await RedisPublisher(connection, keys=settings.keys, database=0).kick(task, *args)
        else:
            connections: KombuConnections = app.broker_connections  # pyright: ignore[reportAttributeAccessIssue] # FleetApp, which is above
            await asyncio.to_thread(send_control, app, connections, task, args)
    except Exception as exc:  # noqa: BLE001 - whatever Redis, kombu and its transports raise
        log.warning("kick_not_published", task=task, args=args, error=str(exc) or repr(exc))


async def evaluate_soon(task: Task, job_id: str) -> None:
    """Have a job looked at whose call has ended: in this worker, where it has a loop, else by any. Where that gets lost, the sweep finds it."""
    here, poller = worker_runtime.current(), task.app.jobs
    if here is None or poller is None:
        await kick(task.app, task.app.settings, here, EVALUATE, job_id)
    else:  # the call's message is not held for that
        here.later(poller.evaluate(job_id, seconds=_EVALUATE_SECONDS))


def send_control(app: Celery, connections: KombuConnections, task: str, args: Sequence[str]) -> None:
    """Through kombu, which blocks. Raises `NotPublished` or `PublishUnconfirmed`."""
    with connections.one(CONTROL) as connection:
        try:
            app.send_task(task, args=list(args), queue=CONTROL, connection=connection, ignore_result=True)
        except Exception as exc:  # whatever kombu and its transports raise
            raise PublishUnconfirmed(str(exc)) from exc
