"""Implements Celery's worker pool on asyncio: thousands of calls in flight on the one thread of the worker, each within its limits.

The tracer, the requests and the consumer are Celery's own; a fetched call that simply ends with its result does without all of
them (`CallRun`). A task body that blocks holds up every other call and the connection to the broker; the watchdog
(`pool/bootsteps.py`) says which.
"""

import asyncio
import contextvars
import functools
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Self

from billiard.einfo import ExceptionInfo
from celery.app.trace import fast_trace_task
from celery.concurrency.base import BasePool
from celery.exceptions import WorkerLostError, WorkerShutdown, WorkerTerminate

from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import machine_clock
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.system.process import own_pid
from toolfleet_registry.system.shared_timers import SharedTimer, SharedTimers, shared_timers
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.call_task import END
from toolfleet_tasks.control.celery_worker import FetchedCall
from toolfleet_tasks.fairness import UNBOUNDED, FairSlots
from toolfleet_tasks.greenlet_bridge import Bridge, JobKilled, require_greenlet_stacks
from toolfleet_tasks.messages.envelope import TASK
from toolfleet_workers.pool.hub_loop import HubLoop

if TYPE_CHECKING:
    from kombu.asynchronous.hub import Hub
    from kombu.asynchronous.semaphore import LaxBoundedSemaphore

log = get_logger(__name__)

GRACE_SECONDS = 1.0  # for a cancelled coroutine to clean up, before it is left behind

_CLOSE_SECONDS = 5.0  # for the runner to give back its connections
_SETTLE_SECONDS = 15.0  # for Redis to answer what was written last; each of the lines' users has a limit of its own
_PAUSE_SECONDS = 0.1  # keeps a hub that fails at every turn from spinning

_REQUEST = 2  # where a message's headers are among the arguments of Celery's tracer


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


class PoolRun(Bridge[None]):
    """A job of the pool, which can be terminated at any time and is held to its limits.

    All of it runs in the bridge: what Celery stores as it is told of something may have to wait for Redis.
    """

    __slots__ = ("__weakref__", "_ending", "_hard_limit", "_is_cancelled", "_is_running", "_set", "_timers", "call_id")

    def __init__(self, call_id: str | None, timers: SharedTimers) -> None:
        super().__init__()
        self.call_id = call_id
        """Celery's id of the call."""
        self._timers = timers
        self._set: list[SharedTimer] = []
        self._hard_limit: float | None = None
        self._ending: asyncio.Task[None] | None = None
        self._is_running = False
        self._is_cancelled = False

    @property
    def assignment(self) -> Assignment:
        """The job as Celery's tracer runs it, and whom to tell of it."""
        raise NotImplementedError

    async def run(self) -> None:
        """Run it to its end and tell Celery, unless it is killed: then its end is recorded elsewhere."""
        raise NotImplementedError

    def _stop_timers(self) -> None:
        self._is_running = False
        for timer in self._set:
            timer.cancel()

    def terminate(self, signum: int | None = None) -> None:
        """Kill it. At any time, from any thread, and from a signal handler that interrupts the loop or this very job."""
        del signum
        self.killed = True  # at once: what the job comes to in the meantime must not be stored
        if not self._timers.loop.is_closed():
            self._timers.loop.call_soon_threadsafe(self._cancel)

    def _trace(self) -> None:
        assignment = self.assignment
        try:
            outcome = assignment.target(*assignment.args, **assignment.kwargs)
        except (WorkerShutdown, WorkerTerminate):
            raise
        except BaseException as exc:  # noqa: BLE001 - anything may escape the tracer; Celery hears of it here or never
            if not self.killed:
                self._tell(assignment.failed, _as_failure(exc))
        else:
            if not self.killed:
                self._tell(assignment.done, outcome)

    def on_limits(self, soft: float | None, hard: float | None) -> None:
        """Start the timers, once. One at a time: hardly any call needs its second."""
        if self._set:
            return
        if soft is None and hard is None:
            soft, hard = self.assignment.soft_limit, self.assignment.hard_limit
        self._hard_limit = hard
        if soft and (not hard or soft < hard):
            self._set.append(self._timers.call_later(soft, self._on_soft_limit, soft))
        elif hard:
            self._set.append(self._timers.call_later(hard, self._on_hard_limit, hard))

    def _on_soft_limit(self, seconds: float) -> None:
        hard = self._hard_limit
        if hard:
            self._set.append(self._timers.call_later(hard - seconds, self._on_hard_limit, hard))
        if not self.killed and self.limit(seconds):
            self._tell(self.assignment.timed_out, True, seconds)

    def _on_hard_limit(self, seconds: float) -> None:
        if self.killed:
            return
        if not self.is_in_body:
            # It waits for Redis: for the word that it may begin, or with a result, which is worth more than a failure
            # that would wait as well.
            self._set.append(self._timers.call_later(seconds, self._on_hard_limit, seconds))
        else:
            self.killed = True
            self._ending = self._timers.loop.create_task(self._end_at_hard_limit(seconds))
            self._cancel()

    async def _end_at_hard_limit(self, seconds: float) -> None:
        """Have Celery store the failure, and ack."""
        await Bridge(self._tell, self.assignment.timed_out, False, seconds)

    def _cancel(self) -> None:
        if self._is_running and not self._is_cancelled:
            self._is_cancelled = True
            self.kill()
            self._set.append(self._timers.call_later(GRACE_SECONDS, self._abandon))

    def _abandon(self) -> None:
        log.warning("job_abandoned", call_id=self.call_id, grace_seconds=GRACE_SECONDS)
        self.abandon()

    def _tell(self, callback: Callable[..., object], *args: object) -> None:
        """Celery's callbacks write to Redis and may fail; the job and its slot must not be lost with them."""
        try:
            callback(*args)
        except Exception:
            log.exception("job_callback_failed", call_id=self.call_id, callback=repr(callback))


