"""Runs one call in flight in the pool: from its acceptance to its end, within its limits."""

import asyncio
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Self

from billiard.einfo import ExceptionInfo
from celery.exceptions import WorkerLostError, WorkerShutdown, WorkerTerminate

from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.time import machine_clock
from toolfleet_registry.time.shared_timers import SharedTimer, shared_timers
from toolfleet_tasks.aio.coroutine_driver import JobKilled
from toolfleet_tasks.aio.greenlet_bridge import Bridge
from toolfleet_tasks.worker.fast_path import FastPathTask, untraced

GRACE_SECONDS = 1.0  # for a cancelled coroutine to clean up, before it is left behind

log = get_logger(__name__)

_UNKNOWN = object()


@dataclass(slots=True)
class Assignment:
    """A job for the pool: its target, Celery's callbacks, and the limits in seconds."""

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    call_id: str | None
    accepted: Callable[[int, float], object]
    timed_out: Callable[[bool, float], object]
    done: Callable[[Any], object]
    failed: Callable[[ExceptionInfo], object]
    soft_limit: float | None
    hard_limit: float | None

    @classmethod
    def from_celery(
        cls, target: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Self:
        """Make it from the options of `BasePool.apply_async`; any of them may be missing or `None`."""
        return cls(
            target,
            tuple(args),
            kwargs,
            call_id=options.get("correlation_id"),
            accepted=options.get("accept_callback") or _ignore,
            timed_out=options.get("timeout_callback") or _ignore,
            done=options.get("callback") or _ignore,
            failed=options.get("error_callback") or _ignore,
            soft_limit=options.get("soft_timeout"),
            hard_limit=options.get("timeout"),
        )


class TaskRun:
    """Runs one assignment of `app`. Celery keeps a weak reference to it, to call `terminate`."""

    __slots__ = (
        "__weakref__",
        "_app",
        "_assignment",
        "_bridge",
        "_ending",
        "_hard_limit",
        "_is_cancelled",
        "_is_running",
        "_loop",
        "_timers",
    )

    def __init__(self, app: Any, assignment: Assignment, loop: asyncio.AbstractEventLoop) -> None:
        self._app = app
        self._assignment = assignment
        self._loop = loop
        # All of it in the bridge: what Celery stores as it is told of something may have to wait for Redis.
        self._bridge: Bridge[None] = Bridge()
        self._bridge.on_limits = self._start_timers
        self._timers: list[SharedTimer] = []
        self._hard_limit: float | None = None
        self._ending: asyncio.Task[None] | None = None
        self._is_running = False
        self._is_cancelled = False

    @property
    def call_id(self) -> str | None:
        """Celery's id of the call."""
        return self._assignment.call_id

    async def run(self) -> None:
        """Run it to its end and tell Celery, unless it is killed: then its end is recorded elsewhere."""
        try:
            task = untraced(self._app, self._assignment.target, self._assignment.args, self._bridge)
            await (self._bridge.cross(self._work) if task is None else self._run_untraced(task))
        except (asyncio.CancelledError, JobKilled):
            if not self._bridge.killed:
                raise
        finally:
            self._is_running = False
            # We have it, and it has us: a call, with all that it has, would wait for the collector.
            self._bridge.on_limits = _ignore
            for timer in self._timers:
                timer.cancel()
            if self._ending is not None:
                await self._ending

    def terminate(self, signum: int | None = None) -> None:
        """Kill it. At any time, from any thread, and from a signal handler that interrupts the loop or this very job."""
        del signum
        self._bridge.killed = True  # at once: what the job comes to in the meantime must not be stored
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel)

    def _work(self) -> None:
        self._accept()
        if not self._bridge.killed:  # it was not revoked before it began
            self._trace()

    async def _run_untraced(self, task: FastPathTask) -> None:
        """The call by itself, and the tracer for what it does not end with: see `fast_path.untraced`."""
        bridge = self._bridge
        if _waits_for_nothing(self._assignment.accepted):
            self._accept()
        else:
            await bridge.cross(self._accept)
        if bridge.killed:
            return
        began_at = machine_clock.monotonic()
        try:
            text = await bridge.walk(task.run())
        except (WorkerShutdown, WorkerTerminate, JobKilled, GeneratorExit):
            raise
        except BaseException as exc:  # noqa: BLE001 - what it means is for the tracer to say
            task.ends_as(functools.partial(_raise, exc))
            await bridge.cross(self._trace)
            return
        if task.request.is_stored:
            self._tell(self._assignment.done, (0, repr(text), machine_clock.monotonic() - began_at))
        else:
            task.ends_as(lambda: text)
            await bridge.cross(self._trace)

    def _accept(self) -> None:
        self._tell(self._assignment.accepted, os.getpid(), machine_clock.monotonic())
        # Only now: if it was revoked before, Celery has just stored that and acknowledged it, which nothing may cut short.
        self._is_running = True

    def _trace(self) -> None:
        assignment = self._assignment
        try:
            outcome = assignment.target(*assignment.args, **assignment.kwargs)
        except (WorkerShutdown, WorkerTerminate):
            raise
        except BaseException as exc:  # noqa: BLE001 - anything may escape the tracer; Celery hears of it here or never
            if not self._bridge.killed:
                self._tell(assignment.failed, _as_failure(exc))
        else:
            if not self._bridge.killed:
                self._tell(assignment.done, outcome)

    def _start_timers(self, soft: float | None, hard: float | None) -> None:
        """Once, when the limits begin to hold. One at a time: hardly any call needs its second."""
        if self._timers:
            return
        if soft is None and hard is None:
            soft, hard = self._assignment.soft_limit, self._assignment.hard_limit
        self._hard_limit = hard
        if soft and (not hard or soft < hard):
            self._timers.append(shared_timers(self._loop).call_later(soft, self._on_soft_limit, soft))
        elif hard:
            self._timers.append(shared_timers(self._loop).call_later(hard, self._on_hard_limit, hard))

    def _on_soft_limit(self, seconds: float) -> None:
        hard = self._hard_limit
        if hard:
            self._timers.append(shared_timers(self._loop).call_later(hard - seconds, self._on_hard_limit, hard))
        if not self._bridge.killed and self._bridge.limit(seconds):
            self._tell(self._assignment.timed_out, True, seconds)

    def _on_hard_limit(self, seconds: float) -> None:
        if self._bridge.killed:
            return
        if not self._bridge.is_in_body:
            # It waits for Redis: for the word that it may begin, or with a result, which is worth more than a failure
            # that would wait as well.
            self._timers.append(shared_timers(self._loop).call_later(seconds, self._on_hard_limit, seconds))
        else:
            self._bridge.killed = True
            self._ending = self._loop.create_task(self._end_at_hard_limit(seconds))
            self._cancel()

    async def _end_at_hard_limit(self, seconds: float) -> None:
        """Have Celery store the failure, and ack."""
        await Bridge(self._tell, self._assignment.timed_out, False, seconds)

    def _cancel(self) -> None:
        if self._is_running and not self._is_cancelled:
            self._is_cancelled = True
            self._bridge.kill()
            self._timers.append(shared_timers(self._loop).call_later(GRACE_SECONDS, self._abandon))

    def _abandon(self) -> None:
        log.warning("job_abandoned", call_id=self._assignment.call_id, grace_seconds=GRACE_SECONDS)
        self._bridge.abandon()

    def _tell(self, callback: Callable[..., object], *args: object) -> None:
        """Celery's callbacks write to Redis and may fail; the job and its slot must not be lost with them."""
        try:
            callback(*args)
        except Exception:
            log.exception("job_callback_failed", call_id=self._assignment.call_id, callback=repr(callback))


def _waits_for_nothing(accepted: Callable[[int, float], object]) -> bool:
    """Return whether Celery's request only notes that its call starts.

    One that was revoked meanwhile stores that, which may wait for Redis.
    """
    return getattr(getattr(accepted, "__self__", None), "_terminate_on_ack", _UNKNOWN) is None


def _as_failure(exc: BaseException) -> ExceptionInfo:
    """Return the failure as Celery's other pools do: an exception that is no `Exception` (`SystemExit` above all) counts as a lost worker."""
    if isinstance(exc, Exception):
        return ExceptionInfo((type(exc), exc, exc.__traceback__))
    return ExceptionInfo((WorkerLostError, WorkerLostError(repr(exc)), exc.__traceback__))


def _raise(exc: BaseException) -> NoReturn:
    raise exc


def _ignore(*_: object) -> None:
    """Do nothing."""
