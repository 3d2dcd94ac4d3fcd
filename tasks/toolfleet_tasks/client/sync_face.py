"""Derives synchronous methods from coroutine methods, and runs them on a loop of their own, in a thread."""

import asyncio
import contextlib
import functools
import queue
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator
from concurrent.futures import CancelledError, Future
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from toolfleet_registry.contracts.call_context import Progress
from toolfleet_tasks import aio
from toolfleet_tasks.client.listeners import OnProgress, call_listener

T = TypeVar("T")

_NOT_OPEN = "This fleet is not open: use it inside `with`, as in `with ToolFleet.sync() as fleet:`, or between `open()` and `close()`."
_STOP_SECONDS = 5  # for work started while the fleet was left

F = TypeVar("F")
P = ParamSpec("P")


class LoopRunner:
    """An event loop in a thread, from `start` to `stop`.

    Safe from many threads, and in processes that are forked meanwhile: each starts a thread of its own when it needs one.
    """

    def __init__(self) -> None:
        self.is_started = False
        self._lock = threading.Lock()
        self._thread: _LoopThread | None = None
        aio.call_after_fork(self.forked)

    def start(self) -> None:
        """Accept coroutines. The thread starts with the first of them."""
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
        aio.leave_behind(self._thread)
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


class SyncFace(Generic[F]):
    """Holds an asynchronous object, and what runs its coroutines. A synchronous class is a subclass with methods."""

    def __init__(self, face: F, runner: LoopRunner) -> None:
        self._face = face
        self._runner = runner

    def _each(self, items: AsyncIterator[T]) -> Generator[T]:
        """Yield the items one by one, and close what makes them at the end."""
        try:
            while (item := self._runner.wait(_next(items))) is not None:
                yield item
        finally:
            if isinstance(items, AsyncGenerator):
                with contextlib.suppress(RuntimeError):  # the fleet was left
                    self._runner.wait(items.aclose())


def blocking(
    method: Callable[Concatenate[F, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncFace[F], P], T]:
    """Derive a method that waits for the end of the coroutine, in any thread."""

    @functools.wraps(method)
    def run(self: SyncFace[F], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._runner.wait(method(self._face, *args, **kwargs))

    return run


def blocking_with_progress(
    method: Callable[Concatenate[F, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncFace[F], P], T]:
    """Derive a blocking method with `on_progress`, a function that is called in the thread of its caller."""

    @functools.wraps(method)
    def run(self: SyncFace[F], /, *args: P.args, **kwargs: P.kwargs) -> T:
        on_progress = cast("OnProgress | None", kwargs.get("on_progress"))
        if on_progress is None:
            return self._runner.wait(method(self._face, *args, **kwargs))
        steps: queue.SimpleQueue[Progress | None] = queue.SimpleQueue()
        kwargs["on_progress"] = steps.put
        work = method(self._face, *args, **kwargs)
        return self._runner.wait(work, lambda future: _listen(future, steps, on_progress))

    return run


def _listen(future: "Future[Any]", steps: "queue.SimpleQueue[Progress | None]", on_progress: OnProgress) -> None:
    """Report each step until the future is done, the last ones before returning."""
    future.add_done_callback(lambda _: steps.put(None))
    while (step := steps.get()) is not None:
        call_listener(step, on_progress)


async def _next(items: AsyncIterator[T]) -> T | None:
    return await anext(items, None)
