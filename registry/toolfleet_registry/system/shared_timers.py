"""Calls back after a time that hardly ever passes: a limit or a deadline of each of thousands of calls in flight.

A timer of the event loop is expensive: it is pushed into a heap, and removed again. These wait together with all that
fall due in the same second, for which the loop has one timer; only those left when that second begins get a timer of
their own. A second keeps its timer when none is left in it: the next call is likely to need it.
"""

import asyncio
import weakref
from collections.abc import Callable
from typing import Any

from toolfleet_registry.system.process import this_process

_MOST_SECONDS = 256  # that may be kept with none left in them

_Group = dict["SharedTimer", None]  # in the order in which they were set


class SharedTimer:
    """One callback that waits. As `asyncio.TimerHandle`, it may be cancelled at any time, also after it has fired."""

    __slots__ = ("_args", "_callback", "_group", "_own", "when")

    def __init__(
        self, timers: "SharedTimers", when: float, callback: Callable[..., object], args: tuple[Any, ...]
    ) -> None:
        self.when = when
        self._callback = callback
        self._args = args
        self._own: asyncio.TimerHandle | None = None
        group = timers.groups.get(int(when))
        self._group = timers.new_group(int(when)) if group is None else group
        if self._group is None:
            self.stand_alone(timers.loop)
        else:
            self._group[self] = None

    def cancel(self) -> None:
        """Call back no more. What was to be called may hold the timer: without this the two would wait for the collector."""
        self._callback, self._args = _nothing, ()
        if self._own is not None:
            self._own.cancel()
            self._own = None
        elif self._group is not None:
            self._group.pop(self, None)

    def stand_alone(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have a timer of the loop's. For `SharedTimers`."""
        self._own = loop.call_at(self.when, self._callback, *self._args)
        self._callback, self._args, self._group = _nothing, (), None


class SharedTimers:
    """The timers of one process on one event loop, all set from its thread. Take them from `shared_timers`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = weakref.proxy(loop)  # it is the key under which we are kept
        self.groups: dict[int, _Group] = {}
        """The timers of each second in which some fall due, in whole seconds of the loop's clock."""
        # The loop has the timer, and the timer has the loop.
        self._begins: dict[int, weakref.ref[asyncio.TimerHandle]] = {}
        self._most = _MOST_SECONDS

    def call_later(self, seconds: float, callback: Callable[..., object], *args: object) -> SharedTimer:
        """Call back after `seconds`."""
        return SharedTimer(self, self.loop.time() + seconds, callback, args)

    def call_at(self, when: float, callback: Callable[..., object], *args: object) -> SharedTimer:
        """Call back at `when`, by the loop's clock."""
        return SharedTimer(self, when, callback, args)

    def new_group(self, second: int) -> _Group | None:
        """Start the group of a second, or return `None` if that second has begun. For `SharedTimer`."""
        if second <= self.loop.time():
            return None
        if len(self.groups) >= self._most:
            self._forget_empty()
        self._begins[second] = weakref.ref(self.loop.call_at(second, self._begin, second))
        group = self.groups[second] = {}
        return group

    def _forget_empty(self) -> None:
        for second in [second for second, group in self.groups.items() if not group]:
            del self.groups[second]
            if (timer := self._begins.pop(second)()) is not None:
                timer.cancel()
        self._most = max(_MOST_SECONDS, 2 * len(self.groups))

    def _begin(self, second: int) -> None:
        del self._begins[second]
        for timer in self.groups.pop(second):
            timer.stand_alone(self.loop)


class SharedTimeout(SharedTimer):
    """Limits a block's time, as `asyncio.timeout` does, but for `with`. Raises `TimeoutError`.

    It is entered and left by one task, once.
    """

    __slots__ = ("_cancelling", "_is_over", "_seconds", "_task")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._is_over = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a time limit needs a task")
        self._task, self._cancelling = task, task.cancelling()
        loop = task.get_loop()
        super().__init__(shared_timers(loop), loop.time() + self._seconds, self._end, ())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.cancel()
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
    timers = kept.get(weakref.ref(loop))
    if timers is None:
        timers = kept[weakref.ref(loop, lambda key: kept.pop(key, None))] = SharedTimers(loop)
    return timers
