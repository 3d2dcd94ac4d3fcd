"""Finds out whether workers wake an agent's core: what a reader of completions waits for goes there, and it would wait for ever.

Workers say so in the notes of their slots (`presence/worker_notes.py`).
"""

import asyncio

from redis.exceptions import ResponseError

from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.time import machine_clock
from toolfleet_tasks.lua.constants import SLOTS_COUNT_SECONDS
from toolfleet_tasks.redis.connection import PipelinedConnection, RedisConnectionLost

WAKES_CORE = " core"
"""In the note of a worker whose news of jobs go to a core."""

_EVERY_SECONDS = 20.0
_PATIENCE_SECONDS = 1.0

log = get_logger(__name__)


class CoreWatch:
    """One agent's, over the `connection` to the Redis of the results. Says it once, in the log."""

    def __init__(self, connection: PipelinedConnection, keys: Keys) -> None:
        self._connection = connection
        self._lanes = [keys.slots(lane) for lane in ("fast", "slow")]
        self._next_at = float("-inf")
        self._is_said = False

    async def check(self) -> None:
        """Check whether there is such a worker now, for a reader that waits in vain: now and then, and not after it was logged."""
        if self._is_said or machine_clock.monotonic() < self._next_at:
            return
        self._next_at = machine_clock.monotonic() + _EVERY_SECONDS
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                workers = await self._workers()
        except (TimeoutError, RedisConnectionLost, ResponseError):  # it is looked again
            return
        if workers and not self._is_said:
            self._is_said = True
            log.warning("completions_go_to_core", workers=workers, setting="TOOLFLEET_CORE_URL")

    async def _workers(self) -> list[str]:
        """The names of live workers that wake a core."""
        now = int((await self._connection.execute("TIME"))[0])
        since = now - SLOTS_COUNT_SECONDS
        found = [await self._connection.execute("ZRANGEBYSCORE", lane, since, "+inf") for lane in self._lanes]
        words = [note.decode(errors="replace").split() for notes in found for note in notes]
        return sorted({note[1] for note in words if WAKES_CORE.strip() in note[2:]})
