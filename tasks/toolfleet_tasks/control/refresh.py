"""Probes every module and puts what it offers into Redis: the beat job."""

import asyncio
import math
from typing import TYPE_CHECKING, Any

from celery import Celery, Task
from celery.signals import beat_init
from redis.asyncio import Redis

from toolfleet_registry.directory.directory import ModuleDirectory
from toolfleet_registry.directory.requests import MODULES_AT_ONCE, RequestedProbes
from toolfleet_registry.errors import FleetUnavailable, SettingsError
from toolfleet_registry.manifests.manifest_cache import ManifestCache
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.system.process import hide_process
from toolfleet_tasks.clock import MOST_OFFSET_SECONDS
from toolfleet_tasks.control.housekeeping import register_task
from toolfleet_tasks.control.server_check import say_faults
from toolfleet_tasks.greenlet_bridge import bridged, run_here
from toolfleet_tasks.queues import CONTROL

if TYPE_CHECKING:
    from toolfleet_registry.catalog.catalog import Catalog

TASK = "toolfleet.refresh_manifests"

log = get_logger(__name__)


def register(app: Celery, settings: Settings) -> None:
    """Give the app the task. Its limit: the longest look at all modules, and time to store what was found."""
    rounds = -(-max(len(settings.module_services), 1) // MODULES_AT_ONCE)
    limit = settings.discovery_timeout_seconds * rounds + 20
    limits = {"soft_time_limit": limit, "time_limit": limit + 10}
    # Not shared: Celery would give it to all apps of the process, and the first one's limit with it.
    register_task(app, TASK, _body, shared=False, **limits)


def schedule(settings: Settings) -> dict[str, Any]:
    """The beat entry. A tick that was not served for long is dropped: they do the same work."""
    interval, options = settings.refresh_interval_seconds, {"queue": CONTROL, "expires": _expiry(settings)}
    return {"refresh-manifests": {"task": TASK, "schedule": interval, "options": options}}


async def refresh_manifests(settings: Settings, *, now: float | None = None) -> bool:
    """Refresh once for the present time slot; whether this call did it. Two beats, or one that stutters, do no harm."""
    slot = int((fleet_clock.now() if now is None else now) // settings.refresh_interval_seconds)
    keys = settings.keys
    async with async_client(str(settings.redis_url), master=settings.sentinel_master) as redis:
        if not await redis.set(keys.refresh_slot(slot), 1, nx=True, ex=math.ceil(settings.refresh_interval_seconds)):
            return False
        await _probe(redis, settings)
    return True


async def probe_for_agents(settings: Settings, number: int) -> None:
    """Ask all modules, if no other worker does already, because agents have asked for it the `number`th time."""
    async with async_client(str(settings.redis_url), master=settings.sentinel_master) as redis:
        requested_probes = RequestedProbes(redis, settings.keys)
        if await requested_probes.begin(number):
            await _probe(redis, settings)
            await requested_probes.end(number)


async def _probe(redis: Redis, settings: Settings) -> None:
    catalog = await asyncio.to_thread(_catalog, redis, settings)
    statuses = await catalog.refresh()
    failed = sorted(name for name, status in statuses.items() if not status.ok)
    log.info("manifests_refreshed", modules=len(statuses), failed=failed)
    await _renew_profiles(redis, settings)


async def _renew_profiles(redis: Redis, settings: Settings) -> None:
    """Renew the copy of profiles.

    Fails open: agents and workers keep the known profiles, and the next tick renews them.
    """
    from toolfleet_registry.agents.stored_profiles import ProfileCopy  # noqa: PLC0415 - as above
    from toolfleet_registry.catalog.operator import fleets_registry  # noqa: PLC0415 - as above

    copy = ProfileCopy(redis, settings)
    if not copy.is_needed:
        return
    try:
        async with fleets_registry(settings):
            await copy.renew()
            await copy.sign_again()
    except (FleetUnavailable, SettingsError) as exc:
        log.warning("agent_profiles_not_renewed", error=str(exc))


def _catalog(redis: Redis, settings: Settings) -> "Catalog":
    from toolfleet_registry.catalog.catalog import Catalog  # noqa: PLC0415 - with an HTTP client: a tenth of a worker's start

    return Catalog(
        settings,
        ManifestCache(redis, ttl_seconds=settings.manifest_ttl_seconds, keys=settings.keys),
        directory=ModuleDirectory(redis, settings),
    )


@bridged
async def _body(task: Task) -> None:
    await refresh_manifests(task.app.settings)


def _expiry(settings: Settings) -> float:
    """Return the expiry in seconds from now, by beat's own clock; workers judge by theirs."""
    return settings.refresh_interval_seconds + MOST_OFFSET_SECONDS


def _hide(sender: Any, **_: object) -> None:
    if sender.app.settings.hide_process:
        hide_process()


def _refresh_at_start(sender: Any, **_: object) -> None:
    """A new installation has no manifests: the first look does not wait for the first tick."""
    expires = _expiry(sender.app.settings)
    try:
        sender.app.send_task(TASK, queue=CONTROL, expires=expires, ignore_result=True)
    except Exception as exc:  # noqa: BLE001 - kombu and its transports raise anything; the first tick will do
        log.warning("first_refresh_not_published", error=str(exc))
    run_here(say_faults(sender.app.settings))


beat_init.connect(_hide, weak=False)
beat_init.connect(_refresh_at_start, weak=False)
