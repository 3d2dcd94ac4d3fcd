"""Cancels tasks on Python 3.11, where a cancellation can get lost.

`asyncio.wait_for`, with which redis-py waits, drops one that comes just when its answer does; a task group drops one
that comes just when one of its tasks fails.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

_AGAIN_SECONDS = 0.5  # what cleans up needs less


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks until all of them have ended."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_AGAIN_SECONDS)


def is_wanted() -> bool:
    """Return whether the running task is not cancelled: for loops in a task group, which cancels only once."""
    task = asyncio.current_task()
    return task is None or not task.cancelling()
