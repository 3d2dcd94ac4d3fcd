"""Runs coroutines under Celery's own synchronous tracer, stepping through them in a greenlet or in the task that awaits them.

A job runs in a greenlet of its own: the tracer, and within it every step of the coroutine. Only the futures that the
coroutine waits for leave the greenlet, to the asyncio task that awaits the `Bridge`. Celery keeps its stacks by
greenlet, so `current_task` and `self.request` stay right across every await of the body. In tasks that the body starts
itself (`TaskGroup`, `create_task`) they are not set: take what you need from them before.

A coroutine that needs nothing of that can `walk`: it is interrupted alike, and costs neither a greenlet nor its stack.
"""

import asyncio
import contextlib
import functools
import inspect
import types
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, ParamSpec, Self, TypeVar

from celery.exceptions import SoftTimeLimitExceeded
from celery.utils.threads import LocalStack
from greenlet import getcurrent, greenlet
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from toolfleet_registry.errors import SettingsError
from toolfleet_registry.system.loggers import get_logger

log = get_logger(__name__)

T = TypeVar("T")

P = ParamSpec("P")
B = TypeVar("B")

_PAUSE_SECONDS = 1.0


class JobKilled(BaseException):
    """Unwinds the tracer of a job that is recorded as ended elsewhere: nothing is stored for it."""


def drive(steps: Generator[Any, Any, T], suspend: Callable[[Any], object]) -> T:
    """Step through a coroutine in this greenlet; `suspend` hands over what it waits for, and returns when that is done."""
    error: BaseException | None = None
    try:
        while True:
            try:
                waited_for = steps.send(None) if error is None else steps.throw(error)
            except StopIteration as stop:
                result: T = stop.value
                return result
            error = None
            try:
                suspend(waited_for)
            except JobKilled:
                _close(steps)
                raise
            except BaseException as exc:  # noqa: BLE001 - thrown into the coroutine in the next round
                error = exc
    finally:
        del error  # it refers to this frame, and this frame to it


def _close(steps: Generator[Any, Any, Any] | Coroutine[Any, Any, Any]) -> None:
    """End a coroutine. One that swallows even this stays behind, and so does what its cleanup raises."""
    with contextlib.suppress(Exception):
        steps.close()


class SoftLimitCancelled(SoftTimeLimitExceeded, CancelledError):
    """A job's soft limit, as its coroutine sees it: a time limit to catch, a cancellation to task groups and clients."""


def bridged(function: Callable[P, Coroutine[Any, Any, T]], *, is_limited: bool = True) -> Callable[P, T]:
    """Make an `async def` function one that Celery can call: `@app.task(bind=True)`, and below it `@bridged`.

    With `is_limited` the job's limits hold for all of it, else only inside `limits()`.

    It wraps the function and not the task's `__call__`, which `autoretry_for` would bypass. Outside of the pool, in an
    eager call or under another pool, the coroutine runs in an event loop of its own.
    """

    @functools.wraps(function)
    def body(*args: P.args, **kwargs: P.kwargs) -> T:
        current = getcurrent()
        if isinstance(current, _JobGreenlet):
            return current.bridge.run_body(function(*args, **kwargs), is_limited=is_limited)
        if _is_loop_running():
            raise RuntimeError(
                f"An event loop is running here: await {function.__qualname__}.__wrapped__(...) instead."
            )
        return asyncio.run(function(*args, **kwargs))

    # Celery checks a call's arguments against the signature, and does not look through `__wrapped__`.
    body.__dict__["__signature__"] = inspect.signature(function)
    return body


def limits(
    soft: float | None = None, hard: float | None = None
) -> AbstractContextManager[Callable[[BaseException], object]]:
    """Set these limits, in seconds, or the job's own, for a part of a body.

    Yields what raises an exception where that part waits.

    Such an exception must be a `CancelledError`, which HTTP clients let pass.
    """
    current = getcurrent()
    return current.bridge.limits(soft, hard) if isinstance(current, _JobGreenlet) else nullcontext(_ignore)


