"""Runs local functions: async ones on the loop, plain ones in threads, a bounded number at once.

Nothing that a function does ends more than its call. One that does not end with its call is left behind, and a plain one
keeps its thread for so long.
"""

import asyncio
import functools
import inspect
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Self

from toolfleet_registry.contracts.call_context import Context
from toolfleet_registry.contracts.outcomes import UNEXPLAINED
from toolfleet_registry.contracts.tool_context import run_for
from toolfleet_registry.functions.threads import NotBegun, Threads
from toolfleet_registry.local.local_function import LocalFunction
from toolfleet_registry.system.loggers import get_logger

log = get_logger(__name__)

_GRACE_SECONDS = 0.5  # for a cancelled function to clean up before it is left behind; less than the pool gives us

ANSWER_SECONDS = 0.5
"""For the answer that there was no thread: what is left of a call's time, so that it reaches the agent before the deadline."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The type and place of a function's exception, without its text, which may quote anything."""

    kind: str
    stack: str

    @classmethod
    def of(cls, exc: BaseException) -> Self:
        """Describe it."""
        return cls(type(exc).__name__, "".join(traceback.format_tb(exc.__traceback__)))

    @property
    def error(self) -> str:
        """The message for the caller."""
        return f"Tool execution error: the function failed ({self.kind}); its {UNEXPLAINED}"


class FunctionRuns:
    """Runs functions of one event loop; at most `threads` of them in threads at once, further ones wait.

    With `leaves_threads`, threads whose calls have ended do not keep the loop from ending.
    """

    def __init__(self, *, threads: int, leaves_threads: bool = False) -> None:
        self._threads = Threads(threads, leaves=leaves_threads)
        self._left_behind = set[asyncio.Task[Any]]()

    async def run(
        self,
        local: LocalFunction,
        arguments: Mapping[str, Any],
        context: Context,
        *,
        require: Callable[[], object] = lambda: None,
    ) -> Any:
        """Run the function within the call's time and return its result, or the `Failure` that it raised.

        Raises `TimeoutError` if the time is over: the function is cancelled then, and told so by its context. Raises
        `NotBegun` if it was over before there was a thread, `ModuleBusy` if the machine has none or all hang, and
        anything that `require` raises, which is called immediately before the function; nothing has happened then.
        """
        begun = threading.Event()
        # In a task of its own: what the function does to its task, or with a cancellation, does not reach ours.
        called = self._called(local, arguments, context, require, begun)
        task = asyncio.create_task(called, name=f"local-{local.definition.name}")
        done = False
        try:
            if not local.is_plain or await _is_begun(task, begun, context.seconds_left):
                await asyncio.wait({task}, timeout=context.seconds_left)
            done = task.done()
        finally:
            if not task.done():
                context._cancelled = True  # noqa: SLF001 - made for this run
                await self._end(task)
        if done:
            return Failure("CancelledError", "") if task.cancelled() else task.result()
        if task.done() and not task.cancelled() and isinstance(task.exception(), NotBegun):
            raise NotBegun
        raise TimeoutError

    async def aclose(self) -> None:
        """Give functions that have outlived their calls a last chance to end."""
        for task in self._left_behind:
            task.cancel()
        if self._left_behind:
            await asyncio.wait(self._left_behind, timeout=_GRACE_SECONDS)

    async def _called(
        self,
        local: LocalFunction,
        arguments: Mapping[str, Any],
        context: Context,
        require: Callable[[], object],
        begun: threading.Event,
    ) -> Any:
        run_for(context)
        given = arguments if local.call_context is None else {**arguments, local.call_context: context}
        if not local.is_plain:
            require()
            return await _kept(functools.partial(local.function, **given))

        def may_begin() -> bool:
            require()
            if not context.cancelled:
                begun.set()
            return begun.is_set()

        returned = await self._threads.run(_keeping(local.function), given, may_begin)
        if not inspect.isawaitable(returned):
            return returned
        if context.cancelled:  # a thread's end is waited for though the call has ended; the next step is not started
            if isinstance(returned, Coroutine):
                returned.close()
            return None
        return await _kept(lambda: returned)  # a plain function that makes a coroutine, as a decorated one may

    async def _end(self, task: asyncio.Task[Any]) -> None:
        task.cancel()
        self._left_behind.add(task)
        task.add_done_callback(self._forget)
        try:
            await asyncio.wait({task}, timeout=_GRACE_SECONDS)
        finally:  # also where its agent takes a call back whose time is over here already
            if not task.done():
                log.warning("local_tool_left_behind", function=task.get_name(), grace_seconds=_GRACE_SECONDS)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._left_behind.discard(task)
        if not task.cancelled():
            task.exception()  # seen: asyncio would write it to the log


async def _is_begun(task: asyncio.Task[Any], begun: threading.Event, seconds: float | None) -> bool:
    """Wait for the task's end, or until it is too late to start: a call that waited in vain gets its answer while its client still listens."""
    if seconds is not None:
        await asyncio.wait({task}, timeout=seconds - min(ANSWER_SECONDS, seconds / 4))
    return task.done() or begun.is_set()


async def _kept(begin: Callable[[], Awaitable[Any]]) -> Any:
    """Return the result, or the `Failure` that was raised. `SystemExit` would otherwise end the process."""
    try:
        return await begin()
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as exc:  # noqa: BLE001 - nothing that a function does ends more than its call
        return Failure.of(exc)


def _keeping(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a plain one: what it raises cannot be mistaken for what its thread says."""

    @functools.wraps(function)
    def call(**arguments: Any) -> Any:
        try:
            return function(**arguments)
        except BaseException as exc:  # noqa: BLE001 - as above
            return Failure.of(exc)

    return call