class TaskRun(PoolRun):
    """Runs one assignment. Celery keeps a weak reference to it, to call `terminate`."""

    __slots__ = ("assignment",)
    assignment: Assignment

    def __init__(self, assignment: Assignment, timers: SharedTimers) -> None:
        super().__init__(assignment.call_id, timers)
        self.assignment = assignment

    async def run(self) -> None:
        """Implements `PoolRun.run`."""
        try:
            await self.cross(self._accept_and_trace)
        except (asyncio.CancelledError, JobKilled):
            if not self.killed:
                raise
        finally:
            self._stop_timers()
            if self._ending is not None:
                await self._ending

    def _accept_and_trace(self) -> None:
        self._tell(self.assignment.accepted, own_pid(), machine_clock.monotonic())
        # Only now: if it was revoked before, Celery has just stored that and acknowledged it, which nothing may cut short.
        self._is_running = True
        if not self.killed:  # it was not revoked before it began
            self._trace()


class CallRun(PoolRun):
    """Runs one fetched call without Celery's tracer, unless the call's end is anything but a stored result: a retry, say.

    Then the tracer runs after all, with a task body that ends as the call has. Implements `RunningTask`.
    `current_task` is not set.
    """

    __slots__ = ("_on_end", "app", "request")
    is_followed = False
    links = None

    def __init__(
        self, app: Any, call: FetchedCall, timers: SharedTimers, on_end: Callable[["CallRun"], object]
    ) -> None:
        super().__init__(call.id, timers)
        self.app, self.request, self._on_end = app, call, on_end

    def pass_on(self, text: str, result: ToolResult) -> None:
        """Implements `RunningTask.pass_on`: nothing follows it."""

    @property
    def assignment(self) -> Assignment:
        """Implements `PoolRun.assignment`, by Celery's request of the call, which is made for that."""
        request = self.request.celery
        args = (TASK, request.id, request.request_dict, request.body, None, None)
        callbacks = {"callback": request.on_success, "error_callback": request.on_failure}
        callbacks |= {"timeout_callback": request.on_timeout, "correlation_id": request.id}
        return Assignment.from_celery(fast_trace_task, args, {}, callbacks)

    async def run(self) -> None:
        """Implements `PoolRun.run`."""
        call, began_at = self.request, machine_clock.monotonic()
        try:
            if self.killed:  # it was revoked before it began
                return
            self._is_running = True
            try:
                text = await self.walk(self.app.run_call(self, call.body))
            except (WorkerShutdown, WorkerTerminate, JobKilled, GeneratorExit):
                raise
            except BaseException as exc:  # noqa: BLE001 - what it means is for the tracer to say
                await self._end_as(functools.partial(_raise, exc))
                return
            if call.is_stored:
                self._tell(call.succeed, text, machine_clock.monotonic() - began_at)
            else:
                await self._end_as(lambda: text)
        except (asyncio.CancelledError, JobKilled):
            if not self.killed:
                raise
        except Exception:
            log.exception("job_broken")
        finally:
            self._stop_timers()
            if self._ending is not None:
                await self._ending
            call.leave()
            self._on_end(self)

    async def _end_as(self, end: Callable[[], str]) -> None:
        self.request.celery.request_dict[END] = end
        await self.cross(self._trace)


