"""Keeps a worker's fleet clock in step each second, and says whether its own machine's clock is too far off to take calls."""

import asyncio
from collections.abc import Callable, Sequence

from redis.exceptions import RedisError

from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.process import this_process
from toolfleet_tasks.clock.synchronisation import Timekeeper

_POLL_SECONDS = 1.0  # within which others may take a step of Redis's clock for the time


class ClockWatch:
    """One worker's. `on_reading` is told after each look whether the machine's clock is too far off."""

    def __init__(self, settings: Settings, *, on_reading: Callable[[bool], object]) -> None:
        self._settings = settings
        self._on_reading = on_reading
        self._timekeeper = Timekeeper(settings, worker=this_process().name)

    async def keep(self) -> None:
        """Look at once, and again and again until cancelled. Raises nothing while Redis is away: the clock goes on."""
        if self._settings.redis_url is None:
            return
        async with async_client(self._settings.redis_url, master=self._settings.sentinel_master) as redis:
            while True:
                try:
                    await self._timekeeper.read(redis)
                except (RedisError, OSError):  # others say so
                    pass
                else:
                    lead, others = self._timekeeper.clock.wall_lead, self._timekeeper.others
                    self._on_reading(is_too_far(lead, others, limit=self._settings.max_clock_offset_seconds))
                await asyncio.sleep(_POLL_SECONDS)


def is_too_far(lead: float, others: Sequence[float], *, limit: float) -> bool:
    """Whether a machine that is ahead of the fleet's time by `lead` seconds is wrong: if most others are as far off, Redis is."""
    alike = sum(abs(other - lead) <= limit / 2 for other in others)
    return abs(lead) > limit and 2 * alike <= len(others)
