"""The beat job: look at every module and put what it offers into Redis."""

import asyncio
import time
from typing import TYPE_CHECKING, Any

import structlog
from celery import Celery, Task
from celery.signals import beat_init

from toolfleet_registry.manifests import ManifestCache
from toolfleet_registry.redis_servers import async_client
from toolfleet_registry.settings import Settings
from toolfleet_tasks.bridge import bridged
from toolfleet_tasks.queues import CONTROL

if TYPE_CHECKING:
    from toolfleet_registry.catalog import Catalog

TASK = "toolfleet.refresh_manifests"

log = structlog.get_logger(__name__)


def register(app: Celery, settings: Settings) -> None:
    """Give the app the task. Its limit: the longest look at a module, and time to store what was found."""
    limit = settings.discovery_timeout_seconds + 20
    app.task(name=TASK, bind=True, ignore_result=True, soft_time_limit=limit, time_limit=limit + 10)(_body)


def schedule(settings: Settings) -> dict[str, Any]:
    """The beat entry. A tick that was not served before the next one is dropped: they do the same work."""
    interval = settings.refresh_interval_seconds
    return {
        "refresh-manifests": {"task": TASK, "schedule": interval, "options": {"queue": CONTROL, "expires": interval}}
    }


async def refresh_manifests(settings: Settings, *, now: float | None = None) -> bool:
    """Refresh once for the present time slot; whether this call did it. Two beats, or one that stutters, do no harm."""
    slot = int((time.time() if now is None else now) // settings.refresh_interval_seconds)
    keys = settings.keys
    async with async_client(str(settings.redis_url), master=settings.sentinel_master) as redis:
        if not await redis.set(keys.refresh_slot(slot), 1, nx=True, ex=settings.refresh_interval_seconds):
            return False
        cache = ManifestCache(redis, ttl_seconds=settings.manifest_ttl_seconds, keys=keys)
        catalog = await asyncio.to_thread(_catalog, settings, cache)
        statuses = await catalog.refresh()
    failed = sorted(name for name, status in statuses.items() if not status.ok)
    log.info("manifests_refreshed", modules=len(statuses), failed=failed)
    return True


def _catalog(settings: Settings, cache: ManifestCache) -> "Catalog":
    from toolfleet_registry.catalog import Catalog  # noqa: PLC0415 - with an HTTP client: a tenth of a worker's start

    return Catalog(settings, cache)


@bridged
async def _body(task: Task) -> None:
    await refresh_manifests(task.app.settings)


def _refresh_at_start(sender: Any, **_: object) -> None:
    """A new installation has no manifests: the first look does not wait for the first tick."""
    expires = sender.app.settings.refresh_interval_seconds
    try:
        sender.app.send_task(TASK, queue=CONTROL, expires=expires, ignore_result=True)
    except Exception as exc:  # noqa: BLE001 - whatever kombu and its transports raise; the first tick will do
        log.warning("first_refresh_not_published", error=str(exc))


beat_init.connect(_refresh_at_start, weak=False)
