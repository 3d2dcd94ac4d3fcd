"""Chooses an agent's publisher: over its own connection to Redis or through kombu, and what admits calls before either."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from toolfleet_registry.redis.servers import connection_factory
from toolfleet_registry.settings import Settings
from toolfleet_tasks.admission import AdmissionControl
from toolfleet_tasks.publish.admitted_publisher import AdmittedPublisher
from toolfleet_tasks.publish.publisher import Publisher
from toolfleet_tasks.publish.redis_publisher import RedisPublisher, database_of
from toolfleet_tasks.redis.connection import PipelinedConnection


def agent_publisher(
    admission: AdmissionControl,
    settings: Settings,
    connection: PipelinedConnection,
    *,
    broker_connection: Callable[[], PipelinedConnection],
    listening: Callable[[str], Awaitable[None]],
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
) -> Publisher:
    """What publishes calls with these settings. `connection` goes to the Redis of the results; the rest is as in `AdmittedPublisher`."""
    has_queues = settings.broker == settings.redis_url
    behind = functools.partial(
        AdmittedPublisher, connection=connection, listening=listening, has_queues=has_queues, spawn=spawn
    )
    if not settings.is_fast:
        # Celery and kombu take a while to import, and most agents need neither.
        from toolfleet_tasks.app import make_app  # noqa: PLC0415

        return behind(make_app(settings, stores_results=False).publisher, admission)
    database = database_of(connection_factory(str(settings.broker), master=settings.sentinel_master))
    publisher_to = functools.partial(RedisPublisher, keys=settings.keys, database=database, signing=settings)
    if has_queues:  # calls leave where their results arrive, so that Redis hears of who listens before it has the call
        return publisher_to(connection, admission=admission)
    return behind(publisher_to(broker_connection()), admission)
