"""Runs an asyncio loop in slices, on the thread of Celery's hub: whenever the hub is about to wait.

Each of the two waits for the other's work: asyncio's selector is a file to the hub's poller, and the hub waits no
longer than until asyncio's next timer.
"""

import asyncio
import contextlib
import selectors
import signal
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from toolfleet_registry.system import machine_clock

if TYPE_CHECKING:
    from kombu.asynchronous.hub import Hub

T = TypeVar("T")

_SLICE_SECONDS = 0.02  # callbacks that never run dry must not keep the hub from its messages, acks and signals
_END_SECONDS = 1.0  # for the tasks that outlive their calls


class HubLoop:
    """Owns the loop. `attach` it to a hub, or `run` it by itself where there is none."""

    def __init__(self) -> None:
        self._selector = _SliceSelector()
        self.loop = asyncio.SelectorEventLoop(self._selector)
        self._hub: Hub | None = None
        self._alarm = _SignalAlarm(self.loop)

    @property
    def busy_since(self) -> float | None:
        """The last tick, by `machine_clock.monotonic`; `None` while nothing is due and the thread waits. For any thread to read."""
        return self._selector.busy_since

    @property
    def stalled_seconds(self) -> float:
        """The seconds for which the loop has stood still by now. Thread-safe."""
        busy_since = self.busy_since
        return 0.0 if busy_since is None else machine_clock.monotonic() - busy_since

    @property
    def is_closed(self) -> bool:
        """Whether there will be no more ticks."""
        return self.loop.is_closed()

    @property
    def current_task(self) -> str | None:
        """The name of the task that runs now; `None` between tasks. For any thread to read."""
        task = asyncio.current_task(self.loop)
        return None if task is None else task.get_name()

    def attach(self, hub: "Hub") -> None:
        """Run a slice whenever `hub` polls. Repeat it after every reconnect: the hub may have a new poller then, or not."""
        if not isinstance(hub.poller, PumpedPoller):
            hub.poller = PumpedPoller(hub.poller, self)
        hub.add_reader(self._selector.fileno(), _nothing)
        self._hub = hub

    def poll(self, poller: Any, timeout: float | None) -> Any:
        """Run a slice, then wait with `poller`: not at all if anything ran, as that may be of interest to the hub."""
        delay = self._run_slice()
        if delay is not None:
            timeout = delay if timeout is None else min(timeout, delay)
        return self._selector.rest(poller.poll, timeout)

    def run(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run the loop until `coroutine` ends, without the hub."""
        self.loop.run_until_complete(coroutine)

    def wake(self, *, after: float) -> None:
        """See to it that the hub does not wait longer than `after` seconds from now."""
        self.loop.call_later(after, _nothing)

    def close(self) -> None:
        """End what still runs on the loop, within a bounded time, and close it."""
        if self._hub is not None:
            self._hub.remove_reader(self._selector.fileno())
            self._hub = None
        self.run(_end_all())
        self._alarm.close()
        self.loop.close()

    def _run_slice(self) -> float | None:
        if self.loop.is_running() or self.loop.is_closed():  # code of the loop itself polls the hub; or all is over
            return None
        piece = _Slice(self.loop.stop, machine_clock.monotonic() + _SLICE_SECONDS)
        self._selector.slice = piece
        try:
            self.loop.run_forever()
        finally:
            self._selector.slice = None
        return piece.delay


class PumpedPoller:
    """A wrapper of the hub's poller that runs a slice of the loop before it waits."""

    def __init__(self, poller: Any, hub_loop: HubLoop) -> None:
        self._poller = poller
        self._hub_loop = hub_loop

    def poll(self, timeout: float | None) -> Any:
        """Poll, and return the events of the poller."""
        return self._hub_loop.poll(self._poller, timeout)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._poller, name)


class _SignalAlarm:
    """Makes a signal end the hub's wait: its handler sets a flag, which the hub would only see after the next timer."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.setblocking(False)
        loop.add_reader(self._reader, self._reader.recv, 4096)
        self._before: int | None = None
        with contextlib.suppress(ValueError):  # a worker embedded in a thread gets no signals
            self._before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)

    def close(self) -> None:
        if self._before is not None:
            signal.set_wakeup_fd(self._before)
        self._loop.remove_reader(self._reader)
        self._reader.close()
        self._writer.close()


@dataclass(slots=True)
class _Slice:
    """One run of the loop between two waits of the hub, and for how long the hub may wait after it."""

    stop: Callable[[], None]
    ends_at: float
    worked: bool = False
    delay: float | None = 0


class _SliceSelector(selectors.DefaultSelector):
    """A selector that never waits in a slice: when nothing is ready, it ends the slice and notes how long it would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.slice: _Slice | None = None
        self.busy_since: float | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.slice is None:
            return self.rest(super().select, timeout)
        now = self.busy_since = machine_clock.monotonic()
        events = super().select(0)
        if events or timeout == 0:  # asyncio asks with 0 when callbacks or timers are due
            self.slice.worked = True
            if now >= self.slice.ends_at:
                self.slice.stop()
            return events
        if not self.slice.worked:
            self.slice.delay = timeout
        self.slice.stop()
        return events

    def rest(self, wait: Callable[[float | None], T], timeout: float | None) -> T:
        """Wait, and be known to wait."""
        self.busy_since = None
        try:
            return wait(timeout)
        finally:
            self.busy_since = machine_clock.monotonic()

    def close(self) -> None:
        super().close()
        self.busy_since = None


async def _end_all() -> None:
    leftovers = asyncio.all_tasks() - {asyncio.current_task()}
    for task in leftovers:
        task.cancel()
    # Waited for, not awaited: what swallows its cancellation does not hold up the worker's end.
    await asyncio.wait(
        {*leftovers, asyncio.create_task(asyncio.get_running_loop().shutdown_asyncgens())}, timeout=_END_SECONDS
    )


def _nothing() -> None:
    """Do nothing: only the wake-up matters."""
