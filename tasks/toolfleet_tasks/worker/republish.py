"""Republishes a call from a worker, for its one retry or because it cannot be run now, without blocking the loop.

The message is the one that came: whoever signed it, signed that.
"""

import asyncio
from datetime import datetime, timedelta
from typing import Any

from toolfleet_registry.errors import PublishUnconfirmed
from toolfleet_registry.settings import Settings
from toolfleet_registry.time import fleet_clock
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.broker.kombu_connections import KombuConnections
from toolfleet_tasks.messages.envelope import Label, message, sender
from toolfleet_tasks.publish.redis_publisher import RedisPublisher
from toolfleet_tasks.transport.delivery import deaths_of, with_deaths
from toolfleet_tasks.worker.running_task import RunningTask
from toolfleet_tasks.worker_runtime import WorkerRuntime

_SECONDS = 10.0  # to get it into the queue; after that the first attempt's end is the call's
# Of a message that others wrote without limits: the next one has none, either.
_UNLIMITED: tuple[Any, Any] = (None, None)


async def publish_again(task: RunningTask, delay: float, *, retries: int) -> None:
    """Put a task's call into its queue again, not to be begun before `delay` seconds. `retries` is what Flower shows.

    Raises `NotPublished` or `PublishUnconfirmed`.

    Over the worker's connection where there is one, else through kombu, in a thread.
    """
    here, settings = worker_runtime.current(), task.app.settings
    if here is not None and settings.is_fast:
        await _over_connection(here, settings, task, delay, retries)
        return
    # No `countdown`: Celery makes of it a time by this machine's clock, and whoever gets the message takes that for the fleet's.
    eta = _after(delay) if delay else None
    stock: Any = task
    again = stock.signature_from_request(eta=eta, retries=retries, argsrepr=task.request.argsrepr, kwargsrepr="{}")
    await asyncio.to_thread(
        _through_kombu, task.app.broker_connections, again, task.request.delivery_info["routing_key"]
    )


async def _over_connection(
    here: WorkerRuntime, settings: Settings, task: RunningTask, delay: float, retries: int
) -> None:
    request = task.request
    hard_limit, soft_limit = request.timelimit or _UNLIMITED
    queue = request.delivery_info["routing_key"]
    limits, links = (soft_limit, hard_limit), task.links
    label = Label(request.id, request.shadow or "", request.argsrepr or "", queue, limits, links)
    eta, reply_to = _after(delay).isoformat(), request.reply_to or ""
    again = message(request.args[0], label, origin=sender(), reply_to=reply_to, retries=retries, eta=eta)
    again = with_deaths(again, deaths_of(request))
    connection = here.to(settings.broker or "", master=settings.sentinel_master)
    await RedisPublisher(connection, keys=settings.keys, database=0).put(again, queue, seconds=_SECONDS)


def _after(delay: float) -> datetime:
    """So many seconds from now, by the fleet's clock; see `FleetRequest.eta`."""
    return fleet_clock.utc_now() + timedelta(seconds=delay)


def _through_kombu(connections: KombuConnections, again: Any, queue: str) -> None:
    with connections.one(queue) as connection:
        try:
            again.apply_async(connection=connection)
        except Exception as exc:  # whatever kombu and its transports raise
            raise PublishUnconfirmed(str(exc)) from exc
