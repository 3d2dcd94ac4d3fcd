"""Bounds how many ends an agent asks its ledger for at once: thousands of deadlines may pass in one tick of its loop."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

_MOST_AT_ONCE = 256  # answered within a tenth of a second where the agent's loop is busy with nothing else
_TICKS = 5  # looks at whether Redis was heard
_LONGEST_SECONDS = 10.0  # for one question, however much is heard meanwhile


class LedgerWindow:
    """Lets so many ask at once. `heard_at`: when Redis was heard last over the line on which they ask, by the loop's clock.

    What is measured is Redis's silence, and neither the waiting for others' questions nor that for a loop that is busy.
    """

    def __init__(self, heard_at: Callable[[], float]) -> None:
        self._heard_at = heard_at
        self._places = asyncio.Semaphore(_MOST_AT_ONCE)
        self._silent_at = float("-inf")

    @asynccontextmanager
    async def place(self, seconds: float) -> AsyncGenerator[None]:
        """Ask the ledger in this block. Raises `TimeoutError` when Redis was silent for `seconds`, here or for others meanwhile."""
        clock = asyncio.get_running_loop().time
        came_at = clock()
        async with self._places:
            if self._silent_at >= came_at:  # else each batch would find out for itself, long after the deadline
                raise TimeoutError
            try:
                async with asyncio.timeout(None) as limit:
                    watch = _Watch(limit, self._heard_at, seconds)
                    try:
                        yield
                    finally:
                        watch.timer.cancel()
            except TimeoutError:
                self._silent_at = clock()
                raise


class _Watch:
    """Ends a block when Redis is silent for so long, by as many ticks of the loop as come in time.

    A tick that is late says that the loop was busy: then nothing was sent or heard, and that is no silence of Redis's.
    """

    def __init__(self, limit: asyncio.Timeout, heard_at: Callable[[], float], seconds: float) -> None:
        self._limit = limit
        self._heard_at = heard_at
        self._interval = seconds / _TICKS
        self._silent_ticks = 0
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + max(_LONGEST_SECONDS, seconds)
        self._arm()

    def _arm(self) -> None:
        self._since = self._loop.time()
        self.timer = self._loop.call_later(self._interval, self._check)

    def _check(self) -> None:
        now = self._loop.time()
        if self._heard_at() >= self._since:
            self._silent_ticks = 0
        elif now - self._since < 2 * self._interval:
            self._silent_ticks += 1
        if self._silent_ticks >= _TICKS or now >= self._until:
            self._limit.reschedule(now)
        else:
            self._arm()
