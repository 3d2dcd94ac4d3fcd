"""Refuses to start a worker that could not work: without a runner, at a wrong Redis, or with another lease than the other workers.

A worker with a shorter lease would take messages of another one for lost too early, and their calls would run twice. So each worker
notes every few seconds that it lives, and with which lease; one of an earlier version may note another transport.
"""

import asyncio
import contextlib
from typing import Any

from celery import Celery, bootsteps
from redis.asyncio import Redis
from redis.exceptions import RedisError

from toolfleet_registry.errors import SettingsError
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.redis.urls import is_redis_url
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.system.process import this_process
from toolfleet_tasks.clock import Timekeeper
from toolfleet_tasks.control.server_check import refuse_cluster, require_fit
from toolfleet_tasks.greenlet_bridge import run_here
from toolfleet_tasks.scripts import script
from toolfleet_tasks.transport.kombu_transport import require_kombu

COMMAND = "celery -A toolfleet_workers.main worker"


class Requirements(bootsteps.Step):
    """Ends the process, before the worker connects to its broker, with one sentence that says what to do."""

    def __init__(self, parent: Any, **options: object) -> None:
        super().__init__(parent, **options)
        require_runner(parent.app)
        parent.has_checked_redis = require_redis(parent.app)


def install(app: Celery) -> None:
    """Have every worker that is started from `app` checked."""
    steps: Any = app.steps
    steps["worker"].add(Requirements)


def require_runner(app: Celery) -> None:
    """Raise `SystemExit`, with the right command in its message, if `app.runner` is missing or `None`."""
    if getattr(app, "runner", None) is None:
        raise SystemExit(f"This app publishes calls and has no runner to run them. Start the worker with: {COMMAND}")


def require_redis(app: Celery) -> bool:
    """Return whether the app's Redis answered, and is fit. Raise `SystemExit` if the app's Redis is a node of Redis Cluster, or live workers at it use another transport.

    Also if that Redis is too old or deletes keys by itself, or if our Redis transport was never tested with this kombu. A Redis that is away is waited for later.
    """
    settings: Settings | None = getattr(app, "settings", None)
    if settings is None:
        return False
    try:
        if settings.has_redis_broker:
            require_kombu()
        run_here(_check_redis(settings))
    except SettingsError as exc:
        raise SystemExit(str(exc)) from exc
    except (RedisError, OSError):
        return False  # `Presence.keep` and `insist_on_fit` look again
    return True


async def _check_redis(settings: Settings) -> None:
    urls = {url for url in (settings.redis_url, settings.broker) if url is not None and is_redis_url(url)}
    async with contextlib.AsyncExitStack() as opened:
        clients = dict[str | None, Redis]()
        for url in sorted(urls):
            client = async_client(url, master=settings.sentinel_master)
            clients[url] = redis = await opened.enter_async_context(client)
            await refuse_cluster(redis)
            if url == settings.redis_url:
                await Timekeeper(settings).begin(redis, runs_calls=True)
        await require_fit(settings, clients.get(settings.redis_url))
        await Presence(settings).check_in(clients.get(settings.broker))


_BEAT_SECONDS = 5.0
_ANNOUNCE = script("presence/announce")  # returns `<mode> <worker>` of one that works otherwise, or nothing

COUNTS_SECONDS = 20
"""A worker that has been silent for so long has died."""

log = get_logger(__name__)


def mode_of(settings: Settings) -> str:
    """Return the note of workers with these settings: the transport, of which earlier versions have two, and the lease."""
    return f"fast/{settings.lease_seconds}s"


class Presence:
    """One worker's note at the broker's Redis. With another broker there is nothing to note."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._mode = mode_of(settings)
        url = settings.broker
        self._url = url if url is not None and is_redis_url(url) else None
        self._worker = this_process().name

    async def check_in(self, redis: Redis | None = None) -> None:
        """Note that this worker lives. Raises `SettingsError` if others work in another mode, else redis-py's errors.

        `redis` is a client of the broker's Redis, if there is one.
        """
        if redis is not None:
            await self._note(redis)
        elif self._url is not None:
            async with async_client(self._url, master=self._settings.sentinel_master) as client:
                await self._note(client)

    async def keep(self) -> None:
        """Note it repeatedly, until cancelled. Raises `SettingsError` if workers with another mode have come.

        They may: when Redis was away at the start, no worker could know of the others.
        """
        while True:
            await asyncio.sleep(_BEAT_SECONDS)
            try:
                await self.check_in()
            except (RedisError, OSError) as exc:
                log.warning("presence_not_noted", error=str(exc))

    async def check_out(self) -> None:
        """Note that this worker has ended, so that one in another mode may come at once. Raises nothing."""
        if self._url is None:
            return
        with contextlib.suppress(RedisError, OSError):  # the note expires by itself
            async with async_client(self._url, master=self._settings.sentinel_master, timeout_seconds=1) as redis:
                await redis.zrem(self._settings.keys.modes, f"{self._mode} {self._worker}")

    async def _note(self, redis: Redis) -> None:
        names = {"mode": self._mode, "worker": self._worker}
        parameters = _ANNOUNCE.parameters(modes=self._settings.keys.modes, **names, seconds=COUNTS_SECONDS)
        other = await redis.eval(_ANNOUNCE.text, *parameters)
        if other is not None:
            mode, _, worker = other.decode().partition(" ")
            raise SettingsError(
                f"The worker {worker} at this Redis uses transport and lease {mode}, and this one {self._mode}: set "
                "TOOLFLEET_VISIBILITY_TIMEOUT alike for the whole fleet, and stop those workers first to change it."
            )
