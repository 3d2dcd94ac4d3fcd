"""Runs code that blocks on the bed's loop: each piece in a greenlet of its own, which waits there without blocking others."""

import asyncio
import contextlib
import queue
import select
import threading
from collections.abc import Callable
from typing import Any

from bed import clock, settling
from toolfleet_tasks.greenlet_bridge import Bridge, await_, in_bridge


def sleep(seconds: float) -> None:
    """Implements `time.sleep`: others go on meanwhile where that is possible."""
    if in_bridge():
        await_(asyncio.sleep(seconds))
    elif threading.current_thread() is threading.main_thread():
        settling.settle_if_asked()  # what was written is of the time before
        clock.move(seconds)  # the whole loop stands still
        settling.settle()
    else:
        clock.real_sleep(seconds)


def wait_for_file(descriptor: int, *, writing: bool = False, timeout: float | None = None) -> bool:
    """Return whether a file is ready, after at most so many seconds; others go on meanwhile. Only in a greenlet."""
    settling.settle_if_asked()
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT if writing else select.POLLIN)
    return bool(poll.poll(0)) or await_(_is_ready(descriptor, writing=writing, seconds=timeout))


async def _is_ready(descriptor: int, *, writing: bool, seconds: float | None) -> bool:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    add, remove = (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)

    def set_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    add(descriptor, set_ready)
    try:
        await asyncio.wait([ready], timeout=seconds)
    finally:
        remove(descriptor)
    return ready.done()


class GreenThread(threading.Thread):
    """A thread of a member of the fleet: it runs in a greenlet, and ends with its site."""

    def __init__(self, *, target: Callable[[], object], name: str, daemon: bool) -> None:
        super().__init__(name=name, daemon=daemon)
        self._body = target
        self._task: asyncio.Task[object] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=self.name)

    def is_alive(self) -> bool:
        """Return whether it runs."""
        return self._task is not None and not self._task.done()

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end; from the loop's own code, which cannot wait, return at once."""
        if self._task is not None and in_bridge():
            await_(asyncio.wait([self._task], timeout=timeout))

    async def _run(self) -> object:
        return await Bridge(self._body)


class GreenEvent(threading.Event):
    """An event that a greenlet can wait for."""

    _SHORTEST_WAIT = 1.0
    """Seconds. What looks around more often than that costs a test most of its time, and is woken if there is news."""

    def __init__(self) -> None:
        super().__init__()
        self._event = asyncio.Event()

    def set(self) -> None:
        """Implements `Event.set`."""
        self._event.set()

    def clear(self) -> None:
        """Implements `Event.clear`."""
        self._event.clear()

    def is_set(self) -> bool:
        """Implements `Event.is_set`."""
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set."""
        return await_(self._wait(None if timeout is None else max(timeout, self._SHORTEST_WAIT)))

    async def _wait(self, seconds: float | None) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        return self._event.is_set()


class GreenLifoQueue(queue.LifoQueue[Any]):
    """Implements the queue of kombu's pools: code that waits for a connection must not stop those who will give one back."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[asyncio.Future[None]] = []

    def get(self, block: bool = True, timeout: float | None = None) -> Any:  # noqa: FBT002 - the library's
        """Implements `LifoQueue.get`. Without a greenlet to wait in, an empty queue is an error at once."""
        if not (block and in_bridge()):
            return super().get(block=False)
        limit = None if timeout is None else clock.monotonic() + timeout
        while self.empty():
            left = None if limit is None else limit - clock.monotonic()
            if left is not None and left <= 0:
                raise queue.Empty
            await_(self._next_put(left))
        return super().get(block=False)

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:  # noqa: FBT002 - as above
        """Implements `LifoQueue.put`."""
        super().put(item, block, timeout)
        waiting, self._waiting = self._waiting, []
        for each in waiting:  # all: the first may belong to a member that is dead
            if not each.done():
                each.set_result(None)

    async def _next_put(self, seconds: float | None) -> None:
        self._waiting.append(put := asyncio.get_running_loop().create_future())
        await asyncio.wait([put], timeout=seconds)
