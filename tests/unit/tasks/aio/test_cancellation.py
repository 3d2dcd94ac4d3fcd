"""A task that loses a cancellation is ended all the same."""

import asyncio
import contextlib

from support.waiting import PATIENCE_SECONDS
from toolfleet_tasks.aio import end, is_wanted


async def test_a_lost_cancellation_is_repeated() -> None:
    """A task that swallows the first two cancellations ends with the third."""
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        while swallowed < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed += 1
        await asyncio.Event().wait()

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await asyncio.wait_for(end([task]), PATIENCE_SECONDS)

    assert (task.cancelled(), swallowed) == (True, 2)


async def test_a_loop_in_a_group_sees_that_it_was_cancelled() -> None:
    """The cancellation is swallowed below, but the loop does not go round again."""
    rounds = 0

    async def loop() -> None:
        nonlocal rounds
        while is_wanted():
            rounds += 1
            with contextlib.suppress(asyncio.CancelledError):  # as `asyncio.wait_for` does on Python 3.11
                await asyncio.Event().wait()

    task = asyncio.create_task(loop())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait_for(task, PATIENCE_SECONDS)

    assert rounds == 1


async def test_there_may_be_nothing_to_end() -> None:
    """No tasks, no wait."""
    await end([])