def _as_failure(exc: BaseException) -> ExceptionInfo:
    """Return the failure as Celery's other pools do: an exception that is no `Exception` (`SystemExit` above all) counts as a lost worker."""
    if isinstance(exc, Exception):
        return ExceptionInfo((type(exc), exc, exc.__traceback__))
    return ExceptionInfo((WorkerLostError, WorkerLostError(repr(exc)), exc.__traceback__))


def _raise(exc: BaseException) -> NoReturn:
    raise exc


def _ignore(*_: object) -> None:
    """Do nothing."""


class AsyncioPool(BasePool):
    """Set by `worker_pool = "toolfleet_workers.pool.asyncio_pool:AsyncioPool"`; for brokers with an event loop, Redis and RabbitMQ.

    A soft limit is raised where the body waits, through task groups and HTTP clients, too. After a hard limit or
    `revoke(terminate=True)` the coroutine is cancelled, and left behind if it does not end. A warm shutdown waits
    `app.settings.drain_seconds` for running calls. Those that are cut off then, or by a cold shutdown, leave their
    messages unacked, and Celery puts them back into their queues as it closes the connection. At the end the pool
    awaits `app.runner.aclose()`, if there is such a method, on the loop that the calls ran on.
    """

    uses_semaphore = True
    signal_safe = False
    limit: int
    hub_loop: HubLoop
    """The loop that calls run on."""
    autoscaler: Any = None
    """Celery's, if the worker has one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._running: dict[PoolRun, asyncio.Task[None]] = {}
        self._waiting = WaitingRuns()
        self._most_running = 0
        self._completed = 0
        self._hub: Hub | None = None
        self._is_stopping = False

    def on_start(self) -> None:
        """Make the loop. Raises `SettingsError` where the pool cannot work."""
        if self.options.get("threads"):
            raise SettingsError("AsyncioPool needs a broker with an event loop: Redis or RabbitMQ.")
        require_greenlet_stacks()
        settings: Settings = self.app.settings
        self._drain_seconds = settings.drain_seconds
        self.hub_loop = HubLoop()
        self._timers = shared_timers(self.hub_loop.loop)
        self.hub_loop.loop.set_exception_handler(_log_loop_error)
        if settings.redis_url is not None:
            knows_calls = settings.broker == settings.redis_url
            bounds = settings.module_concurrency if knows_calls else None
            here = worker_runtime.start(
                self.hub_loop.loop, broker=settings.broker or "", master=settings.sentinel_master, bounds=bounds
            )
            if settings.has_redis_broker:  # the transport is ours, and counts
                self._waiting.slots = here.slots
                self._slots.initial_value = self._slots.value = UNBOUNDED  # it knows nothing of queues
                here.capacity = self.capacity
                # What a job has bound does not reach the one that takes its slot.
                here.slots.on_capacity = functools.partial(contextvars.copy_context().run, self._fill)
                here.slots.resize(self.limit)

    def register_with_event_loop(self, loop: "Hub") -> None:
        """Attach the hub's loop. Called by Celery at the start and after every reconnect."""
        self._hub = loop
        self.hub_loop.attach(loop)

    def on_apply(
        self,
        target: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> TaskRun:
        """Run `target` as soon as there is a slot. Options as in `BasePool.apply_async`; limits default to the worker's."""
        limits = {name: options.get(name) or self.options.get(name) for name in ("soft_timeout", "timeout")}
        return self._take(Assignment.from_celery(target, args or (), kwargs or {}, {**options, **limits}))

    def run_call(self, call: FetchedCall) -> bool:
        """Run a fetched call, whose message has its slot, from the loop's next turn on. False: the pool takes none now."""
        if self._state != self.RUN:
            return False
        job = CallRun(self.app, call, self._timers, self._on_end)
        call.run = weakref.ref(job)
        self._begin(job)
        return True

    def wait_for(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Return when it has ended, while running calls go on: for Celery, when it has no hub to turn. Raises what it raises."""
        self.hub_loop.run(coroutine)

    def flush(self) -> None:
        """Drop runs that are not started: the connection that brought them is gone, and the broker will deliver them again."""
        self._waiting.clear()

    def terminate_job(self, pid: int, signal: int | None = None) -> None:
        """Do nothing: there is one process for all, and Celery's request terminates the job as well."""

    def grow(self, n: int = 1) -> None:
        """Allow `n` more calls in flight."""
        self._resize(self.limit + n)
        if self._waiting.slots is None:
            slots = self._slots
            slots.initial_value += n
            for _ in range(n):  # its own `grow` gives each new slot away twice
                slots.release()
        self._fill()

    def shrink(self, n: int = 1) -> None:
        """Allow `n` fewer calls in flight; running ones are left to end."""
        self._resize(max(self.limit - n, 0))
        if self._waiting.slots is None:
            self._slots.shrink(n)

    def on_stop(self) -> None:
        """Warm shutdown: let running calls end."""
        if self._state == self.RUN:
            return  # a signal handler's cold shutdown: the calls are killed by now, and `on_terminate` will follow
        self._stop(self._drain_seconds)

    def on_terminate(self) -> None:
        """Cold shutdown: cut running calls off."""
        self._stop(0)

    @property
    def in_flight(self) -> int:
        """The number of running calls. Thread-safe."""
        return len(self._running)

    def capacity(self) -> int:
        """Return how many calls may come to be in flight: the pool grows when it has more than it may run."""
        return self.limit if self.autoscaler is None else max(self.limit, self.autoscaler.max_concurrency)

    def _get_info(self) -> dict[str, Any]:
        info: dict[str, Any] = super()._get_info()
        return info | {
            "in-flight": len(self._running),
            "max-in-flight": self._most_running,
            "completed": self._completed,
        }

    @property
    def _slots(self) -> "LaxBoundedSemaphore":
        slots: LaxBoundedSemaphore = self.options["semaphore"]
        return slots

    def _resize(self, limit: int) -> None:
        self.limit = limit
        self.hub_loop.wake()  # Celery tells the broker of it in a turn of the hub
        if self._waiting.slots is not None:
            self._waiting.slots.resize(self.capacity())

    def _take(self, assignment: Assignment) -> TaskRun:
        # Celery's semaphore guards the slots, but forgets the running calls when the broker's connection is lost.
        job = TaskRun(assignment, self._timers)
        self._waiting.add(job, assignment.args)
        self._fill()
        return job

    def _fill(self) -> None:
        while self.active and (job := self._waiting.next(is_free=len(self._running) < self.limit)) is not None:
            # Called in today's context, not in the job's: what a job has bound does not reach the one that takes its slot.
            self._begin(job).add_done_callback(functools.partial(self._end, job))

    def _begin(self, job: PoolRun) -> asyncio.Task[None]:
        task = self._running[job] = self.hub_loop.loop.create_task(job.run(), name=job.call_id)
        if (running := len(self._running)) > self._most_running:
            self._most_running = running
        return task

    def _on_end(self, job: PoolRun) -> None:
        del self._running[job]
        self._completed += 1
        if self._is_stopping:
            self.hub_loop.wake()  # the drain has the hub wait for this

    def _end(self, job: TaskRun, task: asyncio.Task[None]) -> None:
        self._on_end(job)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):  # a worker's shutdown is on its way up already
            log.error("job_broken", exc_info=error)
        self._fill()
        slots = self._slots
        if slots.value < slots.initial_value:
            slots.release()

    def _stop(self, seconds: float) -> None:
        if self._is_stopping:
            return  # a signal handler has interrupted the wait below; what it killed ends there
        self._is_stopping = True
        here = worker_runtime.current()
        for leave in here.leaving if here is not None else ():
            leave()
        if self._hub is not None:
            self.hub_loop.attach(self._hub)  # a hub that has lost its connection has a new poller
        self._drain(seconds)
        if self._running:
            log.warning("calls_cut_off", calls=len(self._running), drain_seconds=seconds)
            for job in tuple(self._running):
                job.terminate()
            self._drain(2 * GRACE_SECONDS)
        self.hub_loop.run(_close_runner(getattr(self.app, "runner", None)))
        self.hub_loop.run(_within(_SETTLE_SECONDS, worker_runtime.stop(), "lines_not_closed"))
        self.hub_loop.close()

    def _drain(self, seconds: float) -> None:
        """Let running calls end, and Celery ack them, for at most `seconds`."""
        ends_at = machine_clock.monotonic() + seconds
        self.hub_loop.loop.call_later(seconds, self.hub_loop.wake)
        while self._running and (left := ends_at - machine_clock.monotonic()) > 0:
            if self._hub is None:
                self.hub_loop.run(_wait(self._running.values(), left))
            else:
                self._turn(self._hub)
        if self._hub is not None:
            self.hub_loop.wake()
            self._turn(self._hub)  # the last acks, before what closes takes its time

    def _turn(self, hub: "Hub") -> None:
        try:
            hub.run_once()
        except Exception as exc:  # noqa: BLE001 - a callback of a connection that breaks; the calls can still end well
            log.warning("drain_disturbed", error=repr(exc))
            self.hub_loop.run(asyncio.sleep(_PAUSE_SECONDS))


async def _wait(tasks: Iterable[asyncio.Task[None]], seconds: float) -> None:
    await asyncio.wait(tasks, timeout=seconds)


async def _close_runner(runner: object) -> None:
    aclose: Callable[[], Coroutine[Any, Any, None]] | None = getattr(runner, "aclose", None)
    if aclose is None:
        return
    await _within(_CLOSE_SECONDS, aclose(), "runner_not_closed")


async def _within(seconds: float, closing: Coroutine[Any, Any, None], complaint: str) -> None:
    """Wait for something to close; what takes longer is left to the end of the loop."""
    task = asyncio.create_task(closing)
    await asyncio.wait({task}, timeout=seconds)
    if not task.done():
        log.warning(complaint, waited_seconds=seconds)
    elif not task.cancelled() and (error := task.exception()):
        log.error(complaint, exc_info=error)


def _log_loop_error(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # Not what else there is: a future shows its result.
    kinds = {name: type(value).__name__ for name, value in context.items() if name not in {"message", "exception"}}
    log.error("loop_error", message=context.get("message"), **kinds, exc_info=context.get("exception"))


class WaitingRuns:
    """Jobs in their order.

    With `slots`, a job has been given its slot as its message was taken, unless it was put off until now.

    Those that were put off are in their queues' order, and block no others.
    """

    def __init__(self) -> None:
        self.slots: FairSlots | None = None
        self._queues = dict[str, deque[tuple[str, TaskRun]]]()  # with the tags of their messages

    def add(self, job: TaskRun, args: Sequence[Any]) -> None:
        """Have a job wait; `args` are those of its tracer."""
        tag = queue = ""
        if self.slots is not None:
            headers = args[_REQUEST]
            tag = headers["properties"]["delivery_tag"]
            if self.slots.is_deferred(tag):
                queue = headers["delivery_info"]["routing_key"]
        waiting = self._queues.get(queue)
        if waiting is None:
            waiting = self._queues[queue] = deque()
        waiting.append((tag, job))

    def next(self, *, is_free: bool) -> TaskRun | None:
        """Return the next job that may begin, if there is one; `is_free`: whether the pool runs fewer than it may."""
        for queue, waiting in self._queues.items():
            tag, job = waiting[0]
            if self.slots.begin(tag, queue) if self.slots is not None else is_free:
                waiting.popleft()
                if not waiting:
                    del self._queues[queue]
                return job
        return None

    def clear(self) -> None:
        """Forget all of them."""
        self._queues.clear()
