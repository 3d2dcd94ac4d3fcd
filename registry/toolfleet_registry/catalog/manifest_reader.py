"""Reads the manifests of modules, for agents and workers: from the cache, the registry, or the module itself.

The process that fetches one stores it in the registry and the cache, and all others find it there. A module that does
not answer is asked again after growing pauses, by any process.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextvars import Context
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Self, cast

from redis.asyncio import Redis

from toolfleet_registry.contracts import ModuleManifest
from toolfleet_registry.contracts.names import ARTIFACTS, LOCAL, PROGRAMS, SCHEDULER
from toolfleet_registry.directory.directory import ProbeFailure, ProbeFailures
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.errors import FleetUnavailable, SettingsError
from toolfleet_registry.lua_files import script
from toolfleet_registry.manifests.manifest_cache import CachedManifest, ManifestCache
from toolfleet_registry.redis.script import Script
from toolfleet_registry.redis.servers import answering
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock, machine_clock
from toolfleet_registry.system.loggers import get_logger

if TYPE_CHECKING:
    from toolfleet_registry.catalog.registration import OpenRegistry, Registrar
    from toolfleet_registry.manifests.discovery import DiscoveryResult

log = get_logger(__name__)
_log = get_logger(__name__)

_PATIENCE_SECONDS = 5
_SHORTEST_PAUSE_SECONDS = 1.0  # after a first request in vain: a module that restarts is back by then
_LONGEST_PAUSE_SECONDS = 30.0  # far less than the time between two refreshes, which ask as well
_FRESH_SECONDS = 5.0  # a manifest that was fetched so recently is not asked for again
_MARGIN_SECONDS = 5.0  # beyond the time that a module has to answer: to take in what it says
_FORGET_MS = 600_000  # after so long without a request, those in vain are forgotten

BEGIN = script("catalog/begin_fetch")
"""Returns 0 to ask now, or the rest of the pause (ms)."""

END = script("catalog/end_fetch")
"""Returns the pause (ms)."""


class ManifestFetcher:
    """Belongs to one event loop. `on_fetched` gets what was taken in, by the module's name."""

    def __init__(
        self,
        settings: Settings,
        redis: Redis,
        reader: "ManifestReader",
        *,
        on_fetched: Callable[[str, CachedManifest], object],
        clock: Callable[[], float] | None = None,
        known: KnownModules | None = None,
    ) -> None:
        self._settings = settings
        self._known = KnownModules(settings) if known is None else known
        self._redis = redis
        self._reader = reader
        self._on_fetched = on_fetched
        self._clock = clock or machine_clock.monotonic
        self._failures = ProbeFailures(redis, settings.keys, ttl_seconds=settings.manifest_ttl_seconds)
        self._running = dict[str, asyncio.Task[None]]()
        self._next_at = dict[str, float]()
        self._fetched = dict[str, ModuleManifest]()
        self._fetched_at = dict[str, float]()
        self._held_until = dict[str, float]()  # the fetches started here; Redis may be away when it has ended
        self._taking_in = asyncio.Lock()

    def begin(self, module: str, *, anew: bool = False) -> None:
        """Fetch the manifest of a served module in the background, unless a fetch is running or has just been tried.

        `anew`: the earlier attempt was made elsewhere, or for another module of that name.
        """
        if module not in self._known.served or module in self._running:
            return
        if anew:
            self._next_at.pop(module, None)
        if self._clock() < self._next_at.get(module, 0):
            return
        # In a context of its own: what it logs is not about the call that happened to ask.
        task = asyncio.create_task(self._fetch(module), name="toolfleet-manifest-fetch", context=Context())
        self._running[module] = task
        task.add_done_callback(lambda _: self._running.pop(module, None))

    def is_fresh(self, module: str) -> bool:
        """Return whether this process has fetched the module's manifest within the last seconds."""
        at = self._fetched_at.get(module)
        return at is not None and self._clock() < at + _FRESH_SECONDS

    async def aclose(self) -> None:
        """Cancel the running fetches."""
        running = [*self._running.values()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    async def _fetch(self, module: str) -> None:
        try:
            rest = await self._begun(module)
            if rest == 0:
                rest = await self._ended(module, is_good=await self._probe(module))
            self._next_at[module] = self._clock() + rest / 1000
        except FleetUnavailable as exc:
            log.warning("manifest_not_fetched", module=module, error=str(exc))
            self._next_at[module] = self._clock() + _SHORTEST_PAUSE_SECONDS
        except Exception:  # a defect of ours: the next call that needs it tries again
            log.exception("manifest_not_fetched", module=module)
            self._next_at[module] = self._clock() + _LONGEST_PAUSE_SECONDS

    async def _begun(self, module: str) -> int:
        """Claim the fetch of a module, so that no other process asks it.

        Returns the rest of a pause (ms) if it must not be asked.
        """
        if self._clock() < self._held_until.get(module, 0):
            return 0
        seconds = self._settings.discovery_timeout_seconds + _MARGIN_SECONDS
        longest_ms, until = _ms(_LONGEST_PAUSE_SECONDS), self._clock() + seconds
        rest = await self._ask_redis(BEGIN, module, request_ms=_ms(seconds), longest_ms=longest_ms)
        if rest == 0:
            self._held_until[module] = until
        return rest

    async def _ended(self, module: str, *, is_good: bool) -> int:
        """Let others ask the module again. Returns after how many ms."""
        pauses = {
            "shortest_ms": _ms(_SHORTEST_PAUSE_SECONDS),
            "longest_ms": _ms(_LONGEST_PAUSE_SECONDS),
            "fresh_ms": _ms(_FRESH_SECONDS),
        }
        rest = await self._ask_redis(END, module, in_vain="01"[not is_good], **pauses)
        self._held_until.pop(module, None)
        return rest

    async def _probe(self, module: str) -> bool:
        """Ask the module, and take in what it says. Returns whether there is anything."""
        found = await self._offered(module)
        manifest = found if found is None or isinstance(found, ModuleManifest) else found.offered
        is_taken = manifest is not None and await self._taken(module, manifest)
        if isinstance(found, ModuleManifest):
            await self._failures.note({}, [module])
        elif found is not None:  # after what there is all the same was taken in: it is newer than that
            await self._failures.note({module: ProbeFailure(found.error, fleet_clock.now())}, ())
        return is_taken

    async def _taken(self, module: str, manifest: ModuleManifest) -> bool:
        self._fetched[module], before = manifest, self._fetched_at.get(module)
        async with (
            self._taking_in
        ):  # all that have come while others were taken in go together: each time costs a reading
            together, self._fetched = self._fetched, {}
            if together:
                await self._take_in(together)
        return self._fetched_at.get(module) != before

    async def _offered(self, module: str) -> "DiscoveryResult | None":
        # Loaded where they are wanted: hardly any call needs them, and every worker shall be up soon.
        if module == SCHEDULER and self._settings.scheduler:
            from toolfleet_registry.local.scheduler_tools import probe_scheduler

            return probe_scheduler(self._settings).get(module)
        if module == ARTIFACTS and self._settings.artifact_store is not None:
            from toolfleet_registry.local.artifact_tools import probe_artifacts

            return probe_artifacts(self._settings).get(module)
        if module == PROGRAMS and self._settings.programs:
            from toolfleet_registry.local.program_tools import probe_programs

            return probe_programs(self._settings).get(module)
        if module == LOCAL and self._settings.local_tools:
            from toolfleet_registry.local.local_tools import probe_local

            return (await probe_local(self._settings)).get(module)
        from toolfleet_registry.manifests.discovery import discover

        probes = await discover(
            {module: self._known.settings.module_services[module]},
            timeout_seconds=self._settings.discovery_timeout_seconds,
            guards=self._known.guards,
            headers=self._known.headers,
        )
        return probes[module]

    async def _take_in(self, manifests: dict[str, ModuleManifest]) -> None:
        try:
            taken = await self._reader.registrar.take_in(manifests)
        except (FleetUnavailable, SettingsError) as exc:  # without the registry it is unknown what is disabled
            log.warning("manifest_not_taken_in", modules=sorted(manifests), error=str(exc))
            return
        for module, cached in taken.saved.items():
            self._fetched_at[module] = self._clock()
            self._on_fetched(module, cached)

    async def _ask_redis(self, script: Script, module: str, **args: str | int) -> int:
        command = script.command(fetch=self._settings.keys.manifest_fetch(module), **args, forget_ms=_FORGET_MS)
        async with answering(self._redis, seconds=_PATIENCE_SECONDS):
            return await cast("Awaitable[int]", self._redis.execute_command(*command))


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


@dataclass(frozen=True, slots=True)
class ManifestReading:
    """Manifests by module. `is_whole`: the registry, too, has said what it keeps of those that the cache does not have."""

    manifests: dict[str, CachedManifest]
    is_whole: bool


class ManifestReader:
    """Reads manifests from `cache`, and expired ones from the registry behind `registrar`.

    Raises `FleetUnavailable` when the cache's Redis does not answer. A registry that does not answer is a warning: what
    was `known` of a module with an expired manifest stays in effect.
    """

    def __init__(self, cache: ManifestCache, make_registrar: "Callable[[], Registrar]") -> None:
        self.cache, self._make_registrar = cache, make_registrar

    @cached_property
    def registrar(self) -> "Registrar":
        """The intake of manifests. It is imported when it is asked for: most processes read from the cache only."""
        return self._make_registrar()

    @classmethod
    def of(
        cls,
        settings: Settings,
        cache: ManifestCache,
        open_registry: "OpenRegistry | None" = None,
        *,
        is_agents: bool = False,
    ) -> Self:
        """Return the reader of a fleet with these settings; `open_registry` is for tests. `is_agents`: they do not say what holds for modules' tools."""
        lines = None if is_agents else settings.module

        def make_registrar() -> "Registrar":
            from toolfleet_registry.catalog.registration import Registrar  # see `registrar`
            from toolfleet_registry.store.factory import open_store

            return Registrar(cache, open_registry or functools.partial(open_store, settings), lines)

        return cls(cache, make_registrar)

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
        from toolfleet_registry.catalog.registration import asked, kept_in_effect

        try:
            async with self.registrar.registry() as registry:
                return ManifestReading(
                    await asked(functools.partial(kept_in_effect, registry, sorted(modules))), is_whole=True
                )
        except (FleetUnavailable, SettingsError) as exc:
            _log.warning("registry_not_read", error=str(exc))
        return ManifestReading({name: known[name] for name in known.keys() & modules}, is_whole=False)
