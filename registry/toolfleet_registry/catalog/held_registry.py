"""Holds a fleet's registry open for those who ask it each second: opened for each question, each would be a new connection."""

import asyncio
import functools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from toolfleet_registry.catalog.registration import Registrar, asked
from toolfleet_registry.manifests.manifest_cache import ManifestCache
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.settings import Settings
from toolfleet_registry.store.factory import open_store
from toolfleet_registry.store.registry import ToolRegistry


class HeldRegistry:
    """The registry that the settings name, opened on first use, once for one event loop. Its creator closes it.

    A store whose server was away reconnects by itself.
    """

    def __init__(self, cache: ManifestCache, settings: Settings) -> None:
        self._open = functools.partial(open_store, settings)
        self._registrar = Registrar(cache, self._open)
        self._opening = asyncio.Lock()
        self._registry: ToolRegistry | None = None

    @asynccontextmanager
    async def registry(self) -> AsyncGenerator[ToolRegistry]:
        """The registry, for a question. Raises as `Registrar.registry`, which looks each time whether it is the fleet's."""
        async with self._opening:
            if self._registry is None:
                self._registry = await asked(self._open)
        await self._registrar.check(self._registry)
        yield self._registry

    async def aclose(self) -> None:
        """Let go of its connections."""
        if self._registry is not None:
            await asyncio.to_thread(self._registry.close)


@asynccontextmanager
async def held_registry(settings: Settings) -> AsyncGenerator[HeldRegistry]:
    """One with a connection of its own to the fleet's Redis, for a program that is no agent."""
    async with async_client(str(settings.redis_url), master=settings.sentinel_master) as redis:
        held = HeldRegistry(
            ManifestCache(redis, ttl_seconds=settings.manifest_ttl_seconds, keys=settings.keys), settings
        )
        try:
            yield held
        finally:
            await held.aclose()
