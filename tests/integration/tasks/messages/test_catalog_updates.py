"""An agent's background reload of the tools, and what it leaves behind."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from support.modules.raw_modules import manifest_of
from support.servers.redis_faults import faulty_redis
from support.waiting import wait_until
from toolfleet_registry.catalog.catalog import Catalog
from toolfleet_registry.contracts import Caller, ModuleManifest
from toolfleet_registry.manifests import manifest_cache
from toolfleet_registry.manifests.manifest_cache import ManifestCache
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.settings import Settings
from toolfleet_tasks.client.session import CatalogUpdates

ADA = Caller(user_id="ada", permission="owner", allowed_modules="*")
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


async def test_what_could_not_be_loaded_is_loaded_when_redis_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change is announced once: an agent whose Redis froze just then has it all the same."""
    monkeypatch.setattr(manifest_cache, "_PATIENCE_SECONDS", 0.2)
    settings = Settings(module_services={"git": "http://git.test"})
    with faulty_redis(tmp_path / "redis") as server, capture_logs() as logs:
        async with async_client(server.url) as client:
            cache = ManifestCache(client, ttl_seconds=60)
            catalog = Catalog(settings, cache)
            updates = CatalogUpdates(catalog, client)
            await cache.save(ModuleManifest.model_validate(manifest_of("git", "push")))
            await catalog.load()
            following = asyncio.create_task(updates.follow())
            await cache.save(ModuleManifest.model_validate(manifest_of("git", "pull")))
            with server.frozen():
                updates.announced()
                await wait_until(lambda: logs, "it could not be loaded")
            await wait_until(lambda: [tool.name for tool in catalog.tools(ADA)] == ["git.pull"], "it is loaded")
            following.cancel()
            await asyncio.wait([following])

    assert [line["event"] for line in logs] == ["manifests_not_reloaded"]
