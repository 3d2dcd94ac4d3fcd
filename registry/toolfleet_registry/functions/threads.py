"""Plain functions, each in a thread of its own, a bounded number at once."""

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


class NotBegun(Exception):
    """The call was stopped while it waited for a thread: nothing has happened."""


class Threads:
    """At most `most` at once; who comes later waits.

    They are daemons: one that hangs does not keep the process from ending, as an executor's would. If it `leaves` them, a run
    that is cancelled ends at once, and its thread goes on alone: else `asyncio.run` would wait for it at a program's end.
    """

    def __init__(self, most: int, *, leaves: bool = False) -> None:
        self._room = asyncio.Semaphore(most)
        self._leaves = leaves

    async def run(
        self, function: Callable[..., Any], arguments: Mapping[str, Any], may_begin: Callable[[], bool]
    ) -> Any:
        """What the function returns. A thread cannot be stopped: cancelled, this waits on until it ends, or leaves it.

        Raises `NotBegun` if it is cancelled before there is room, or may not begin any more when there is, and `ModuleBusy` if
        the machine has no thread for it.
        """
        try:
            await self._room.acquire()
        except asyncio.CancelledError:
            raise NotBegun from None
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        context = contextvars.copy_context()

        def work() -> None:
            try:
                result, error = context.run(_begun, may_begin, function, arguments), None
            except BaseException as exc:  # noqa: BLE001 - it is raised where the call is awaited
                result, error = None, exc
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(_settle, ended, result, error)

        try:
            threading.Thread(target=work, name=f"tool {getattr(function, '__name__', '')}", daemon=True).start()
        except Exception as exc:  # RuntimeError, MemoryError: whatever it is, nothing has happened
            self._room.release()
            _log.warning("No thread for a tool: %s", exc)
            raise ModuleBusy from exc
        ended.add_done_callback(lambda _: self._room.release())
        while not ended.done():
            try:
                await asyncio.wait({ended})
            except asyncio.CancelledError:
                if self._leaves:
                    ended.add_done_callback(_drop)
                    raise
        return ended.result()


def _begun(may_begin: Callable[[], bool], function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    if not may_begin():
        raise NotBegun
    return function(**arguments)


def _drop(ended: asyncio.Future[Any]) -> None:
    """Nobody waits for it any more: neither its error nor a coroutine that it made is missed."""
    if ended.exception() is None and inspect.iscoroutine(made := ended.result()):
        made.close()


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if isinstance(error, StopIteration):  # which no future can hold
        error = RuntimeError("the function raised StopIteration")
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
