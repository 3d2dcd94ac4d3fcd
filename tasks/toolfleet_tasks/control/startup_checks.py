"""Refuses to start a worker that could not work: no runner, a wrong Redis, or another transport than the rest."""

from typing import Any

from celery import Celery, bootsteps
from redis.exceptions import RedisError

from toolfleet_registry.errors import SettingsError
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.redis.urls import is_redis_url
from toolfleet_registry.settings import Settings
from toolfleet_tasks.clock import Timekeeper
from toolfleet_tasks.control.server_check import refuse_cluster, require_fit
from toolfleet_tasks.control.transport_check import Presence
from toolfleet_tasks.greenlet_bridge import run_here
from toolfleet_tasks.transport.kombu_transport import require_kombu

COMMAND = "celery -A toolfleet_workers.main worker"


class Requirements(bootsteps.Step):  # type: ignore[misc] # Celery ships no types
    """Ends the process, before the worker connects to its broker, with one sentence that says what to do."""

    def __init__(self, parent: Any, **options: object) -> None:
        super().__init__(parent, **options)
        require_runner(parent.app)
        require_redis(parent.app)


def install(app: Celery) -> None:
    """Have every worker that is started from `app` checked."""
    steps: Any = app.steps
    steps["worker"].add(Requirements)


def require_runner(app: Celery) -> None:
    """Raise `SystemExit`, with the right command in its message, if `app.runner` is missing or `None`."""
    if getattr(app, "runner", None) is None:
        raise SystemExit(f"This app publishes calls and has no runner to run them. Start the worker with: {COMMAND}")


def require_redis(app: Celery) -> None:
    """Raise `SystemExit` if the app's Redis is a node of Redis Cluster, or live workers at it use another transport.

    Also if that Redis is too old or deletes keys by itself, or if our Redis transport was never tested with this kombu. A Redis that is away is waited for later.
    """
    settings: Settings | None = getattr(app, "settings", None)
    if settings is None:
        return
    try:
        if settings.has_redis_broker:
            require_kombu()
        run_here(_check_redis(settings))
    except SettingsError as exc:
        raise SystemExit(str(exc)) from exc
    except (RedisError, OSError):
        return  # `Presence.keep` looks again


async def _check_redis(settings: Settings) -> None:
    urls = {url for url in (settings.redis_url, settings.broker) if url is not None and is_redis_url(url)}
    for url in sorted(urls):
        async with async_client(url, master=settings.sentinel_master) as redis:
            await refuse_cluster(redis)
            if url == settings.redis_url:
                await Timekeeper(settings).begin(redis, runs_calls=True)
    await require_fit(settings)
    await Presence(settings).check_in()
