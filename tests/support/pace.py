"""A pace for what a test does again and again: calls of a load, cuts of a connection, ticks of a loop."""

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator


async def at_rate(per_second: float, times: int | None = None) -> AsyncGenerator[int]:
    """Count from 0, for ever or so many times, and so often a second at most: the time that a slow step has lost is not made up for."""
    due = time.monotonic()
    for number in itertools.count() if times is None else range(times):
        await asyncio.sleep(max(0, due - time.monotonic()))
        yield number
        due = max(due + 1 / per_second, time.monotonic())


async def note_gaps(gaps: list[float]) -> None:
    """Note how many seconds the running loop takes from one tick to the next, of a hundred a second, until this is cancelled."""
    before = time.monotonic()
    async for _ in at_rate(100):
        now = time.monotonic()
        gaps.append(now - before)
        before = now
