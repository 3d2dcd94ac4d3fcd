"""Runs plain functions, each in a thread of its own, a bounded number at once."""

import asyncio
import contextlib
import contextvars
import inspect
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from toolfleet_registry.functions.failures import ModuleBusy

_log = logging.getLogger("toolfleet.sdk")

_HANGING_SECONDS = 1.0  # for functions whose calls have ended to see that; then their threads are not waited for
_MOST_NAMED = 5


class NotBegun(Exception):
    """The call was stopped while it waited for a thread: nothing has happened."""


class ThreadsHang(ModuleBusy):
    """All threads are held by functions that have outlived their calls: it is unknown when one returns, and nothing was started."""


class Threads:
    """A pool of at most `most` threads; further runs wait.

    They are daemons: one that hangs does not keep the process from ending, as an executor's would. If it `leaves` them,
    a run that is cancelled ends at once, and its thread goes on alone: otherwise `asyncio.run` would wait for it at a
    program's end.
    """

    def __init__(self, most: int, *, leaves: bool = False) -> None:
        self._slots = asyncio.Semaphore(most)
        self._most = most
        self._leaves = leaves
        self._outlived: dict[asyncio.Future[Any], str] = {}  # functions that still hold threads, and their names
        self._hang_since = 0.0  # on the loop's clock: since when they hold all of them, if they do
        self._is_said = False

    async def run(
        self, function: Callable[..., Any], arguments: Mapping[str, Any], may_begin: Callable[[], bool]
    ) -> Any:
        """Run the function in a thread and return its result.

        A thread cannot be stopped: if cancelled, this waits until it ends, or leaves it.

        Raises `NotBegun` if it is cancelled before there is room, or may not start any more when there is, `ModuleBusy`
        if the machine has no thread for it, and `ThreadsHang`, after a second, while all are held by runs that were
        cancelled.
        """
        try:
            await self._acquire()
        except asyncio.CancelledError:
            raise NotBegun from None
        loop = asyncio.get_running_loop()
        ended, name = loop.create_future(), getattr(function, "__name__", "")
        context = contextvars.copy_context()

        def work() -> None:
            try:
                result, error = context.run(_begun, may_begin, function, arguments), None
            except BaseException as exc:  # noqa: BLE001 - it is raised where the call is awaited
                result, error = None, exc
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(_settle, ended, result, error)

        try:
            threading.Thread(target=work, name=f"tool {name}", daemon=True).start()
        except Exception as exc:  # RuntimeError, MemoryError: in any case, nothing has happened
            self._slots.release()
            _log.warning("No thread for a tool: %s", exc)
            raise ModuleBusy from exc
        ended.add_done_callback(self._release)
        while not ended.done():
            try:
                await asyncio.wait({ended})
            except asyncio.CancelledError:
                self._outlive(ended, name)
                if self._leaves:
                    ended.add_done_callback(_drop)
                    raise
        return ended.result()

    async def _acquire(self) -> None:
        """Wait for a thread, as long as one is held for a call that has not ended. Raises `ThreadsHang`."""
        begun = asyncio.get_running_loop().time()
        acquired = asyncio.ensure_future(self._slots.acquire())  # once: who waits keeps its place among the others
        try:
            while not acquired.done():
                await asyncio.wait({acquired}, timeout=self._patience(begun))
        except BaseException:
            if not acquired.cancel():  # it came in the same moment
                self._slots.release()
            raise

    def _patience(self, begun: float) -> float:
        """Return the seconds until the next check whether all threads hang.

        Raises `ThreadsHang` if they have done so for too long.
        """
        if len(self._outlived) < self._most:
            return _HANGING_SECONDS
        left = max(begun, self._hang_since) + _HANGING_SECONDS - asyncio.get_running_loop().time()
        if left <= 0:
            raise self._hanging()
        return left

    def _outlive(self, run: asyncio.Future[Any], name: str) -> None:
        """Note that a run was cancelled before its function returned."""
        if not run.done() and run not in self._outlived:
            self._outlived[run] = name
            self._hang_since = asyncio.get_running_loop().time()

    def _release(self, run: asyncio.Future[Any]) -> None:
        if self._outlived.pop(run, None) is not None:
            self._is_said = False
        self._slots.release()

    def _hanging(self) -> ThreadsHang:
        """Return the error; the log has it once, until a thread is free again."""
        if not self._is_said:
            self._is_said = True
            names = sorted(set(self._outlived.values()))
            more = " and others" if len(names) > _MOST_NAMED else ""
            _log.warning(
                "All %d threads are held by functions whose calls have ended: %s%s. Calls are turned away until one returns.",
                self._most,
                ", ".join(names[:_MOST_NAMED]),
                more,
            )
        return ThreadsHang()


def _begun(may_begin: Callable[[], bool], function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    if not may_begin():
        raise NotBegun
    return function(**arguments)


def _drop(ended: asyncio.Future[Any]) -> None:
    """Discard an abandoned run's result: retrieve its error, and close a coroutine that it made."""
    if ended.exception() is None and inspect.iscoroutine(made := ended.result()):
        made.close()


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if isinstance(error, StopIteration):  # which no future can hold
        error = RuntimeError("the function raised StopIteration")
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
