"""Calls back after a time that hardly ever passes: a limit or a deadline of each of thousands of calls in flight.

A timer of the event loop is expensive: it is pushed into a heap, and removed again. These wait together with all that
fall due in the same second, for which the loop has one timer; only those left when that second begins get a timer of
their own.
"""

import asyncio
import weakref
from collections.abc import Callable
from typing import Any

from toolfleet_registry.system.process import this_process


class SharedTimer:
    """One callback that waits. As `asyncio.TimerHandle`, it may be cancelled at any time, also after it has fired."""

    __slots__ = ("_args", "_callback", "_own", "_timers", "when")

    def __init__(
        self, timers: "SharedTimers", when: float, callback: Callable[..., object], args: tuple[Any, ...]
    ) -> None:
        self.when = when
        self._timers = timers
        self._callback = callback
        self._args = args
        self._own: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        """Call back no more. What was to be called may hold the timer: without this the two would wait for the collector."""
        self._callback, self._args = _nothing, ()
        if self._own is None:
            self._timers.forget(self)
        else:
            self._own.cancel()
            self._own = None

    def stand_alone(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have a timer of the loop's. For `SharedTimers`."""
        self._own = loop.call_at(self.when, self._callback, *self._args)
        self._callback, self._args = _nothing, ()


class SharedTimers:
    """The timers of one process on one event loop, all set from its thread. Take them from `shared_timers`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.proxy(loop)  # it is the key under which we are kept
        # By the second in which they fall due, in the order in which they were set. The loop has the timer, and the timer has the loop.
        self._groups = dict[int, tuple[dict[SharedTimer, None], weakref.ref[asyncio.TimerHandle]]]()

    def call_later(self, seconds: float, callback: Callable[..., object], *args: object) -> SharedTimer:
        """Call back after `seconds`."""
        return self.call_at(self._loop.time() + seconds, callback, *args)

    def call_at(self, when: float, callback: Callable[..., object], *args: object) -> SharedTimer:
        """Call back at `when`, by the loop's clock."""
        timer, second = SharedTimer(self, when, callback, args), int(when)
        group = self._groups.get(second)
        if group is not None:
            group[0][timer] = None
        elif second <= self._loop.time():
            timer.stand_alone(self._loop)
        else:
            self._groups[second] = {timer: None}, weakref.ref(self._loop.call_at(second, self._begin, second))
        return timer

    def forget(self, timer: SharedTimer) -> None:
        """Remove a cancelled timer. For `SharedTimer`."""
        second = int(timer.when)
        if (group := self._groups.get(second)) is not None:
            group[0].pop(timer, None)
            if not group[0]:
                if (begins := group[1]()) is not None:
                    begins.cancel()
                del self._groups[second]

    def _begin(self, second: int) -> None:
        timers, _ = self._groups.pop(second)
        for timer in timers:
            timer.stand_alone(self._loop)


class SharedTimeout:
    """Limits a block's time, as `asyncio.timeout` does, but for `with`. Raises `TimeoutError`.

    It is entered and left by one task, once.
    """

    __slots__ = ("_cancelling", "_is_over", "_seconds", "_task", "_timer")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._is_over = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a time limit needs a task")
        self._task, self._cancelling = task, task.cancelling()
        loop = task.get_loop()
        is_over = self._seconds <= 0  # at the first wait, then
        self._timer = loop.call_soon(self._end) if is_over else shared_timers(loop).call_later(self._seconds, self._end)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._timer.cancel()
        if (
            self._is_over
            and self._task.uncancel() <= self._cancelling
            and kind is not None
            and issubclass(kind, asyncio.CancelledError)
        ):
            raise TimeoutError from error

    def _end(self) -> None:
        self._is_over = True
        self._task.cancel()


def _nothing() -> None:
    """Do nothing: the callback of a cancelled timer."""


def shared_timers(loop: asyncio.AbstractEventLoop) -> SharedTimers:
    """Return those that this process has on the loop."""
    kept = this_process().timers
    timers = kept.get(loop)
    if timers is None:
        timers = kept[loop] = SharedTimers(loop)
    return timers
