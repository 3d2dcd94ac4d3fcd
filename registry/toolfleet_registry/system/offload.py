"""Offloads work on much data to a thread, so that the event loop does not wait for it."""

import asyncio
import gc
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


async def aside(work: Callable[[], T], *, is_large: bool) -> T:
    """Do the work in a thread if it is large, here if it is small: a thread takes a tenth of a millisecond."""
    if not is_large:
        return work()
    return await asyncio.to_thread(_without_pauses, work)


def _without_pauses(work: Callable[[], T]) -> T:
    with _uncollected():
        return work()


@contextmanager
def _uncollected() -> Generator[None]:
    """Let the collector rest meanwhile.

    Of hundreds of thousands of new objects, all of which stay, it would look through everything ten times: a third of the
    whole time, in looks that stop all threads for up to 300 ms.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
