"""An agent's background reload of the tools, and what it leaves behind."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from support.modules.raw_modules import manifest_of
from toolfleet_registry.catalog.catalog import Catalog
from toolfleet_registry.contracts import ModuleManifest
from toolfleet_registry.manifests.manifest_cache import ManifestCache
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.settings import Settings
from toolfleet_tasks.messages.catalog_updates import CatalogUpdates

MOMENTS = 300  # turns of the loop: a reload takes a hundred, or fewer


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Redis]:
    """A client for the reloads alone: `connections` are all theirs."""
    async with async_client(redis_url) as client:
        yield client


@pytest.fixture
async def updates(client: Redis) -> CatalogUpdates:
    """Of a catalog that finds one module's tools in Redis."""
    cache = ManifestCache(client, ttl_seconds=60)
    await cache.save(ModuleManifest.model_validate(manifest_of("git", "push")))
    await client.aclose()
    return CatalogUpdates(Catalog(Settings(module_services={"git": "http://git.test"}), cache), client)


def connected(client: Redis) -> list[object]:
    pool = client.connection_pool
    return [each for each in (*pool._available_connections, *pool._in_use_connections) if each.is_connected]


async def test_a_cancelled_reload_leaves_no_connection(updates: CatalogUpdates, client: Redis) -> None:
    """Whenever its loop ends: while it connects, asks, reads, or closes."""
    for moment in range(MOMENTS):
        following = asyncio.create_task(updates.follow())
        updates.announced()
        for _ in range(moment):
            await asyncio.sleep(0)
        following.cancel()
        await asyncio.wait([following])
        assert connected(client) == [], moment
