"""Takes over manifests into an agent's catalog when a worker has stored other ones."""

import asyncio

from redis.asyncio import Redis

from toolfleet_registry.agents.known_profiles import KnownProfiles
from toolfleet_registry.agents.own_classes import OwnClasses
from toolfleet_registry.agents.stored.live_profiles import LiveProfiles
from toolfleet_registry.catalog.catalog import Catalog
from toolfleet_registry.directory.directory import ModuleDirectory
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.live_copy import LiveCopy
from toolfleet_registry.manifests.manifest_cache import ManifestCache
from toolfleet_registry.settings import Settings
from toolfleet_tasks.aio.cancellation import is_wanted

_AGAIN_SECONDS = 1.0  # until a failed load is repeated: a change is announced only once


def agents_catalog(redis: Redis, cache: ManifestCache, known: KnownModules, settings: Settings) -> Catalog:
    """Return an agent's catalog: out of Redis, where the fleet puts it. `known` takes over which modules there are.

    Raises `SettingsError` if a profile of the settings cannot be applied here: it names a class that is missing, say.
    """
    own = OwnClasses(settings, runs_in="agent")
    own.check(settings)
    profiles = KnownProfiles(settings, own=own)
    profiles.guards.check(settings)
    return Catalog(
        settings,
        cache,
        known=known,
        directory=ModuleDirectory(redis, settings),
        profiles=LiveProfiles(redis, settings, profiles),
        asks_fleet=True,
    )


class CatalogUpdates:
    """Reloads `catalog` after each announcement; `redis` is the client that it reads with."""

    def __init__(self, catalog: Catalog, redis: Redis) -> None:
        self._catalog = catalog
        self._redis = redis
        self._is_announced = asyncio.Event()
        self._copy = LiveCopy(self._load, event="manifests_not_reloaded")

    def announced(self) -> None:
        """Note that manifests have changed, or may have during a gap in listening."""
        self._is_announced.set()

    async def follow(self) -> None:
        """Load what was announced, until cancelled."""
        while is_wanted():
            await self._is_announced.wait()
            self._is_announced.clear()
            if not await self._copy.refresh():
                await asyncio.sleep(_AGAIN_SECONDS)
                self._is_announced.set()

    def close_idle(self) -> None:
        """Close the client's idle connections: it is used too seldom to keep any in addition to the session's own.

        Without a wait that could be cancelled: after `asyncio.run` nothing may be left of them.
        """
        pool = self._redis.connection_pool
        for connection in pool._available_connections:  # noqa: SLF001 - redis-py closes them in tasks of their own
            connection._close()  # noqa: SLF001

    async def _load(self) -> None:
        try:
            await self._catalog.reload()
        finally:
            self.close_idle()