def in_bridge() -> bool:
    """Return whether this code runs in a job, where `await_` works."""
    return isinstance(getcurrent(), _JobGreenlet)


def await_(awaitable: Awaitable[T]) -> T:
    """Wait for `awaitable` from synchronous code in a job; the loop goes on meanwhile. Elsewhere: `RuntimeError`."""
    current = getcurrent()
    if isinstance(current, _JobGreenlet):
        return drive(awaitable.__await__(), current.suspend)
    if inspect.iscoroutine(awaitable):
        awaitable.close()
    raise RuntimeError("await_() works only in the code of a job that runs in the asyncio pool.")


def run_here(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine where Celery calls us: on the loop of the bridge that this code runs in, else on one of its own."""
    return await_(coroutine) if in_bridge() else asyncio.run(coroutine)


def require_greenlet_stacks() -> None:
    """Raise `SettingsError` if Celery's stacks are not kept by greenlet: every call would see another call's request."""
    stack = LocalStack()
    stack.push("ours")
    if greenlet(lambda: stack.top).switch() is not None:
        raise SettingsError("Celery keeps its request stacks by thread here: unset USE_FAST_LOCALS.")


class Bridge(Generic[T]):
    """Runs a synchronous function in a greenlet; awaited once, by the asyncio task that stands for the job.

    Or, made without one: several, one after the other, and coroutines as well, under the same interrupts (`cross`, `walk`).

    The methods that interrupt belong to the loop's thread; only `killed` may be set from anywhere.
    """

    __slots__ = ("_bodies", "_interrupt", "_start", "_task", "killed")

    def __init__(self, function: Callable[..., T] | None = None, *args: Any, **kwargs: Any) -> None:
        self.killed = False  # what the job still returns or raises is dropped: `JobKilled` leaves the bridge instead
        self._start = None if function is None else functools.partial(function, *args, **kwargs)
        self._task: asyncio.Task[Any] | None = None
        self._interrupt: BaseException | None = None
        self._bodies = 0

    def on_limits(self, soft: float | None, hard: float | None) -> None:
        """Hear which limits begin to hold, in seconds; `None` for the job's own."""

    @property
    def is_in_body(self) -> bool:
        """Whether the limits apply now: before the body, and after it, there is only something to record."""
        return self._bodies > 0

    def __await__(self) -> Generator[Any, None, T]:
        start, self._start = self._start, None
        if start is None:
            raise RuntimeError("This bridge has no function, or has been awaited.")
        return (yield from self._crossing(start))

    @types.coroutine
    def cross(self, function: Callable[[], B]) -> Generator[Any, None, B]:
        """Run a synchronous function in a greenlet, in which `await_` works."""
        return (yield from self._crossing(function))

    def _crossing(self, function: Callable[[], B]) -> Generator[Any, None, B]:
        self._task = asyncio.current_task()
        job = _JobGreenlet(function, self)
        waited_for = job.switch()
        while not job.dead:
            try:
                yield waited_for
            except GeneratorExit:  # the loop is closed, or the task dropped
                self._destroy(job)
                raise
            except BaseException as exc:  # noqa: BLE001 - any exception of the future is the coroutine's
                waited_for = job.throw(self._take_interrupt() or exc)
            else:
                # Code below may have swallowed the cancellation that was to carry the interrupt.
                interrupt = self._take_interrupt()
                waited_for = job.switch() if interrupt is None else job.throw(interrupt)
        result: B = waited_for
        return result

    @types.coroutine
    def walk(self, steps: Coroutine[Any, Any, B]) -> Generator[Any, None, B]:
        """Run a coroutine as `run_body` does, without a greenlet: limits hold where it says so, and `await_` does not work.

        Where it waits, an interrupt comes before all else.
        """
        self._task = asyncio.current_task()
        error: BaseException | None = None
        try:
            while True:
                try:
                    waited_for = steps.send(None) if error is None else steps.throw(error)
                except StopIteration as stop:
                    result: B = stop.value
                    return result
                except GeneratorExit as exc:  # its own: from here it would look as if the task had been dropped
                    raise RuntimeError("coroutine raised GeneratorExit") from exc
                error = None
                try:
                    yield waited_for
                except GeneratorExit:  # the loop is closed, or the task dropped
                    _close(steps)
                    raise
                except BaseException as exc:  # noqa: BLE001 - thrown into the coroutine in the next round
                    error = exc
                if self._interrupt is not None:  # it comes before all else
                    error = self._take_interrupt()
                if error is not None and isinstance(error, JobKilled):
                    _close(steps)
                    raise error
        except SoftLimitCancelled as exc:
            raise SoftTimeLimitExceeded(*exc.args).with_traceback(exc.__traceback__) from None
        finally:
            del error  # it refers to this frame, and this frame to it
            if self.killed:
                raise JobKilled from None

    def limits(self, soft: float | None = None, hard: float | None = None) -> Self:
        """Set limits as the function `limits` does, for a coroutine that walks, until the context is left."""
        self._bodies += 1
        self.on_limits(soft, hard)
        return self

    def __enter__(self) -> Callable[[BaseException], object]:
        return self.interrupt

    def __exit__(self, *exc_info: object) -> None:
        self._bodies -= 1

    def limit(self, seconds: float) -> bool:
        """Raise `SoftLimitCancelled` where the task body waits. False, and nothing happens, if no body is running."""
        return self.interrupt(SoftLimitCancelled(seconds))

    def interrupt(self, interruption: BaseException) -> bool:
        """Raise something where the task body waits. False, and nothing happens, if no body is running."""
        if self._bodies == 0:
            return False
        self._interrupt_with(interruption)
        return True

    def kill(self) -> None:
        """Cancel the coroutine, which may clean up; nothing that it does counts any more."""
        self.killed = True
        if self._task is not None:
            self._task.cancel()

    def abandon(self) -> None:
        """Leave a coroutine behind that swallows its cancellation, and end the job."""
        self.killed = True
        self._interrupt_with(JobKilled())

    def run_body(self, body: Coroutine[Any, Any, B], *, is_limited: bool) -> B:
        """Run a task body in the job's greenlet. A killed body raises `JobKilled`, regardless of its result."""
        if self.killed:
            body.close()
            raise JobKilled
        try:
            with self.limits() if is_limited else nullcontext():
                return await_(body)
        except SoftLimitCancelled as exc:
            # Celery must not see a cancellation, but the traceback still says where the body waited.
            raise SoftTimeLimitExceeded(*exc.args).with_traceback(exc.__traceback__) from None
        finally:
            if self.killed:
                raise JobKilled from None

    def _interrupt_with(self, interrupt: BaseException) -> None:
        if self._task is not None:
            self._interrupt = interrupt
            self._task.cancel()

    def _take_interrupt(self) -> BaseException | None:
        interrupt, self._interrupt = self._interrupt, None
        if interrupt is not None and self._task is not None:
            # The cancellation has done its work: later timeouts and task groups must not count it.
            self._task.uncancel()
        return interrupt

    def _destroy(self, job: "_JobGreenlet") -> None:
        self.killed = True
        with contextlib.suppress(JobKilled):
            job.throw(JobKilled())


class _JobGreenlet(greenlet):
    """The greenlet of one job, made in the greenlet that the loop runs in."""

    def __init__(self, run: Callable[[], Any], bridge: Bridge[Any]) -> None:
        super().__init__(run)
        self.bridge = bridge
        self.suspend: Callable[[Any], object] = getcurrent().switch
        self.gr_context = getcurrent().gr_context  # context variables are those of the asyncio task


def _ignore(*_: object) -> None:
    """Do nothing."""


def _is_loop_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def retry_blocking(act: Callable[[], T]) -> T:
    """Repeat `act` until no server is away, and return its result; doing it twice must do no harm. In a job only."""
    while True:
        try:
            return await_(asyncio.to_thread(act))
        except (OperationalError, RedisError, OSError) as exc:
            log.warning("not_done_yet", act=getattr(act, "__name__", "publish"), error=type(exc).__name__)
            await_(asyncio.sleep(_PAUSE_SECONDS))
