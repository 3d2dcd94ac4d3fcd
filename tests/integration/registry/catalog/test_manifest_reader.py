"""Reading manifests as agents and workers do: from the cache, then from what the registry keeps."""

from collections.abc import Sequence

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from support.modules.raw_modules import manifest_of
from toolfleet_registry.catalog.manifest_reader import ManifestReader
from toolfleet_registry.contracts import ModuleManifest
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.manifests.manifest_cache import ManifestCache
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_registry.store.memory import InMemoryToolRegistry

GIT, MAIL = (ModuleManifest.model_validate(manifest_of(name, "send")) for name in ("git", "mail"))


class Registry(InMemoryToolRegistry):
    """Counts how often it is asked for what it keeps, and can go away."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.is_away = False

    def identity(self) -> str:
        if self.is_away:
            raise FleetUnavailable("Redis at nowhere:1 does not answer")
        return super().identity()

    def kept_manifests(self, modules: Sequence[str]) -> dict[str, str]:
        self.asked += 1
        return super().kept_manifests(modules)


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def reader(redis: Redis, registry: Registry) -> ManifestReader:
    return ManifestReader.of(Settings(), ManifestCache(redis, ttl_seconds=100), lambda: registry)


async def test_what_is_in_the_cache_needs_no_registry(reader: ManifestReader, registry: Registry) -> None:
    """Only what is not there is asked for, and only of modules that are wanted."""
    await reader.registrar.take_in({"git": GIT, "mail": MAIL})
    found = await reader.read({"git"}, {})

    assert ([*found.manifests], found.is_whole, registry.asked) == (["git"], True, 0)
    assert found.manifests["git"].manifest == GIT
    assert not found.manifests["git"].is_kept
    assert (await reader.read((), {})).manifests == {}


async def test_what_has_expired_is_read_from_the_registry(
    reader: ManifestReader, registry: Registry, redis: Redis
) -> None:
    """It says that it is what was kept; a module of which nobody knows anything is not there."""
    await reader.registrar.take_in({"git": GIT, "mail": MAIL})
    await redis.delete(Keys().module_manifest("mail"))
    found = await reader.read({"git", "mail", "gone"}, {})

    assert {name: one.is_kept for name, one in found.manifests.items()} == {"git": False, "mail": True}
    assert (found.is_whole, registry.asked) == (True, 1)


async def test_what_was_known_holds_while_the_registry_is_away(
    reader: ManifestReader, registry: Registry, redis: Redis
) -> None:
    """With a warning; what the cache has is read all the same, and counts more than what was known."""
    saved = (await reader.registrar.take_in({"git": GIT, "mail": MAIL})).saved
    await redis.delete(Keys().module_manifest("mail"))
    registry.is_away = True
    with capture_logs() as lines:
        found = await reader.read({"git", "mail", "gone"}, {**saved, "git": saved["mail"], "other": saved["git"]})

    assert [line["event"] for line in lines] == ["registry_not_read"]
    assert not found.is_whole
    assert {name: one.manifest for name, one in found.manifests.items()} == {"git": GIT, "mail": MAIL}
    assert found.manifests["mail"] is saved["mail"]


async def test_an_empty_cache_may_be_told_from_a_registry_that_keeps_something(
    reader: ManifestReader, registry: Registry, redis: Redis
) -> None:
    """An agent asks the modules then, and a worker goes by what is kept."""
    await reader.registrar.take_in({"git": GIT})
    await redis.delete(Keys().module_manifest("git"))

    assert (await reader.read({"git"}, {}, needs_cache=True)).manifests == {}
    assert registry.asked == 0
    assert [*(await reader.read({"git"}, {})).manifests] == ["git"]
