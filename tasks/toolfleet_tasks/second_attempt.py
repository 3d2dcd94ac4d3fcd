"""Publishing a call's one retry, from the worker that made the first attempt, without blocking its loop."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from celery import Task

from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.errors import PublishUnconfirmed
from toolfleet_registry.settings import Settings
from toolfleet_tasks import lines, wire
from toolfleet_tasks.connections import Connections
from toolfleet_tasks.envelope import args_shown, call_message, sender
from toolfleet_tasks.line_publisher import LinePublisher
from toolfleet_tasks.lines import Lines
from toolfleet_tasks.queues import Route

_SECONDS = 10.0  # to get it into the queue; after that the first attempt's end is the call's
# Of a message that others wrote without limits: the retry has none, either.
_UNLIMITED: tuple[Any, Any] = (None, None)


async def publish_again(task: Task, call: PublishedCall, delay: float) -> None:
    """Put `call` into its queue again, not to be begun before `delay` seconds. Raises `NotPublished` or `PublishUnconfirmed`.

    Over the worker's line where there is one, else through kombu, in a thread.
    """
    here, settings = lines.current(), task.app.settings
    if here is not None and settings.is_fast:
        await _over_the_line(here, settings, task.request, call, delay)
        return
    again = task.signature_from_request(
        args=[wire.dump(call)],
        countdown=delay,
        retries=task.request.retries + 1,
        argsrepr=args_shown(call),
        kwargsrepr="{}",
    )
    await asyncio.to_thread(
        _through_kombu, task.app.broker_connections, again, task.request.delivery_info["routing_key"]
    )


async def _over_the_line(here: Lines, settings: Settings, request: Any, call: PublishedCall, delay: float) -> None:
    hard_limit, soft_limit = request.timelimit or _UNLIMITED
    route = Route(request.delivery_info["routing_key"], call.limit_seconds, soft_limit, hard_limit)
    message = call_message(
        call,
        route,
        origin=sender(),
        reply_to=request.reply_to or "",
        retries=request.retries + 1,
        eta=(datetime.now(UTC) + timedelta(seconds=delay)).isoformat(),
    )
    line = here.to(settings.broker or "", master=settings.sentinel_master)
    await LinePublisher(line, keys=settings.keys, database=0).put(message, route.queue, seconds=_SECONDS)


def _through_kombu(connections: Connections, again: Any, queue: str) -> None:
    with connections.one(queue) as connection:
        try:
            again.apply_async(connection=connection)
        except Exception as exc:  # whatever kombu and its transports raise
            raise PublishUnconfirmed(str(exc)) from exc
