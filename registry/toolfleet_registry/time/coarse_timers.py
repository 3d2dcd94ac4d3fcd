"""Calls back after a time that hardly ever passes: a limit or a deadline of each of thousands of calls in flight.

A timer of the event loop is dear: it takes part in a heap, and is thrown out of it again. These are kept by the tick in which
they fall due, so one timer of the loop serves all of a tick. They fire late, by up to a tick.
"""

import asyncio
import weakref
from collections.abc import Callable
from typing import Any

TICK_SECONDS = 1 / 32


class CoarseTimer:
    """One callback that waits. As `asyncio.TimerHandle`, it may be cancelled at any time, also after it has fired."""

    __slots__ = ("_args", "_callback", "_tick")

    def __init__(self, tick: "set[CoarseTimer]", callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._tick = tick
        self._callback = callback
        self._args = args

    def cancel(self) -> None:
        """Call back no more. What was to be called may hold the timer: without this the two would wait for the collector."""
        self._tick.discard(self)
        self._callback, self._args = _nothing, ()

    def fire(self) -> None:
        """Call back. For `CoarseTimers`."""
        callback, args = self._callback, self._args
        self._callback, self._args = _nothing, ()
        callback(*args)


class CoarseTimers:
    """The timers of one event loop, all set from its thread. Take them from `coarse_timers`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.proxy(loop)  # it is the key under which we are kept
        self._ticks = dict[int, set[CoarseTimer]]()

    def call_later(self, seconds: float, callback: Callable[..., object], *args: object) -> CoarseTimer:
        """Call back after `seconds`, or up to a tick later."""
        return self.call_at(self._loop.time() + seconds, callback, *args)

    def call_at(self, when: float, callback: Callable[..., object], *args: object) -> CoarseTimer:
        """Call back at `when` by the loop's clock, or up to a tick later."""
        number = int(when / TICK_SECONDS) + 1
        tick = self._ticks.get(number)
        if tick is None:
            tick = self._ticks[number] = set()
            self._loop.call_at(number * TICK_SECONDS, self._fire, number)
        timer = CoarseTimer(tick, callback, args)
        tick.add(timer)
        return timer

    def _fire(self, number: int) -> None:
        tick = self._ticks.pop(number)
        while tick:  # one of them may cancel others
            timer = tick.pop()
            try:
                timer.fire()
            except Exception as exc:  # noqa: BLE001 - as the loop does with a timer of its own: the others are due all the same
                self._loop.call_exception_handler({"message": "a timer failed", "exception": exc})


class CoarseTimeout:
    """Limits a block's time, as `asyncio.timeout` does: `with`, and up to a tick late. Raises `TimeoutError`.

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
        self._timer = loop.call_soon(self._end) if is_over else coarse_timers(loop).call_later(self._seconds, self._end)

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
    """Stands for a callback that is called no more."""


_timers = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, CoarseTimers]()


def coarse_timers(loop: asyncio.AbstractEventLoop) -> CoarseTimers:
    """The loop's own."""
    timers = _timers.get(loop)
    if timers is None:
        timers = _timers[loop] = CoarseTimers(loop)
    return timers
