"""Notes how many calls each worker of a lane runs at once, so that agents know a caller's limit, and its version.

The note of a worker that wakes a core has ` core` appended, and of one that signs its reports about calls ` signs`. The
notes are at the Redis of the results, with any broker. Without them agents use the setting of workers.
"""

import asyncio
import contextlib

from redis.exceptions import RedisError

from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.system.process import this_process
from toolfleet_tasks.lua.constants import SLOTS_COUNT_SECONDS
from toolfleet_tasks.lua.files import script
from toolfleet_tasks.presence.fleet_versions import mixed_versions, note_of, read_notes
from toolfleet_tasks.results.verifier import SIGNS
from toolfleet_tasks.wakeups.core_watch import WAKES_CORE

_BEAT_SECONDS = 5.0
_NOTE = script("presence/note_slots")

log = get_logger(__name__)


class LaneCapacity:
    """One worker's note, in its lane, or in both if it serves all. Without `redis_url` there is nothing to note."""

    def __init__(self, settings: Settings, *, count: int) -> None:
        self._settings = settings
        lanes = ("fast", "slow") if settings.lane == "all" else (settings.lane,)
        self._names = [settings.keys.slots(lane) for lane in lanes]
        core, signs = "" if settings.core_url is None else WAKES_CORE, "" if settings.signing_key is None else SIGNS
        self._note = note_of(count, this_process().name) + core + signs
        self._mixed = ""  # as it was last logged

    async def keep(self) -> None:
        """Note it now, and again and again until cancelled. Raises nothing while Redis is away."""
        while self._settings.redis_url is not None:
            try:
                await self.note()
            except (RedisError, OSError) as exc:
                log.warning("slots_not_noted", error=str(exc))
            await asyncio.sleep(_BEAT_SECONDS)

    async def note(self) -> None:
        """Note it once, and log it when workers of other versions have come to its lanes, or gone. Raises redis-py's errors."""
        url, master = str(self._settings.redis_url), self._settings.sentinel_master
        async with async_client(url, master=master) as redis:
            parameters = _NOTE.parameters_of(self._names, note=self._note, seconds=SLOTS_COUNT_SECONDS)
            notes = await redis.eval(_NOTE.text, *parameters)
        mixed = mixed_versions(read_notes(notes))
        if mixed != self._mixed:
            log.warning("workers_of_mixed_versions", workers=mixed or "no more")
            self._mixed = mixed

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
