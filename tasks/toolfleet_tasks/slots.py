"""How many calls the workers of a lane run at once: each notes its own, so that agents know what a caller's share is.

The notes are at the Redis of the results, whatever the broker is. Without them agents take a worker's setting for it.
"""

import asyncio
import contextlib
import os
import socket

import structlog
from redis.exceptions import RedisError

from toolfleet_registry.redis_servers import async_client
from toolfleet_registry.settings import Settings
from toolfleet_tasks.overload_scripts import SLOTS, SLOTS_COUNT_SECONDS

_BEAT_SECONDS = 5.0
_NOTE = f"{SLOTS} for _, key in ipairs(KEYS) do slots_note(key, ARGV[1], tonumber(ARGV[2])) end"

log = structlog.get_logger(__name__)


class Slots:
    """One worker's note, in its lane, or in both if it serves all. Without `redis_url` there is nothing to note."""

    def __init__(self, settings: Settings, *, count: int) -> None:
        self._settings = settings
        lanes = ("fast", "slow") if settings.lane == "all" else (settings.lane,)
        self._names = [settings.keys.slots(lane) for lane in lanes]
        self._note = f"{count} {socket.gethostname()}:{os.getpid()}"

    async def keep(self) -> None:
        """Note it now, and again and again until cancelled. Raises nothing while Redis is away."""
        while self._settings.redis_url is not None:
            try:
                await self.note()
            except (RedisError, OSError) as exc:
                log.warning("slots_not_noted", error=str(exc))
            await asyncio.sleep(_BEAT_SECONDS)

    async def note(self) -> None:
        """Note it once. Raises redis-py's errors."""
        url, master = str(self._settings.redis_url), self._settings.sentinel_master
        async with async_client(url, master=master) as redis:
            await redis.eval(_NOTE, len(self._names), *self._names, self._note, str(SLOTS_COUNT_SECONDS))

    async def leave(self) -> None:
        """The worker ends, and its slots with it. Raises nothing."""
        if self._settings.redis_url is None:
            return
        url, master = self._settings.redis_url, self._settings.sentinel_master
        with contextlib.suppress(RedisError, OSError):  # the note counts for some seconds only
            async with async_client(url, master=master, timeout_seconds=1) as redis, redis.pipeline() as commands:
                for name in self._names:
                    commands.zrem(name, self._note)
                await commands.execute()
