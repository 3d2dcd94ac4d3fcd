"""What this worker knows of the modules' tools: the permission that each asks for, from the manifests in Redis."""

import asyncio
import time
from collections.abc import Callable
from contextvars import Context

import structlog
from redis.asyncio import Redis

from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.manifests import ManifestCache
from toolfleet_registry.redis_servers import async_client
from toolfleet_registry.settings import Settings

log = structlog.get_logger(__name__)

_OLD_SECONDS = 60.0  # reading 500 tools takes the loop some 10 ms; a denial is never decided on anything that old
_PAUSE_SECONDS = 1.0  # between two looks, however many calls ask for something that is not there
_LONG_PAUSE_SECONDS = 10.0  # the same, when Redis did not answer
_PATIENCE_SECONDS = 1.0  # a look takes a millisecond; no call waits for more than one that fails


class KnownTools:
    """Asking costs a dict lookup; looking at Redis happens aside, on the loop that asks, from the first question on.

    What was known once stays known: a module whose manifest has expired, or a Redis that was emptied, opens nothing.
    """

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._required: dict[str, str] = {}
        self._old_at = clock()
        self._next_look_at = clock()
        self._look: asyncio.Task[None] | None = None
        self._patient_until = 0.0
        self._redis: Redis | None = None

    def required(self, tool_name: str) -> str | None:
        """The permission that the tool asks for; `None` if nothing is known of it."""
        if self._clock() >= self._old_at:
            self._begin_to_look()
        return self._required.get(tool_name)

    async def refresh(self) -> None:
        """Return when everything is known as it was a second ago, or Redis has not said so within a second."""
        self._begin_to_look()
        patience = self._patient_until - self._clock()
        if self._look is not None and patience > 0:
            await asyncio.wait({self._look}, timeout=patience)  # neither a time-out nor our end ends the look

    async def aclose(self) -> None:
        """End a look that is under way, and the connection."""
        if self._look is not None:
            self._look.cancel()
            await asyncio.wait({self._look})
        if self._redis is not None:
            await self._redis.aclose()

    def _begin_to_look(self) -> None:
        now = self._clock()
        if now < self._next_look_at or (self._look is not None and not self._look.done()):
            return
        self._next_look_at = now + _PAUSE_SECONDS
        self._patient_until = now + _PATIENCE_SECONDS
        # In a context of its own: what it logs is not about the call that happened to ask.
        self._look = asyncio.create_task(self._load(), name="toolfleet-known-tools", context=Context())

    async def _load(self) -> None:
        settings = self._settings
        if self._redis is None:
            self._redis = async_client(str(settings.redis_url), master=settings.sentinel_master)
        cache = ManifestCache(self._redis, ttl_seconds=settings.manifest_ttl_seconds, keys=settings.keys)
        try:
            found = await cache.load(settings.module_services)
        except FleetUnavailable as exc:
            log.warning("manifests_not_read", error=str(exc))
            self._next_look_at = self._clock() + _LONG_PAUSE_SECONDS
            return
        self._old_at = self._clock() + _OLD_SECONDS
        tools = [tool for cached in found.values() for tool in cached.manifest.tools]
        kept = {name: required for name, required in self._required.items() if name.partition(".")[0] not in found}
        self._required = kept | {tool.name: tool.required_permission for tool in tools}
