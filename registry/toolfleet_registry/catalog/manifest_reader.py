"""Reads the manifests of modules, for agents and workers: from the cache, and what has expired there from the registry."""

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Self

from toolfleet_registry.catalog.batch_registration import asked
from toolfleet_registry.catalog.module_registration import kept_in_effect
from toolfleet_registry.catalog.registration import OpenRegistry, Registrar
from toolfleet_registry.errors import FleetUnavailable, SettingsError
from toolfleet_registry.manifests.manifest_cache import CachedManifest, ManifestCache
from toolfleet_registry.settings import Settings
from toolfleet_registry.store.factory import open_store
from toolfleet_registry.system.loggers import get_logger

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ManifestReading:
    """Manifests by module. `is_whole`: the registry, too, has said what it keeps of those that the cache does not have."""

    manifests: dict[str, CachedManifest]
    is_whole: bool


class ManifestReader:
    """Reads manifests from `cache`, and expired ones from the registry behind `registrar`.

    Raises `FleetUnavailable` when the cache's Redis does not answer. A registry that does not answer is a warning: what
    was `known` of a module whose manifest has expired stays in effect.
    """

    def __init__(self, cache: ManifestCache, registrar: Registrar) -> None:
        self.cache, self.registrar = cache, registrar

    @classmethod
    def of(
        cls,
        settings: Settings,
        cache: ManifestCache,
        open_registry: OpenRegistry | None = None,
        *,
        is_agents: bool = False,
    ) -> Self:
        """The reader of a fleet with these settings; `open_registry` is for tests. `is_agents`: they do not say what holds for modules' tools."""
        lines = None if is_agents else settings.module
        return cls(cache, Registrar(cache, open_registry or functools.partial(open_store, settings), lines))

    async def read(
        self, modules: Collection[str], known: Mapping[str, CachedManifest], *, needs_cache: bool = False
    ) -> ManifestReading:
        """Read the manifests of these modules.

        `needs_cache`: if the cache is empty, return nothing and do not ask the registry.
        """
        cached = await self.cache.load(modules)
        if needs_cache and not cached:
            return ManifestReading({}, is_whole=False)
        expired = await self.read_kept({*modules} - cached.keys(), known)
        return ManifestReading(cached | expired.manifests, expired.is_whole)

    async def read_kept(self, modules: Collection[str], known: Mapping[str, CachedManifest]) -> ManifestReading:
        """Read the registry's manifests of modules that have expired in the cache, with operators' current decisions."""
        if not modules:
            return ManifestReading({}, is_whole=True)
        try:
            async with self.registrar.registry() as registry:
                return ManifestReading(
                    await asked(functools.partial(kept_in_effect, registry, sorted(modules))), is_whole=True
                )
        except (FleetUnavailable, SettingsError) as exc:
            _log.warning("registry_not_read", error=str(exc))
        return ManifestReading({name: known[name] for name in known.keys() & modules}, is_whole=False)
