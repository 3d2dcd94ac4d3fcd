"""Shares one running call between its waiters: its tool is stopped when none is left."""

import asyncio
import contextlib
import contextvars
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from toolfleet_modules.once.work_log import WorkLog
from toolfleet_modules.requests.reply import Reply
from toolfleet_modules.requests.task_guard import IN_TOOL
from toolfleet_registry.contracts.call_context import Context, LogLevel, Progress, log_to, report_to
from toolfleet_registry.system.shared_timers import SharedTimer, shared_timers


class Work:
    """The shared work of all requests for the same call. `task` ends with the reply, or raises the refusal of the call.

    `key`: the name of its record; `None`: it has none. `attempt` is the latest one that asks, 0 if none says which it
    is. `is_late`: it was stopped because the time of all waiters was over. `watchers` are called after each progress
    and log message; of these only those of a `log_level` are kept.
    """

    def __init__(
        self, context: Context, fingerprint: str, key: str | None = None, log_level: LogLevel | None = None
    ) -> None:
        self.context = context
        self.key = key
        self.fingerprint = fingerprint
        self.attempt = 0
        self.is_late = False
        self.task: asyncio.Task[Reply]
        self.progress: Progress | None = None
        self.watchers = set[Callable[[], None]]()
        self._loop = asyncio.get_running_loop()
        self._attending = 0
        self._tool: asyncio.Task[Reply] | None = None
        self._pause: asyncio.Task[None] | None = None
        self._timer: SharedTimer | None = None
        self._extended = False
        self._is_joined = False
        self.log = None if log_level is None else WorkLog(log_level, self._notify)
        context._report = self._report  # noqa: SLF001 - made for this work
        context._log = None if self.log is None else self.log.sink  # noqa: SLF001 - as above

    @asynccontextmanager
    async def attended(self, seconds: float | None) -> AsyncGenerator[None]:
        """Wait for it within `seconds` (`None`: without end). Who leaves last stops it."""
        self._attending += 1
        self._extend(seconds)
        try:
            yield
        finally:
            self._attending -= 1
            if not self._attending and not self.task.done() and not self.is_stopped:
                self.stop()
                await asyncio.wait({self.task}, timeout=_GRACE_SECONDS)

    def join(self, attempt: int, begin_by: float | None) -> None:
        """Join another attempt, or the first: the work may start as long as one of them may."""
        known = self.context._begin_by  # noqa: SLF001 - as above
        is_open = begin_by is None or (self._is_joined and known is None)
        self.context._begin_by = None if is_open else max(begin_by or 0, known or begin_by or 0)  # noqa: SLF001 - as above
        self.attempt, self._is_joined = max(self.attempt, attempt), True

    async def run(self, tool: Coroutine[Any, Any, Reply]) -> Reply:
        """Run the tool so that `stop` cancels it, and nothing else here. Raises `asyncio.CancelledError` if it was stopped."""
        inside = contextvars.copy_context()
        inside.run(report_to, self._report)  # so that functions that know no context can report, too
        inside.run(log_to, self.context._log)  # noqa: SLF001 - as above
        inside.run(IN_TOOL.set, True)
        self._tool = asyncio.get_running_loop().create_task(tool, context=inside)
        if self.is_stopped:
            self._tool.cancel()
        # Not by `asyncio.wait`, which takes as long as all else here.
        ended: asyncio.Future[None] = self._loop.create_future()
        self._tool.add_done_callback(partial(_end, ended))
        await ended
        return self._tool.result()

    async def pause(self, seconds: float) -> None:
        """Sleep, but no longer than there are waiters."""
        if not self.is_stopped:
            self._pause = asyncio.ensure_future(asyncio.sleep(seconds))
            await asyncio.wait({self._pause})

    def stop(self, *, is_late: bool = False) -> None:
        """Stop the work, which has no waiters any more. `is_late`: because their time is over."""
        if self._timer is not None:
            self._timer.cancel()
        if self.task.done():
            return
        self.context._cancelled = True  # noqa: SLF001 - as above
        self.is_late = self.is_late or is_late
        for each in (self._pause, self._tool):
            if each is not None:
                each.cancel()

    @property
    def is_stopped(self) -> bool:
        """Whether there are no waiters any more."""
        return self.context._cancelled  # noqa: SLF001 - as above

    @property
    def is_over(self) -> bool:
        """Whether the time of all waiters is over, within the precision of two clocks."""
        return self.is_late or self.context._is_over  # noqa: SLF001 - as above

    def _extend(self, seconds: float | None) -> None:
        """Extend the end to that of the longest waiter."""
        ends_at = None if seconds is None else time.monotonic() + seconds
        known = self.context._ends_at  # noqa: SLF001 - as above
        if self._extended and (known is None or (ends_at is not None and ends_at <= known)):
            return
        self._extended = True
        self.context._ends_at = ends_at  # noqa: SLF001 - as above
        if self._timer is not None:
            self._timer.cancel()
        if seconds is not None and seconds <= 0:
            self.stop(is_late=True)
        elif seconds is None:
            self._timer = None
        else:
            self._timer = shared_timers(self._loop).call_later(seconds, partial(self.stop, is_late=True))

    def _report(self, progress: Progress) -> None:
        self.progress = progress
        self._notify()

    def _notify(self) -> None:
        """Notify the watchers of something new, from any thread."""
        try:
            running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            self._spread()
            return
        with contextlib.suppress(RuntimeError):  # the loop has ended, and a thread has not noticed
            self._loop.call_soon_threadsafe(self._spread)

    def _spread(self) -> None:
        for watcher in list(self.watchers):
            watcher()


def _end(waiting: asyncio.Future[None], _: object) -> None:
    if not waiting.done():
        waiting.set_result(None)


_GRACE_SECONDS = 1.0  # for a stopped tool to end before its caller's request does
