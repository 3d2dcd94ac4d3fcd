"""Waits until a call ends or asks something, whichever comes first."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.contracts.inputs.messages import PendingInput
from toolfleet_tasks.aio.closing import Closing
from toolfleet_tasks.ledger.asked import SIGNAL

_CHECK_SECONDS = 5.0  # what was announced may not have been heard


class Asking(Protocol):
    """A call that is followed."""

    async def pending_input(self) -> PendingInput | None:
        """What it asks now; `None` for nothing."""
        ...

    def hearing(self, hear: Callable[[bytes], None]) -> AbstractContextManager[None]:
        """Have `hear` called with what is announced of it."""
        ...


async def next_stop(
    call: Asking, ending: "asyncio.Future[ToolResult]", seconds: float, closing: Closing | None = None
) -> ToolResult | PendingInput | None:
    """How the call ended, by `ending`, or what it asks; `None` for neither in `seconds`, or when `closing` begins."""
    loop = asyncio.get_running_loop()
    woken, until = asyncio.Event(), loop.time() + seconds

    def hear(content: bytes) -> None:
        if content == SIGNAL:
            woken.set()

    def wake(_: object = None) -> None:
        woken.set()

    ending.add_done_callback(wake)
    number = None if closing is None else closing.tell(wake)
    try:
        with call.hearing(hear):
            while not ending.done():
                if (asked := await call.pending_input()) is not None:
                    return asked
                left = until - loop.time()
                if left <= 0 or (closing is not None and closing.has_begun):
                    break
                await _woken(woken, min(left, _CHECK_SECONDS))
    finally:
        ending.remove_done_callback(wake)
        if closing is not None and number is not None:
            closing.forget(number)
    return ending.result() if ending.done() and not ending.cancelled() else None


async def _woken(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
    event.clear()
