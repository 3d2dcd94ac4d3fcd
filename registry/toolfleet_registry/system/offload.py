"""Offloads work on much data to a thread, so that the event loop does not wait for it."""

import asyncio
import gc
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Lock
from typing import TypeVar

T = TypeVar("T")

# For which a thread may keep Python from the event loop, which takes its turn some twenty times for a call. While a manifest of 10,000
# tools was read, twenty turns took 100 to 150 ms with Python's usual 5 ms, and 35 ms with this; the reading took no longer.
_TURN_SECONDS = 0.0002


async def aside(work: Callable[[], T], *, is_large: bool) -> T:
    """Do the work in a thread if it is large, here if it is small: a thread takes a tenth of a millisecond."""
    if not is_large:
        return work()
    return await asyncio.to_thread(_without_pauses, work)


def _without_pauses(work: Callable[[], T]) -> T:
    with _uncollected(), _short_turns:
        return work()


class _ShortTurns:
    """Has threads take turns more often while any work is aside."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._works = 0
        self._usual = 0.0

    def __enter__(self) -> None:
        with self._lock:
            self._works += 1
            if self._works == 1:
                self._usual = sys.getswitchinterval()
                sys.setswitchinterval(min(self._usual, _TURN_SECONDS))

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._works -= 1
            if not self._works:
                sys.setswitchinterval(self._usual)


_short_turns = _ShortTurns()


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
