"""Runs the event loop of a worker's thread, which waits for all of it, with Celery's hub as its guest.

Wherever the hub would wait in its poller, the loop runs instead: until one of the hub's files is ready, its next timer
is due, or something was handed to it.
"""

import asyncio
import contextlib
import selectors
import signal
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from toolfleet_registry.system import machine_clock
from toolfleet_tasks.greenlet_bridge import await_, in_bridge

if TYPE_CHECKING:
    from kombu.asynchronous.hub import Hub

P = ParamSpec("P")
T = TypeVar("T")

_TURNS_PER_POLL = 4  # of the loop, while callbacks are due: most events need two or three until all waits again
_RECENT_SECONDS = 0.01  # since the last look at all files, within which turns do without one
_OVERDUE_SECONDS = 0.001  # until the hub's next turn, for timers that the last one has left
_BLIND_SECONDS = 0.05  # between two looks at a poller that has no file descriptor, as on macOS
_END_SECONDS = 1.0  # for the tasks that outlive their calls


class HubLoop:
    """The loop. `attach` a hub, or `run` it where there is none.

    Where a loop runs already, as in a simulation, it is that one, and whoever uses this must be able to wait there
    (`greenlet_bridge.await_`).
    """

    def __init__(self) -> None:
        self._selector: _WorkerSelector | None = None
        try:
            self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        except RuntimeError:
            self._selector = _WorkerSelector()
            self.loop = asyncio.SelectorEventLoop(self._selector)
        self.is_closed = False
        self._thread_id = threading.get_ident()
        self._hub: Any = None
        self._is_hub_due = False
        self._hub_wait: asyncio.Future[None] | None = None
        self._alarm = _SignalAlarm(self.loop, self.wake, is_set=self._selector is not None)

    @property
    def busy_since(self) -> float | None:
        """When all files were last checked, by `machine_clock.monotonic`; `None` while the thread waits. Thread-safe."""
        return None if self._selector is None else self._selector.busy_since

    @property
    def stalled_seconds(self) -> float:
        """The seconds for which the loop has stood still by now. Thread-safe."""
        busy_since = self.busy_since
        return 0.0 if busy_since is None else machine_clock.monotonic() - busy_since

    @property
    def current_task(self) -> str | None:
        """The name of the task that runs now; `None` between tasks. For any thread to read."""
        task = asyncio.current_task(self.loop)
        return None if task is None else task.get_name()

    def attach(self, hub: "Hub") -> None:
        """Wait in the place of `hub` from now on. Repeat it after every reconnect: the hub may have a new poller then."""
        guest: Any = hub
        if guest is not self._hub:
            self._hub = guest
            guest.call_soon = self._waking(guest.call_soon)
            # One that is entered in a turn is for kombu to see: a repeated timer whose time is not quite up enters
            # itself again and again, and would keep a clock that only moves while all wait from moving.
            guest.timer.enter_at = self._waking(guest.timer.enter_at, in_turn=False)
        if not isinstance(guest.poller, GuestPoller):
            guest.poller = GuestPoller(guest.poller, self)
        guest.add_reader(self._alarm.fileno(), _nothing)  # a hub without files does not poll

    def wait(self, seconds: float) -> bool:
        """Run the loop until the hub is due, at least for one turn. False if the loop cannot be run here and now."""
        if self.is_closed or self._hub_wait is not None or (self.loop.is_running() and not in_bridge()):
            return False  # code of the loop itself polls the hub
        self._hub_wait = self.loop.create_future()
        if self._is_hub_due:
            seconds = 0
        elif self._is_timer_overdue():
            seconds = min(seconds, _OVERDUE_SECONDS)
        timer = self.loop.call_later(seconds, self.wake)
        try:
            self._run_until(self._hub_wait)
        finally:
            timer.cancel()
            self._is_hub_due, self._hub_wait = False, None
        return True

    def wake(self) -> None:
        """Have the hub run now, or not wait when it is about to. For the loop's own thread."""
        self._is_hub_due = True
        if self._hub_wait is not None and not self._hub_wait.done():
            self._hub_wait.set_result(None)

    def _is_timer_overdue(self) -> bool:
        """Whether kombu has left a timer for the next turn: it fires ten in one, and then it would wait for a second."""
        queue: Any = None if self._hub is None else self._hub.timer._queue  # noqa: SLF001 - its `queue` is a copy
        return bool(queue) and queue[0][0] <= machine_clock.monotonic()

    def _run_until(self, done: "asyncio.Future[None]") -> None:
        """Return when that is done, also where other code stops the loop meanwhile."""
        if in_bridge():
            await_(done)
            return
        done.add_done_callback(self._stop)
        while not done.done():
            self.loop.run_forever()

    def _stop(self, _: object) -> None:
        self.loop.stop()

    def run(self, awaitable: Awaitable[object]) -> None:
        """Return when `awaitable` is done, and raise what it raises; the hub does not run meanwhile."""
        if in_bridge():
            await_(awaitable)
        else:
            self.loop.run_until_complete(awaitable)

    def close(self) -> None:
        """End what still runs on the loop, within a bounded time, and close it. One that is not ours goes on."""
        if self._hub is not None:
            self._hub.remove_reader(self._alarm.fileno())
            del self._hub.call_soon, self._hub.timer.enter_at
            self._hub = None
        if self._selector is not None:
            self.run(_end_all())
        self._alarm.close()
        if self._selector is not None:
            self.loop.close()
        self.is_closed = True

    def _waking(self, hand_over: Callable[P, T], *, in_turn: bool = True) -> Callable[P, T]:
        """Wrap a method of the hub's so that it wakes the hub: also out of the hub's own turn, or only while it waits."""

        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            result = hand_over(*args, **kwargs)
            is_here = threading.get_ident() == self._thread_id  # for other threads the hub has a file in its poller
            if is_here and (in_turn or self._hub_wait is not None):
                self.wake()
            return result

        return call


