"""Follows the events of a fleet's registry, wherever it is stored: asks it each second, over a registry that is held open."""

import asyncio
import functools
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Self, TypeAlias

from toolfleet_registry.catalog.registration import Registrar, asked
from toolfleet_registry.errors import FleetUnavailable, RegistryEventsLost
from toolfleet_registry.manifests.manifest_cache import ManifestCache
from toolfleet_registry.settings import Settings
from toolfleet_registry.specs import RegistryEvent
from toolfleet_registry.store import rules
from toolfleet_registry.store.factory import open_store
from toolfleet_registry.store.registry import ToolRegistry
from toolfleet_registry.system import machine_clock
from toolfleet_registry.system.loggers import get_logger

_log = get_logger(__name__)

OpenRegistry: TypeAlias = Callable[[], AbstractAsyncContextManager[ToolRegistry]]

_EVERY_SECONDS = 1.0
_AWAY_SECONDS = 60.0  # for a server to be restarted; after that a follower should know
_AT_ONCE = 1000


class HeldRegistry:
    """The registry that the settings name, opened on first use, once for one event loop. Its creator closes it.

    A store reconnects by itself after its server was away.
    """

    def __init__(self, cache: ManifestCache, settings: Settings) -> None:
        self._open = functools.partial(open_store, settings)
        self._registrar = Registrar(cache, self._open)
        self._opening = asyncio.Lock()
        self._registry: ToolRegistry | None = None

    @asynccontextmanager
    async def registry(self) -> AsyncGenerator[ToolRegistry]:
        """Yield the registry. Raises as `Registrar.check`, which verifies each time that it is the fleet's."""
        async with self._opening:
            if self._registry is None:
                self._registry = await asked(self._open)
        await self._registrar.check(self._registry)
        yield self._registry

    async def aclose(self) -> None:
        """Close its connections."""
        if self._registry is not None:
            await asyncio.to_thread(self._registry.close)


@asynccontextmanager
async def held_registry(settings: Settings) -> AsyncGenerator[HeldRegistry]:
    """Hold the registry open, with a connection of its own to the fleet's Redis, for a program that is no agent."""
    async with settings.redis_client() as redis:
        held = HeldRegistry(
            ManifestCache(redis, ttl_seconds=settings.manifest_ttl_seconds, keys=settings.keys), settings
        )
        try:
            yield held
        finally:
            await held.aclose()


class RegistryEvents:
    """The events after one, in order, each once: `async for event in …`.

    `after` is the id of the last event that was returned, for following on later, in another process too. It starts as
    the given value: '' for all kept events, `None` for those from the first question on. A follower that is cancelled
    while waiting, or gets one of its errors, may go on with it. Raises `RegistryEventsLost` once if events are gone
    that were not read, and goes on with the next ones; `FleetUnavailable` when the registry has been away for 60 s; and
    `ValueError` if `after` is no id. Each question has its deadline; waiting for an event has none. `open_registry` is
    entered for each.
    """

    def __init__(self, open_registry: OpenRegistry, after: str | None = None) -> None:
        rules.read_event_id(after or "")
        self.after = after
        self._open = open_registry
        self._read_until = after
        self._ready = deque[RegistryEvent]()
        self._away_since: float | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RegistryEvent:
        while not self._ready:
            if not await self._read():
                await asyncio.sleep(_EVERY_SECONDS)
        event = self._ready.popleft()
        self.after = event.id
        return event

    async def _read(self) -> bool:
        """Ask once; returns whether there was something."""
        try:
            async with self._open() as registry:
                found = await asked(lambda: events_after(registry, self._read_until))
        except FleetUnavailable as exc:
            self._note_away(exc)
            return False
        self._away_since = None
        before, self._read_until = self._read_until, found.until
        if self.after is None:
            self.after = found.until
        self._ready.extend(found.events)
        if found.are_lost:
            raise RegistryEventsLost(before or "")
        return bool(found.events)

    def _note_away(self, exc: FleetUnavailable) -> None:
        now = machine_clock.monotonic()
        if self._away_since is None:
            self._away_since = now
            _log.warning("registry_not_followed", error=str(exc))
        elif now - self._away_since > _AWAY_SECONDS:
            self._away_since = None
            raise exc


@dataclass(frozen=True, slots=True)
class EventsAfter:
    """The events after an event, up to the one with the id `until`. `are_lost`: events in between are gone."""

    events: list[RegistryEvent]
    until: str
    are_lost: bool = False


def events_after(registry: ToolRegistry, after: str | None) -> EventsAfter:
    """Ask the registry for at most 1,000 events after one; '': after none, `None`: after the last one that there is.

    Raises `ValueError` if `after` is no id, and what the registry raises.
    """
    after = rules.event_id(*rules.read_event_id(after)) if after else after
    last = registry.last_event()  # first: nearly always it says that there is nothing
    if after is None or last <= after:
        return EventsAfter([], last, are_lost=last < (after or ""))
    events = registry.events(after, limit=_AT_ONCE)
    if not events:  # this release can read none of them
        return EventsAfter([], after)
    return EventsAfter(events, events[-1].id, bool(after) and _has_gap(registry, after, events[0]))


def _has_gap(registry: ToolRegistry, after: str, first: RegistryEvent) -> bool:
    """Return whether events are gone. A gap in the numbers alone may be an event that this release cannot read."""
    (epoch, number), (new_epoch, new_number) = rules.read_event_id(after), rules.read_event_id(first.id)
    if (new_epoch, new_number) == (epoch, number + 1):
        return False
    oldest = registry.events(limit=1)  # none: it is one of those
    return not oldest or oldest[0].id >= first.id
