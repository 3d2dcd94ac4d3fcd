"""Finds out when a fleet on this machine needs a worker for the slow lane: its settings name no slow module, but one is added."""

import asyncio
import time

from redis.asyncio import Redis

from toolfleet_registry.directory.directory import ModuleDirectory
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.settings import Settings

_POLL_SECONDS = 1.0
_ANSWER_SECONDS = 0.5  # who asks looks after processes meanwhile


class SlowLane:
    """The slow lane of the fleet that the settings name."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._revision = ""
        self._check_at = 0.0

    def is_needed(self) -> bool:
        """Return whether the directory of modules has got a slow one since the last call. Asks once a second at most.

        A Redis that does not answer within half a second is asked again with the next call.
        """
        if time.monotonic() < self._check_at:
            return False
        self._check_at = time.monotonic() + _POLL_SECONDS
        try:
            return asyncio.run(self._check())
        except (FleetUnavailable, TimeoutError):
            return False

    async def _check(self) -> bool:
        client = async_client(str(self._settings.redis_url), master=self._settings.sentinel_master)
        async with asyncio.timeout(_ANSWER_SECONDS), client as redis:
            return await self._has_come(redis)

    async def _has_come(self, redis: Redis) -> bool:
        directory = ModuleDirectory(redis, self._settings)
        revision, _ = await directory.revision()
        if revision == self._revision:
            return False
        entries = (await directory.read()).entries
        self._revision = revision
        return any(entry.slow and not entry.is_removed for entry in entries.values())
