"""Derives synchronous methods from coroutine methods, with their signatures, which type checkers and `help()` see."""

import contextlib
import functools
import queue
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator
from concurrent.futures import Future
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from toolfleet_registry.contracts.call_context import Progress
from toolfleet_tasks.client.loop_runner import LoopRunner
from toolfleet_tasks.client.progress_listener import OnProgress, call_listener

F = TypeVar("F")
P = ParamSpec("P")
T = TypeVar("T")


class SyncFace(Generic[F]):
    """Holds an asynchronous object, and what runs its coroutines. A synchronous class is one of these with methods."""

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
    """Derive the same of a method with `on_progress`, a function that is called in the thread of its caller."""

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
