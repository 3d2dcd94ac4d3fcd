"""An event loop that never waits: when nothing goes on, in Redis neither, it moves the clock to its next timer."""

import asyncio
import contextvars
import heapq
import selectors
from collections.abc import Callable
from random import Random
from typing import Any

from bed import clock, settling, trace
from bed.site import OwnedFuture, here, owned_task
from toolfleet_tasks.greenlet_bridge import Bridge

_MARGIN_SECONDS = 0.25
"""How long before a timer Redis may end its own waits first: the client of such a wait has a limit that is a little longer."""
_STUCK_SECONDS = 20.0


class _Timer(asyncio.TimerHandle):
    number = 0

    def __lt__(self, other: Any) -> bool:
        return (self._when, self.number) < (other._when, other.number)  # type: ignore[attr-defined] # asyncio's own


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time is `clock`'s.

    Args:
        chance: Decides in which order sockets that are ready at once are read, and how many of them now. `None`: all, in
            the order in which they were opened.

    """

    def __init__(self, chance: Random | None = None) -> None:
        self.chance = chance
        self.jumps = self._timers = 0
        super().__init__(_Jumping(self))
        self.set_task_factory(owned_task)

    def call_at(  # type: ignore[override] # its types are of 3.11 on
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Implements asyncio's. It would leave it to the other timers which of two that are due at once comes first."""
        timer: Any = _Timer(when, callback, args, self, context)
        self._timers += 1
        timer.number = self._timers
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined] # asyncio's own, as all of its loops have it
        timer._scheduled = True
        return timer  # type: ignore[no-any-return]

    def create_future(self) -> asyncio.Future[Any]:
        """Implements asyncio's."""
        return OwnedFuture(loop=self)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override] # its types are of 3.11 on
        """Implements asyncio's with a greenlet: a thread would go on while others do, and no two runs would be alike."""
        del executor

        async def run() -> Any:
            return await Bridge(lambda: func(*args))

        return self.create_task(run())

    def _asyncgen_firstiter_hook(self, agen: Any) -> None:
        """Implements asyncio's. What a member has begun is not closed at the loop's end: that member is dead by then."""
        if here() is None:
            super()._asyncgen_firstiter_hook(agen)  # type: ignore[misc] # asyncio's own

    def set_exception_handler(self, handler: Any) -> None:
        """Do nothing: a worker would hide the errors of all others."""


class _Jumping(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop
        self._registered = 0
        self._places: dict[int, int] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = super().register(fileobj, events, data)
        self._registered += 1
        self._places[key.fd] = self._registered
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        settling.settle_if_asked()
        events = super().select(0)
        if not events and (timeout is None or timeout > 0):
            events = self._wait(timeout)
        ready = len(events)
        events = self._in_some_order(events)
        if events:
            trace.note(f"{ready} ready, now " + " ".join(f"{self._places[key.fd]}:{mask}" for key, mask in events))
        return events

    def _wait(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            if events := super().select(_STUCK_SECONDS):
                return events
            raise RuntimeError("every task waits for something that will never come")
        self._loop.jumps += 1
        if timeout > 2 * _MARGIN_SECONDS:
            if events := self._jump(timeout - _MARGIN_SECONDS):
                return events
            timeout = _MARGIN_SECONDS
        return self._jump(timeout)

    def _jump(self, seconds: float) -> list[tuple[selectors.SelectorKey, int]]:
        clock.move(seconds)
        settling.settle()
        return super().select(0)

    def _in_some_order(
        self, events: list[tuple[selectors.SelectorKey, int]]
    ) -> list[tuple[selectors.SelectorKey, int]]:
        events.sort(key=lambda event: self._places[event[0].fd])
        chance = self._loop.chance
        if chance is None or len(events) < 2:
            return events
        chance.shuffle(events)
        return events[: chance.randrange(1, len(events) + 1)]  # the others are still ready at the next turn
