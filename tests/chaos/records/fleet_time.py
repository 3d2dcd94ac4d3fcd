"""What the fleet's clock showed during a run, by the machine's: journals have the machine's time, and jobs the fleet's."""

import asyncio
import bisect
import contextlib
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.system import fleet_clock
from toolfleet_registry.system.fleet_clock import KEPT_SECONDS, RETURN_RATE, Reading, SlewedClock
from toolfleet_tasks import clock

ROUNDING_SECONDS = 0.05
"""By so much two processes' clocks may differ whose Redis nobody sets: readings have their ways, and times are rounded."""

_POLL_SECONDS = 0.2
_TIMEOUT_SECONDS = 1.0
_BRIDGED = re.compile(r"redis_clock_stepped.*?\bdoubt\W+([\d.]+)")


@dataclass(frozen=True)
class FleetTime:
    """`leads`: by how many seconds the fleet's clock was ahead of the machine's, by when; none where Redis's clock was not set.

    Two processes' clocks differ by at most `allowance` seconds.
    """

    allowance: float = ROUNDING_SECONDS
    leads: Sequence[tuple[float, float]] = ()

    def at(self, moment: float) -> float:
        """What the fleet's clock showed at a moment of the machine's."""
        if not self.leads:
            return moment
        place = bisect.bisect(self.leads, (moment,))
        return moment + self.leads[min(place, len(self.leads) - 1)][1]


class FleetWatch:
    """A clock like that of any process, which follows the run's Redis and never writes there."""

    def __init__(self, redis_url: str) -> None:
        self._url = redis_url
        self._clock = SlewedClock(monotonic=fleet_clock.suspend_aware, wall=time.time)
        self._leads: list[tuple[float, float]] = []

    async def follow(self) -> None:
        """Look until cancelled; while Redis is away the clock goes on, as all do."""
        while True:
            async with Redis.from_url(
                self._url, socket_timeout=_TIMEOUT_SECONDS, socket_connect_timeout=_TIMEOUT_SECONDS
            ) as redis:
                with contextlib.suppress(RedisError, OSError):
                    await self._look(redis)
            self._leads.append((time.time(), -self._clock.wall_lead))
            await asyncio.sleep(_POLL_SECONDS)

    def seen(self, logs: Iterable[Path]) -> FleetTime:
        """What it was, with what the processes that bridged steps of Redis's clock have said in these logs.

        A bridge moves the fleet's time by at most the doubt of the reading that it was made with; then clocks follow, each at
        its own pace. And the fleet's time comes back to Redis's while they go by readings of so many seconds ago.
        """
        doubts = [float(doubt) for log in logs for doubt in _BRIDGED.findall(log.read_text(errors="replace"))]
        if not doubts:
            return FleetTime()
        return FleetTime(ROUNDING_SECONDS + RETURN_RATE * KEPT_SECONDS + sum(doubts), tuple(self._leads))

    async def _look(self, redis: Redis) -> None:
        keys, asked_at = Keys(), self._clock.monotonic()
        run: Any = redis.eval(clock.READ.text, 2, keys.clock, keys.clock_notes, "", "")
        server, fleet, reached = (int(each) / 1e6 for each in (await run)[:3])
        self._clock.hear(Reading(server, fleet, asked_at, self._clock.monotonic()), reached)
