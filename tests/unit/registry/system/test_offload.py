"""Work on much data, beside the event loop."""

import asyncio
import sys
from functools import partial
from threading import Event

from toolfleet_registry.system.offload import aside


async def test_threads_take_turns_more_often_while_any_work_is_aside() -> None:
    """Of two pieces of work the last one that ends has Python switch between threads as before."""
    usual = sys.getswitchinterval()
    first, second = Event(), Event()
    works = [asyncio.ensure_future(aside(partial(_waited, one), is_large=True)) for one in (first, second)]
    while sys.getswitchinterval() >= usual:  # noqa: ASYNC110 - until a thread has begun
        await asyncio.sleep(0)
    first.set()
    during = await works[0]
    second.set()
    await works[1]

    assert during < usual
    assert sys.getswitchinterval() == usual


async def test_work_that_fails_leaves_no_short_turns() -> None:
    """Its error comes to whoever waits for it."""
    usual = sys.getswitchinterval()

    error = (await asyncio.gather(aside(lambda: 1 // 0, is_large=True), return_exceptions=True))[0]

    assert isinstance(error, ZeroDivisionError)
    assert sys.getswitchinterval() == usual


def _waited(event: Event) -> float:
    event.wait()
    return sys.getswitchinterval()
