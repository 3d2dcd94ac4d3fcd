"""Runs coroutines for programs without an event loop: on a loop of their own, in a thread."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from toolfleet_tasks.aio import fork_safety

T = TypeVar("T")

_NOT_OPEN = "This fleet is not open: use it inside `with`, as in `with ToolFleet.sync() as fleet:`, or between `open()` and `close()`."
_STOP_SECONDS = 5  # for work started while the fleet was left


class LoopRunner:
    """An event loop in a thread, from `start` to `stop`.

    Safe from many threads, and in processes that are forked meanwhile: each starts a thread of its own when it needs one.
    """

    def __init__(self) -> None:
        self.is_started = False
        self._lock = threading.Lock()
        self._thread: _LoopThread | None = None
        fork_safety.tell(self.forked)

    def start(self) -> None:
        """Let coroutines in. The thread begins with the first of them."""
        self.is_started = True

    def stop(self) -> None:
        """Stop the thread. What runs on it is cancelled, and waiting callers are told."""
        with self._lock:
            self.is_started = False
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()

    def wait(self, work: Coroutine[Any, Any, T], meanwhile: "Callable[[Future[T]], None] | None" = None) -> T:
        """Run a coroutine and return its result. `meanwhile` is called in this thread with the future that it has.

        Raises what the coroutine does, and `RuntimeError` if this is not started, or is stopped meanwhile.
        """
        try:
            future = self._begun(work)
        except RuntimeError:
            work.close()
            raise
        try:
            if meanwhile is not None:
                meanwhile(future)
            return future.result()
        except CancelledError as exc:
            if self.is_started:
                raise
            raise RuntimeError(_NOT_OPEN) from exc
        except BaseException:  # Ctrl-C too: the call is cancelled
            future.cancel()
            raise

    def forked(self) -> None:
        """Leave the thread to the parent: the child's first call starts its own."""
        fork_safety.leave_behind(self._thread)
        self._lock, self._thread = threading.Lock(), None

    def _begun(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        with self._lock:  # until it is on the loop: what comes after the loop's end would wait for ever
            if not self.is_started:
                raise RuntimeError(_NOT_OPEN)
            if self._thread is None:
                self._thread = _LoopThread()
                self._thread.start()
            return self._thread.begin(work)


class _LoopThread(threading.Thread):
    """A thread that runs an event loop until it is stopped."""

    def __init__(self) -> None:
        super().__init__(name="toolfleet", daemon=True)
        self.loop = asyncio.new_event_loop()
        self._begun = set[Future[Any]]()  # what other threads wait for

    def begin(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Run it on the loop. Its future ends with it, and at the latest when `stop` returns."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        self._begun.add(future)
        future.add_done_callback(self._begun.discard)
        return future

    def run(self) -> None:
        self.loop.run_forever()
        if left := asyncio.all_tasks(self.loop):  # started at the last moment
            for task in left:
                task.cancel()
            self.loop.run_until_complete(asyncio.wait(left, timeout=_STOP_SECONDS))
        # Of a task that ended in the loop's very last turn, its waiter was not told; others do not let themselves be cancelled.
        self.loop.run_until_complete(asyncio.sleep(0))
        for future in list(self._begun):
            future.cancel()

    def stop(self) -> None:
        """End the loop and the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.join()
        self.loop.close()
