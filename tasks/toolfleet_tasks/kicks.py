"""Having one of our own tasks run at once, rather than with beat's next tick. Best effort: a lost one is only late."""

import asyncio
from collections.abc import Sequence

import structlog
from celery import Celery

from toolfleet_registry.errors import PublishUnconfirmed
from toolfleet_registry.settings import Settings
from toolfleet_tasks.connections import Connections
from toolfleet_tasks.line_publisher import LinePublisher
from toolfleet_tasks.lines import Lines
from toolfleet_tasks.queues import CONTROL

log = structlog.get_logger(__name__)


async def kick(app: Celery, settings: Settings, here: Lines | None, task: str, *args: str) -> None:
    """From a worker: over its line where there is one, else through kombu, in a thread. Raises nothing but cancellation."""
    try:
        if here is not None and settings.is_fast:
            line = here.to(settings.broker or "", master=settings.sentinel_master)
            await LinePublisher(line, keys=settings.keys, database=0).kick(task, *args)
        else:
            connections: Connections = app.broker_connections  # pyright: ignore[reportAttributeAccessIssue] # FleetApp, which is above
            await asyncio.to_thread(send_control, app, connections, task, args)
    except Exception as exc:  # noqa: BLE001 - whatever Redis, kombu and its transports raise
        log.warning("kick_not_published", task=task, args=args, error=str(exc) or repr(exc))


def send_control(app: Celery, connections: Connections, task: str, args: Sequence[str]) -> None:
    """Through kombu, which blocks. Raises `NotPublished` or `PublishUnconfirmed`."""
    with connections.one(CONTROL) as connection:
        try:
            app.send_task(task, args=list(args), queue=CONTROL, connection=connection, ignore_result=True)
        except Exception as exc:  # whatever kombu and its transports raise
            raise PublishUnconfirmed(str(exc)) from exc
