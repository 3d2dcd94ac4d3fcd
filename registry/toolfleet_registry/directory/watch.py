"""Keeps a worker or beat in step with the directory of modules: feeds it with the settings, and follows its changes."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from toolfleet_registry.directory.directory import FEED_SECONDS, Listing, ModuleDirectory
from toolfleet_registry.directory.entries import AnnouncedModule, ModuleEntry, ModuleNetworks, static_entries
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.errors import FleetUnavailable, SettingsError
from toolfleet_registry.headers import SETTING
from toolfleet_registry.live_copy import LiveCopy
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock, machine_clock
from toolfleet_registry.system.loggers import get_logger

if TYPE_CHECKING:
    from toolfleet_registry.store.registry import ToolRegistry

log = get_logger(__name__)

T = TypeVar("T")

_STORE_SECONDS = 10.0  # a store answers within 5 s, or not at all

_POLL_SECONDS = 0.5  # one small question: a module that was added is served within two seconds
_HOSTS_SECONDS = 1.0  # hosts are judged so often: one that has died is no change in Redis until it is asked
_READ_SECONDS = 60.0  # after so long all of it is read, with any revision
_PATIENCE_SECONDS = 5.0  # for the first look, at a worker's start
_REREAD_SECONDS = 1.0  # that a call waits for it: Redis answers at once or is away
_REMOVED_KEPT_SECONDS = (
    86_400  # a removed module's queue is ended for so long: who has not heard of it may still publish
)

OnPoll = Callable[[], Awaitable[None]]
"""Is called after each look at the directory, whether it has changed or not."""

OnAsked = Callable[[int], Awaitable[None]]
"""Is called when an agent has asked for a look at all modules, with the number of that wish; returns at once."""


class DirectoryCopy:
    """The registry's copy of the directory, of one process. Raises nothing.

    The store is asked in a thread. Fails open: without it the directory goes on, and the copy is made later.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._is_needed = settings.registry_url not in {None, settings.redis_url}
        self._kept: dict[str, str] | None = None

    async def read(self) -> dict[str, str]:
        """Return the texts that are kept, by module; none where there is no copy, or it cannot be had."""
        found = await self._asked(lambda store: store.kept_modules()) if self._is_needed else None
        self._kept = found
        return found or {}

    async def keep(self, texts: Mapping[str, str]) -> None:
        """Keep exactly these, if others were kept."""
        if self._is_needed and self._kept != texts:
            kept = dict(texts)

            def keep(store: "ToolRegistry") -> bool:
                store.keep_modules(kept)
                return True

            if await self._asked(keep):
                self._kept = kept

    async def _asked(self, question: "Callable[[ToolRegistry], T]") -> T | None:
        def ask() -> T:
            from toolfleet_registry.store.factory import open_store  # of fleets with another registry

            store = open_store(self._settings)
            try:
                return question(store)
            finally:
                store.close()

        try:
            async with asyncio.timeout(_STORE_SECONDS):
                return await asyncio.to_thread(ask)
        except (FleetUnavailable, SettingsError, TimeoutError) as exc:
            log.warning("modules_not_kept", error=str(exc) or "no answer in time")
            return None


async def _nothing(*_: object) -> None:
    """Beat only feeds."""


