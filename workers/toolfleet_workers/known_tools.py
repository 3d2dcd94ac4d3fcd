"""What this worker knows of the modules' tools, and of what operators have decided about them: from Redis, read aside."""

import asyncio
import time
from collections.abc import Callable
from contextvars import Context

import structlog
from redis.asyncio import Redis

from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.manifests import CachedManifest, ManifestCache
from toolfleet_registry.redis_servers import async_client
from toolfleet_registry.settings import Settings
from toolfleet_registry.verdicts import SeenTool, seen_tools

log = structlog.get_logger(__name__)

_CHECK_SECONDS = (
    2.0  # after so long a question asks Redis aside whether anything has changed, which is one small number
)
_OLD_SECONDS = 60.0  # after so long everything is read again, and whoever asks should wait for it
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
        self._modules: dict[str, dict[str, SeenTool]] = {}
        self._read = dict[str, CachedManifest]()
        self._revision: int | None = None
        self._check_at = self._old_at = self._next_look_at = clock()
        self._look: asyncio.Task[None] | None = None
        self._patient_until = 0.0
        self._redis: Redis | None = None
        self._cache: ManifestCache | None = None

    @property
    def is_old(self) -> bool:
        """Whether nobody has looked for some seconds, as in an idle worker: `refresh` before deciding anything on it."""
        return self._clock() >= min(self._check_at + _CHECK_SECONDS, self._old_at)

    def find(self, tool_name: str) -> SeenTool | None:
        """The tool as it is in effect; `None` if nothing is known of it."""
        if self._clock() >= self._check_at:
            self._begin_to_look(reads_all=self._clock() >= self._old_at)
        return self._modules.get(tool_name.partition(".")[0], _NO_TOOLS).get(tool_name)

    def definition(self, tool_name: str) -> ToolDefinition | None:
        """The tool's definition in effect; `None` if nothing is known of it."""
        seen = self.find(tool_name)
        return None if seen is None else seen.definition

    async def refresh(self, *, reads_all: bool = True) -> None:
        """Return when everything is known as it was a second ago, or Redis has not said so within a second.

        Without `reads_all` it is read only if Redis says that it has changed.
        """
        self._begin_to_look(reads_all=reads_all or self._clock() >= self._old_at)
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

    def _begin_to_look(self, *, reads_all: bool) -> None:
        now = self._clock()
        if now < self._next_look_at or (self._look is not None and not self._look.done()):
            return
        self._next_look_at = now + _PAUSE_SECONDS
        self._patient_until = now + _PATIENCE_SECONDS
        # In a context of its own: what it logs is not about the call that happened to ask.
        self._look = asyncio.create_task(
            self._look_at_redis(reads_all=reads_all), name="toolfleet-known-tools", context=Context()
        )

    async def _look_at_redis(self, *, reads_all: bool) -> None:
        settings = self._settings
        if self._redis is None:
            self._redis = async_client(str(settings.redis_url), master=settings.sentinel_master)
        if self._cache is None:
            self._cache = ManifestCache(self._redis, ttl_seconds=settings.manifest_ttl_seconds, keys=settings.keys)
        try:
            revision = await self._cache.revision()  # before reading: what changes meanwhile is seen the next time
            if reads_all or revision != self._revision:
                await self._load(self._cache)
        except FleetUnavailable as exc:
            log.warning("manifests_not_read", error=str(exc))
            self._next_look_at = self._clock() + _LONG_PAUSE_SECONDS
            return
        self._revision = revision
        self._check_at = self._clock() + _CHECK_SECONDS

    async def _load(self, cache: ManifestCache) -> None:
        for module, cached in (await cache.load(self._settings.modules)).items():
            if cached is not self._read.get(module):
                self._read[module] = cached
                tools = seen_tools(cached.manifest, cached.verdicts)
                self._modules[module] = {tool.access.tool_name: tool for tool in tools}
        self._old_at = self._clock() + _OLD_SECONDS


_NO_TOOLS: dict[str, SeenTool] = {}
