"""Runs a tool for a call: what a tool and its run must have, the work that several requests share, its log, its tasks."""

import asyncio
import contextlib
import contextvars
import json
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from toolfleet_modules.calls.reply import Reply
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.contracts.call_context import (
    Context,
    LogBudget,
    LogLevel,
    LogMessage,
    LogSink,
    Progress,
    log_to,
    report_to,
)
from toolfleet_registry.functions.threads import NotBegun, Threads
from toolfleet_registry.system.shared_timers import SharedTimer, shared_timers

_GRACE_SECONDS = 1.0  # for a stopped tool to end before its caller's request does

IN_TOOL: ContextVar[bool] = ContextVar("toolfleet_in_tool", default=False)
"""Whether what runs now belongs to a tool: in its context, which its tasks inherit."""


@dataclass(frozen=True, slots=True)
class RunMeans:
    """The shared means of a module's runs: `threads` for plain functions, and the largest size of a result.

    `accepts`: whether a tool may continue by itself. `shows_exceptions`: whether a model reads the texts of exceptions.
    """

    threads: Threads
    most_bytes: int
    accepts: bool = False
    shows_exceptions: bool = False


class ServedTool(Protocol):
    """A tool that a module offers, and runs for its calls."""

    @property
    def definition(self) -> ToolDefinition:
        """The tool's definition in the manifest."""
        ...

    @property
    def argument_names(self) -> frozenset[str]:
        """The names of the arguments that a model writes."""
        ...

    def begin(self, arguments: Mapping[str, Any], context: Context, means: RunMeans) -> "ServedRun[Any] | Reply":
        """Return a run with these arguments, or the reply to invalid ones."""
        ...


RunTool = TypeVar("RunTool", bound=ServedTool)


@dataclass(frozen=True, slots=True)
class ServedRun(Generic[RunTool]):
    """One run of `tool`, for the call of `context`. Subclasses implement `run`."""

    tool: RunTool
    context: Context

    @property
    def name(self) -> str:
        """The tool's name as the call has it, which may be a former one."""
        return self.context.tool_name

    @property
    def is_repeatable(self) -> bool:
        """Whether a second run does nothing more than the first."""
        return self.tool.definition.effect in {"read", "idempotent"}

    @property
    def reruns_failures(self) -> bool:
        """Whether a call that failed runs again when it is repeated."""
        return self.is_repeatable

    def run(self) -> Coroutine[Any, Any, Reply]:
        """Run the tool once."""
        raise NotImplementedError

    def check_begin(self) -> None:
        """Raise `NotBegun` if it is too late to begin. To be asked immediately before the effect."""
        if not self.context._may_begin():
            raise NotBegun


class Work:
    """The shared work of all requests for the same call. `task` ends with the reply, or raises the refusal of the call.

    `key`: the name of its record; `None`: it has none. `attempt` is the latest attempt, 0 if no request states one. `is_late`: it was stopped because the time of all waiters was over. `watchers` are called after each progress
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
        context._report = self._report
        context._log = None if self.log is None else self.log.sink

    @asynccontextmanager
    async def attended(self, seconds: float | None) -> AsyncGenerator[None]:
        """Wait for the work within `seconds` (`None`: without end). The last waiter that leaves stops it."""
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
        known = self.context._begin_by
        is_open = begin_by is None or (self._is_joined and known is None)
        self.context._begin_by = None if is_open else max(begin_by or 0, known or begin_by or 0)
        self.attempt, self._is_joined = max(self.attempt, attempt), True

    async def run(self, tool: Coroutine[Any, Any, Reply]) -> Reply:
        """Run the tool so that `stop` cancels it, and nothing else here. Raises `asyncio.CancelledError` if it was stopped."""
        inside = contextvars.copy_context()
        inside.run(report_to, self._report)  # so that functions that know no context can report, too
        inside.run(log_to, self.context._log)
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
        self.context._cancelled = True
        self.is_late = self.is_late or is_late
        for each in (self._pause, self._tool):
            if each is not None:
                each.cancel()

    @property
    def is_stopped(self) -> bool:
        """Whether there are no waiters any more."""
        return self.context._cancelled

    @property
    def is_over(self) -> bool:
        """Whether the time of all waiters is over, within the precision of two clocks."""
        return self.is_late or self.context._is_over

    def _extend(self, seconds: float | None) -> None:
        """Extend the end to that of the longest waiter."""
        ends_at = None if seconds is None else time.monotonic() + seconds
        known = self.context._ends_at
        if self._extended and (known is None or (ends_at is not None and ends_at <= known)):
            return
        self._extended = True
        self.context._ends_at = ends_at
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


class WorkLog:
    """The log messages of one call that are of level `least` or above. `tell` is called after each, in any thread."""

    def __init__(self, least: LogLevel, tell: Callable[[], None]) -> None:
        self.lines: list[bytes] = []
        """`{"log": {…}}`, in order: each waiter knows how many it has had."""
        self.sink = LogSink(least, self._take)
        """Takes the messages, from any thread."""
        self._tell = tell
        self._budget = LogBudget()

    @property
    def notice(self) -> bytes:
        """The line on how many were left out, once the call has ended; empty for none."""
        notice = self._budget.notice()
        return b"" if notice is None else _line(notice)

    def _take(self, message: LogMessage) -> None:
        line = _line(message)
        if self._budget.takes(len(line)):
            self.lines.append(line)
            self._tell()


def _line(message: LogMessage) -> bytes:
    return json.dumps({"log": message.fields()}, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


class TaskExit(Exception):
    """A task of a tool has raised `SystemExit` or `KeyboardInterrupt`, which is the cause."""


def guard_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Have the loop guard tasks that are made inside tools. Its previous task factory is still used."""
    before: Any = loop.get_task_factory()
    if isinstance(before, _Factory):
        return
    loop.set_task_factory(_Factory(before))


class _Factory:
    def __init__(self, before: Any) -> None:
        self._make: Any = before or (lambda loop, coro, **facts: asyncio.Task(coro, loop=loop, **facts))

    def __call__(self, loop: asyncio.AbstractEventLoop, coro: Any, **facts: Any) -> Any:
        return self._make(loop, _Guarded(coro) if IN_TOOL.get() else coro, **facts)


class _Guarded(Coroutine[Any, Any, Any]):
    """A coroutine that raises `TaskExit` for the two exceptions. An `async def` around it that never starts would leave it unawaited."""

    __slots__ = ("_coro",)

    def __init__(self, coro: Any) -> None:
        self._coro = coro

    def send(self, value: Any) -> Any:
        try:
            return self._coro.send(value)
        except (SystemExit, KeyboardInterrupt) as exc:
            raise TaskExit(type(exc).__name__) from exc

    def throw(self, *error: Any) -> Any:
        try:
            return self._coro.throw(*error)
        except (SystemExit, KeyboardInterrupt) as exc:
            raise TaskExit(type(exc).__name__) from exc

    def close(self) -> None:
        self._coro.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise TypeError("a task's coroutine is awaited by its task")

    def __getattr__(self, name: str) -> Any:  # its name and its frames, for tracebacks and `inspect`
        return getattr(self._coro, name)
