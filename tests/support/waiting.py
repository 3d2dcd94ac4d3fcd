"""Waiting for a fact instead of for a time."""

import asyncio
import time
from collections.abc import Awaitable, Callable

PATIENCE_SECONDS = 20
"""How long a test waits for anything: it is over as soon as the fact is there, so a longer one costs only the tests that fail.

What may take longer, such as a whole fleet's start, takes a multiple of it.
"""


async def wait_until(
    condition: Callable[[], object], what: str, *, seconds: float = PATIENCE_SECONDS, step: float = 0.01
) -> None:
    """Return as soon as `condition()` is true; fail with `what` when it is not within `seconds`.

    `step`: how many seconds pass between two looks, where one costs much.
    """
    give_up_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up_at, f"waited {seconds} s in vain: {what}"
        await asyncio.sleep(step)


def wait_for_a_whole_day(*, seconds: float = 30) -> None:
    """Return at once, unless the day ends within so many seconds: then once it has. Daily limits begin anew at midnight, UTC."""
    day = 24 * 60 * 60
    wait_until_sync(lambda: time.time() % day < day - seconds, "it is past midnight", seconds=2 * seconds)


async def wait_until_answered(
    condition: Callable[[], Awaitable[object]], what: str, *, seconds: float = PATIENCE_SECONDS
) -> None:
    """`wait_until` for a condition that must be asked for."""
    give_up_at = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < give_up_at, f"waited {seconds} s in vain: {what}"
        await asyncio.sleep(0.01)


def wait_until_sync(
    condition: Callable[[], object], what: str, *, seconds: float = PATIENCE_SECONDS, step: float = 0.01
) -> None:
    """`wait_until` for tests without an event loop."""
    give_up_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up_at, f"waited {seconds} s in vain: {what}"
        time.sleep(step)


async def wait_until_equal(ask: Callable[[], Awaitable[object]], expected: object, what: str) -> None:
    """`wait_until` the answer to a question is the expected one."""

    async def is_equal() -> bool:
        return await ask() == expected

    await wait_until_answered(is_equal, what)