class GuestPoller:
    """A wrapper of the hub's poller, of which the loop watches the file descriptor: that is ready when a file in it is."""

    def __init__(self, poller: Any, host: HubLoop) -> None:
        self._poller = poller
        self._host = host
        epoll = getattr(poller, "_epoll", None)
        self._descriptor: int | None = None if epoll is None else epoll.fileno()
        self._is_watched = False

    def poll(self, timeout: float) -> Any:
        """Wait, and return the events of the poller."""
        if self._descriptor is None:
            timeout = min(timeout, _BLIND_SECONDS)
        elif not (self._is_watched or self._host.is_closed):
            self._host.loop.add_reader(self._descriptor, self._on_ready)
            self._is_watched = True
        return self._poller.poll(0 if self._host.wait(timeout) else timeout)

    def close(self) -> None:
        """Close the poller. The loop must have forgotten its descriptor by then, which another file may get."""
        self._unwatch()
        self._descriptor = None
        self._poller.close()

    def _on_ready(self) -> None:
        self._unwatch()  # it stays ready until the hub polls, which may be long after: the loop would spin
        self._host.wake()

    def _unwatch(self) -> None:
        if self._is_watched and self._descriptor is not None:
            self._is_watched = False
            self._host.loop.remove_reader(self._descriptor)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._poller, name)


class _SignalAlarm:
    """Makes a signal end the hub's wait: its handler sets a flag, which the hub would only see after the next timer."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_signal: Callable[[], object], *, is_set: bool) -> None:
        self._loop, self._on_signal = loop, on_signal
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.setblocking(False)
        loop.add_reader(self._reader, self._ring)
        self._before: int | None = None
        if is_set:
            with contextlib.suppress(ValueError):  # a worker embedded in a thread gets no signals
                self._before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)

    def fileno(self) -> int:
        """Return the descriptor of a file that is never ready to be read."""
        return self._writer.fileno()

    def close(self) -> None:
        if self._before is not None:
            signal.set_wakeup_fd(self._before)
        self._loop.remove_reader(self._reader)
        self._reader.close()
        self._writer.close()

    def _ring(self) -> None:
        self._reader.recv(4096)
        self._on_signal()


class _WorkerSelector(selectors.DefaultSelector):
    """A selector that tells since when code runs, and that checks its files only in some turns while callbacks are due."""

    def __init__(self) -> None:
        super().__init__()
        self.busy_since: float | None = None
        self._turns = _TURNS_PER_POLL

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # asyncio asks with 0 when callbacks or timers are due.
        if timeout == 0 and self._turns < _TURNS_PER_POLL and self._is_recent():
            self._turns += 1
            return []
        self._turns = 1
        if timeout != 0:
            self.busy_since = None
        try:
            return super().select(timeout)
        finally:
            self.busy_since = machine_clock.monotonic()

    def close(self) -> None:
        super().close()
        self.busy_since = None

    def _is_recent(self) -> bool:
        """Whether no callback has taken long since: if one has, files come before the timers that fell due meanwhile."""
        return self.busy_since is not None and machine_clock.monotonic() - self.busy_since < _RECENT_SECONDS


async def _end_all() -> None:
    leftovers = asyncio.all_tasks() - {asyncio.current_task()}
    for task in leftovers:
        task.cancel()
    # Waited for, not awaited: what swallows its cancellation does not hold up the worker's end.
    await asyncio.wait(
        {*leftovers, asyncio.create_task(asyncio.get_running_loop().shutdown_asyncgens())}, timeout=_END_SECONDS
    )


def _nothing() -> None:
    """Do nothing: only the file matters."""