class ModuleWatch:
    """Follows the directory, for one process, on one event loop.

    `known` takes over the directory's state; `on_poll` is called after that, and `on_asked` when a probe of all modules
    is requested. Raises nothing while Redis is away: the known state stays.
    """

    def __init__(
        self, settings: Settings, known: KnownModules, *, on_poll: OnPoll = _nothing, on_asked: OnAsked = _nothing
    ) -> None:
        self._settings = settings
        self._known = known
        self._on_poll, self._on_asked = on_poll, on_asked
        self._only_feeds, self._copy = on_poll is _nothing, DirectoryCopy(settings)
        self._asked: int | None = None
        self._static = list(static_entries(settings).values())
        self._networks = ModuleNetworks(settings.module_networks)
        self._directory: ModuleDirectory | None = None
        self._redis: Any = None
        self._revision: str | None = None
        self._feed_at = self._read_at = self._hosts_at = machine_clock.monotonic()
        self._listing = Listing()
        self._conflicts = dict[str, str]()
        self._refused = dict[str, str]()
        self._unknown = set[str]()
        self._unfed_since = dict[str, float]()
        self._live = LiveCopy(self._renew, event="modules_not_read")

    async def prepare(self) -> None:
        """Return when the directory has been fed and read once, or Redis has not answered for some seconds."""
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await self._live.refresh()
        except TimeoutError:
            log.warning("modules_not_read", error=f"no answer within {_PATIENCE_SECONDS:g} s")

    async def reread(self) -> None:
        """Return when the directory has been read once more, or Redis has not answered for a second."""
        await self._live.confirm(0, patience_seconds=_REREAD_SECONDS)

    async def keep(self) -> None:
        """Look again and again, until cancelled."""
        if self._settings.redis_url is not None:
            await self._live.keep(_POLL_SECONDS)

    async def leave(self) -> None:
        """Feed no more: the process ends. Raises nothing."""
        if self._settings.redis_url is None or not self._static:
            return
        async with self._settings.redis_client(timeout_seconds=1) as redis:
            try:
                await ModuleDirectory(redis, self._settings).leave(self._static)
            except FleetUnavailable as exc:  # it counts for some seconds only
                log.debug("modules_not_left", error=str(exc))

    async def aclose(self) -> None:
        """Close the connection."""
        await self._live.aclose()
        if self._redis is not None:
            await self._redis.aclose()

    async def _renew(self) -> None:
        if self._settings.redis_url is not None:
            await self._poll(self._opened())
            await self._on_poll()

    def _opened(self) -> ModuleDirectory:
        if self._directory is None:
            self._redis = self._settings.redis_client()
            self._directory = ModuleDirectory(self._redis, self._settings)
        return self._directory

    async def _poll(self, directory: ModuleDirectory) -> None:
        now = machine_clock.monotonic()
        if now >= self._feed_at:
            self._say_conflicts(await directory.feed(self._static))
            self._feed_at = now + FEED_SECONDS
        revision, asked = await directory.revision()  # before reading: what changes meanwhile is seen the next time
        if self._asked is not None and asked > self._asked:
            await self._on_asked(asked)
        self._asked = asked
        if revision != self._revision or now >= self._read_at:
            await self._restore(directory, revision)
            self._listing = await directory.read()
            await self._tidy(directory, self._listing)
            if not self._only_feeds:
                await self._copy.keep(await directory.texts_of(self._listing.stored))
            self._take(self._listing.entries)
            self._revision, self._read_at, self._hosts_at = revision, now + _READ_SECONDS, now + _HOSTS_SECONDS
        elif now >= self._hosts_at:
            self._hosts_at = now + _HOSTS_SECONDS
            self._listing = replace(self._listing, hosts=await directory.read_hosts(self._listing.stored))
            self._take(self._listing.entries)  # it also ends those that are drained by now
        elif any(entry.is_removed for entry in self._known.entries.values()):
            self._take(self._known.entries)  # one may be drained by now

    def _take(self, entries: Mapping[str, ModuleEntry]) -> None:
        """Hold what may be used of it. A name's addresses are judged when they are connected to."""
        fine = dict[str, ModuleEntry]()
        for name, given in entries.items():
            entry = self._reachable(given)
            if (
                entry.is_static
                or entry.url is None
                or self._networks.allows_literal(entry.url, public_only=entry.public_only)
            ):
                fine[name] = entry
            elif self._refused.get(name) != entry.url:
                self._refused[name] = entry.url
                log.error("module_refused", module=name, reason="its address is not one of TOOLFLEET_MODULE_NETWORKS")
        self._known.take(fine)
        self._say_unknown()

    def _reachable(self, entry: ModuleEntry) -> ModuleEntry:
        """Return the module with those of its hosts only that may be where they are; at the first of them."""
        if not isinstance(entry, AnnouncedModule) or not entry.replicas:
            return entry
        allowed = tuple(one for one in entry.replicas if self._networks.allows_literal(one.url))
        url = allowed[0].url if allowed else entry.url
        return entry if allowed == entry.replicas else entry.model_copy(update={"replicas": allowed, "url": url})

    def _say_unknown(self) -> None:
        """Say once of each module with headers that there is none of that name."""
        for name in sorted(self._known.headers.keys() - self._known.names - self._unknown):
            self._unknown.add(name)
            log.warning(
                "module_of_headers_unknown",
                module=name,
                hint=f"{SETTING} names a module that is not there: it is misspelt, or still to be added.",
            )

    async def _restore(self, directory: ModuleDirectory, revision: str) -> None:
        """Redis has lost its data: what was added is in the registry's store, or known here, if nowhere else."""
        is_first, has_lost = self._revision is None, int(revision or 0) < int(self._revision or 0)
        if self._only_feeds or not (is_first or has_lost):
            return
        for name, text in (await self._copy.read()).items():
            await directory.restore(name, text)
        if has_lost:
            log.warning("modules_put_back", modules=len(self._known.entries))
            for name, entry in self._known.entries.items():
                if not entry.is_static and not isinstance(entry, AnnouncedModule):
                    await directory.replace(name, "", entry)
            await directory.feed(self._static)

    async def _tidy(self, directory: ModuleDirectory, listing: Listing) -> None:
        """Forget modules removed long ago, and those that no settings have named for the life of a manifest; sign old entries again."""
        await directory.sign_again()
        await directory.forget_hosts(listing.hosts)
        fed, now = await directory.fed(), machine_clock.monotonic()
        for name, entry in listing.stored.items():
            if entry.removed_at is not None and fleet_clock.now() > entry.removed_at + _REMOVED_KEPT_SECONDS:
                await directory.forget(name, entry)
            if not entry.is_static or name in fed:
                self._unfed_since.pop(name, None)
            elif now - self._unfed_since.setdefault(name, now) > self._settings.manifest_ttl_seconds:
                await directory.forget(name, entry)

    def _say_conflicts(self, stay: Mapping[str, ModuleEntry]) -> None:
        conflicts = {name: entry.url or "" for name, entry in stay.items()}
        for name, url in conflicts.items():
            if self._conflicts.get(name) != url:
                log.error(
                    "module_conflict",
                    module=name,
                    in_effect=url,
                    hint="Another process has other settings for this module, and had them first: give all the same.",
                )
        self._conflicts = conflicts
