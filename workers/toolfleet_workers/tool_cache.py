"""Knows the modules' tools, and what operators have decided about them: from Redis and the registry, read aside."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any

from toolfleet_registry.agents.known_profiles import KnownProfiles
from toolfleet_registry.agents.live_profiles import LiveProfiles
from toolfleet_registry.catalog.manifest_reader import ManifestFetcher, ManifestReader
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.contracts.tool_definition import by_any_name
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.errors import FleetUnavailable, SettingsError
from toolfleet_registry.live_copy import EARLY_SECONDS, LiveCopy
from toolfleet_registry.manifests.manifest_cache import CachedManifest, ManifestCache, SeenTool, seen_tools
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.settings import Settings
from toolfleet_registry.specs import digest_of, spec_of
from toolfleet_registry.system import machine_clock
from toolfleet_registry.system.loggers import get_logger

log = get_logger(__name__)

_CHECK_SECONDS = (
    2.0  # after so long a question asks Redis aside whether anything has changed, which is one small number
)
_OLD_SECONDS = 60.0  # after so long everything is read again, and callers should wait for it
_PAUSE_SECONDS = 1.0  # between two looks at everything, however many calls are denied
_CHECK_PAUSE_SECONDS = 0.1  # between two looks at that number, however many calls ask for something that is not there
_AWAY_SECONDS = 0.5  # after Redis did not answer: a call that would be refused meanwhile waits for the next reading
_TRIES = 2  # looks of which the first may be in vain: what a server that has restarted was connected to is gone
_LONG_PAUSE_SECONDS = 10.0  # until everything is read again, when the registry did not answer
_LONGEST_START_SECONDS = 2.0  # the same, of a worker that knows nothing yet, and is of no use
_PATIENCE_SECONDS = 1.0  # a look takes a millisecond; no call waits for more than one that hangs
_FIRST_WAIT_SECONDS = 0.25  # until a call comes back whose tool is not known yet: mostly Redis is only slow
_LONGEST_WAIT_SECONDS = 15.0
_MOST_TICKETS = 10_000  # each takes about half a kB
_FRESH_SECONDS = 5.0  # what a manifest that was found so recently does not offer, its module has not


class ToolCache:
    """The tools that a worker knows.

    A query costs a dict lookup; Redis is read in the background, on the querying loop, from the first query on.

    Known tools stay known: a module with an expired manifest, or a Redis that was emptied, opens nothing. For a
    module without a manifest in Redis, the registry's copy holds; if it has none, the module is asked. The
    `profiles` of agents are updated with each reading.
    """

    def __init__(
        self,
        settings: Settings,
        known: KnownModules | None = None,
        *,
        profiles: KnownProfiles | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._settings = settings
        self._profiles = KnownProfiles(settings) if profiles is None else profiles
        self._known = KnownModules(settings) if known is None else known
        self._clock = clock or machine_clock.monotonic
        self._modules: dict[str, Mapping[str, SeenTool]] = {}
        self._read = dict[str, CachedManifest]()
        self._revision: int | None = None
        self._is_complete = self._reads_all = False
        self._check_at = self._old_at = self._next_read_at = self._next_check_at = self._clock()
        self._copy = LiveCopy(self._read_redis, event="manifests_not_read")
        self._patient_until = 0.0
        self._asked_at = dict[str, float]()
        self._tickets = OrderedDict[Hashable, Any]()  # those used last at the end
        self._latest: object = None
        self._decided_by = self._profiles.revision  # of the profiles that they were made from
        self._approved = dict[str, tuple[bool, float]]()  # of our own functions: as few as there are
        self._sources: _Sources | None = None

    @property
    def is_old(self) -> bool:
        """Whether Redis was not read for some seconds, as in an idle worker: `refresh` before deciding anything on it."""
        return self._clock() >= min(self._check_at + _CHECK_SECONDS, self._old_at)

    def find(self, tool_name: str) -> SeenTool | None:
        """Return the tool as it is in effect; `None` if nothing is known of it."""
        if self._clock() >= self._check_at:
            self._begin_reading(reads_all=self._clock() >= self._old_at)
        return self._modules.get(tool_name.partition(".")[0], _NO_TOOLS).get(tool_name)

    def decided(self, key: Hashable) -> Any:
        """Return the ticket kept under `key`; `None` if there is none, or everything should be read again before.

        After any change of what modules offer, of what operators have decided, or of profiles, all are made again.
        """
        now, tickets = self._clock(), self._tickets
        if now >= self._check_at:
            self._begin_reading(reads_all=now >= self._old_at)
        if now >= min(self._check_at + _CHECK_SECONDS, self._old_at):  # as `is_old`
            return None
        if self._decided_by is not self._profiles.revision:
            tickets.clear()
            return None
        ticket = tickets.get(key)
        if ticket is not None and ticket is not self._latest:
            tickets.move_to_end(key)
            self._latest = ticket
        return ticket

    def keep(self, key: Hashable, ticket: object) -> None:
        """Keep a ticket that was made from what is known now, until that changes."""
        if self._decided_by is not self._profiles.revision:
            self._tickets.clear()
            self._decided_by = self._profiles.revision
        if len(self._tickets) >= _MOST_TICKETS:
            self._tickets.popitem(last=False)
        self._tickets[key] = self._latest = ticket

    def retries_undeclared(self, module: str) -> bool:
        """Return whether the module declares that its undeclared tools are repeated after a failure, as far as is known."""
        cached = self._read.get(module)
        return cached is not None and bool(cached.manifest.retries_undeclared)

    def serves(self, module: str) -> bool:
        """Return whether calls of such a module can be run here: of others nothing is known."""
        return module in self._known.served

    def lacks(self, tool_name: str) -> bool:
        """Return whether the tool's module surely does not offer it: it has said so within the last seconds."""
        module = tool_name.partition(".")[0]
        cached = self._read.get(module)
        if cached is None or cached.is_kept or tool_name in self._modules[module]:
            return False
        age = cached.age_seconds
        return (age is not None and age < _FRESH_SECONDS) or (
            self._sources is not None and self._sources.fetcher.is_fresh(module)
        )

    def inquire(self, tool_name: str) -> float:
        """Have the tool's module asked for its manifest. Returns after how many seconds something may be known of it.

        They grow for as long as this module has been asked about in vain.
        """
        now, module = self._clock(), tool_name.partition(".")[0]
        if self._is_complete and self._sources is not None:  # before, it may be all there, and Redis slow
            self._sources.fetcher.begin(module)
        asked_for = now - self._asked_at.setdefault(module, now)
        return min(max(asked_for, _FIRST_WAIT_SECONDS), _LONGEST_WAIT_SECONDS)

    async def is_approved(self, tool: ToolDefinition) -> bool:
        """Return whether the tool's module is not pinned, or an operator has approved this very definition of it.

        Asks the registry, and keeps its answer for two seconds. Fails closed: without an answer it is not.
        """
        now, digest = self._clock(), digest_of(spec_of(tool))
        known = self._approved.get(digest)
        if known is not None and now < known[1]:
            return known[0]
        is_approved = await self._ask_approval(tool, digest)
        if is_approved is None:  # the next call asks again: it may be back by then
            return False
        self._approved[digest] = is_approved, now + _CHECK_SECONDS
        return is_approved

    async def _ask_approval(self, tool: ToolDefinition, digest: str) -> bool | None:
        """Return the registry's answer; `None` without one."""
        if self._sources is None:
            return None
        try:
            async with self._sources.reader.registrar.registry() as registry:
                from toolfleet_registry.catalog.registration import asked  # with the registry

                pins = (await asked(registry.pins)).get(tool.name.partition(".")[0])
        except (FleetUnavailable, SettingsError) as exc:
            log.warning("approval_not_known", tool=tool.name, error=str(exc))
            return None
        return pins is None or pins.get(tool.name) == digest

    async def ensure_modules(self, modules: Collection[str], *, is_new: bool) -> None:
        """Have the manifests of these modules fetched in the background, unless they are known here.

        `is_new`: they have just been added, and the known state under their names was another module's.
        """
        if not is_new:
            modules = [module for module in modules if module not in self._read]
        if modules and self._is_complete and self._sources is not None:
            if not is_new:  # another process may have asked it by now
                await self.refresh()
            for module in modules:
                self._sources.fetcher.begin(module, anew=is_new)

    async def reload_modules(self, modules: Collection[str]) -> None:
        """Have those of these modules asked, aside, of which something is known: they may offer something else by now.

        Where nothing is known, the first look at all modules is still to come.
        """
        await self.prepare()
        for module in self._read.keys() & set(modules):
            if self._sources is not None:
                self._sources.fetcher.begin(module, anew=True)

    async def refresh(self, *, reads_all: bool = True) -> None:
        """Return when everything is known as it was a second ago, or Redis has not said so within a second.

        Without `reads_all` it is read only if Redis says that it has changed. After a look in vain there is another one.
        """
        for _ in range(_TRIES):
            if self._copy.is_away and (rest := self._next_check_at - self._clock()) > 0:
                await asyncio.sleep(rest + EARLY_SECONDS)
            self._begin_reading(reads_all=reads_all or self._clock() >= self._old_at)
            if (patience := self._patient_until - self._clock()) > 0:
                await self._copy.wait(patience)
            if not self._copy.is_away:
                return

    async def prepare(self) -> None:
        """Return when the manifests have been read, and for modules without one what the registry keeps of them."""
        pause = _PAUSE_SECONDS
        while not self._is_complete:
            await self.refresh()
            if not self._is_complete:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_START_SECONDS)

    async def aclose(self) -> None:
        """End a look that is under way, and the connection; there will be no other one."""
        await self._copy.aclose()
        if self._sources is not None:
            await self._sources.aclose()

    def _begin_reading(self, *, reads_all: bool) -> None:
        now = self._clock()
        reads_all = reads_all and now >= self._next_read_at  # sooner, it is asked whether anything has changed
        next_at = self._next_read_at if reads_all else self._next_check_at
        if now < next_at or self._copy.is_reading:
            return
        self._next_check_at = now + _CHECK_PAUSE_SECONDS
        self._next_read_at = now + _PAUSE_SECONDS
        self._patient_until = now + _PATIENCE_SECONDS
        self._reads_all = reads_all
        self._copy.begin()

    async def _read_redis(self) -> None:
        if self._sources is None:
            self._sources = _Sources(self._settings, self._known, self._profiles, self._take, self._clock)
        cache = self._sources.reader.cache
        try:
            revision = await cache.revision()  # before reading: what changes meanwhile is seen the next time
            if self._reads_all or revision != self._revision:
                await self._load(self._sources)
        except FleetUnavailable:
            self._next_read_at = self._next_check_at = self._clock() + _AWAY_SECONDS
            raise
        self._revision = revision if self._is_complete else None
        self._check_at = self._clock() + _CHECK_SECONDS

    async def _load(self, sources: "_Sources") -> None:
        await sources.profiles.load()
        found = await sources.reader.read(self._known.served, self._read)
        for module, cached in found.manifests.items():
            self._take(module, cached)
        self._is_complete = self._is_complete or found.is_whole
        self._old_at = self._clock() + (_OLD_SECONDS if found.is_whole else _LONG_PAUSE_SECONDS)

    def _take(self, module: str, cached: CachedManifest) -> None:
        if cached is not self._read.get(module):
            self._read[module] = cached
            self._tickets.clear()
            seen = seen_tools(cached.manifest, cached.verdicts, self._settings.module.get(module))
            tools = {tool.access.tool_name: tool for tool in seen}
            self._modules[module] = by_any_name(tools, lambda tool: tool.definition)
        self._asked_at.pop(module, None)


class _Sources:
    """The sources of the cache. Made on the querying loop."""

    def __init__(
        self,
        settings: Settings,
        known: KnownModules,
        profiles: KnownProfiles,
        take: Callable[[str, CachedManifest], object],
        clock: Callable[[], float],
    ) -> None:
        self._redis = async_client(str(settings.redis_url), master=settings.sentinel_master)
        cache = ManifestCache(self._redis, ttl_seconds=settings.manifest_ttl_seconds, keys=settings.keys)
        self.reader = ManifestReader.of(settings, cache)
        self.profiles = LiveProfiles(self._redis, settings, profiles)
        self.fetcher = ManifestFetcher(settings, self._redis, self.reader, on_fetched=take, clock=clock, known=known)

    async def aclose(self) -> None:
        await self.fetcher.aclose()
        await self._redis.aclose()


_NO_TOOLS: Mapping[str, SeenTool] = {}
