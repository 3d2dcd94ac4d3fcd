"""Starts a worker's work other than consuming: it says when it is ready, that it lives, and what blocks its event loop."""

import asyncio
import contextlib
import faulthandler
import functools
import gc
import signal
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable
from importlib.metadata import version
from typing import Any
from weakref import WeakKeyDictionary

from celery import Celery, bootsteps, signals
from celery.platforms import EX_FAILURE
from celery.worker import state
from redis.exceptions import RedisError

from toolfleet_registry import metric_families, metrics
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.directory.watch import ModuleWatch
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.metrics import Exposition, Sample
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import machine_clock
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.system.process import this_process
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.broker import make_queue
from toolfleet_tasks.clock import ClockWatch
from toolfleet_tasks.control.probes import STILL_SECONDS, Probes
from toolfleet_tasks.control.server_check import insist_on_fit
from toolfleet_tasks.control.startup_checks import Presence
from toolfleet_tasks.greenlet_bridge import run_here
from toolfleet_tasks.operations.process_metrics import MetricsEndpoint, ProcessSampler
from toolfleet_tasks.presence import ConsumerNotes, LaneCapacity
from toolfleet_tasks.queue_states import QueueStates, follow_queue_states, read_states_now
from toolfleet_tasks.queues import lane_of, queue_of
from toolfleet_tasks.turns import WorkerTurns
from toolfleet_workers.execution.running_task import calls_held
from toolfleet_workers.pool.asyncio_pool import AsyncioPool
from toolfleet_workers.pool.consumption import ConsumedNames, Consumption, ServedModules
from toolfleet_workers.pool.hub_loop import HubLoop

log = get_logger(__name__)

_STALL_SECONDS = 5.0  # without a tick of the loop, which is longer than a busy machine pauses
_CHECKS_PER_STALL = 10

_PATIENCE_SECONDS = 1.0  # at the start: Redis answers within a millisecond, or is away

_COLLECT_AFTER = (50_000, 20, 20)  # objects, then collections of the generation below
_FIRST_TICK_SECONDS = 0.02  # any time will do, as long as it is not over within the first tick


class Watchdog:
    """Logs `loop_stalled`, with the blocked thread's stack and its call, once a stall, and `loop_recovered` after it.

    It watches the loop of the thread that makes it, until that loop is closed. Code in C that keeps the interpreter's lock blocks
    the watchdog, too: then the blocked thread's traceback goes to the standard error while it lasts, at SIGALRM, and `loop_stalled`,
    with `keeps_interpreter`, as soon as it gives the lock up. The thread shows its own stack: to look at another one's while it
    runs, as after a pause of the whole process, may crash it.
    """

    def __init__(self, loop: HubLoop, *, stall_seconds: float) -> None:
        self._loop = loop
        self._stall_seconds = stall_seconds
        self._pause_seconds = stall_seconds / _CHECKS_PER_STALL
        self._thread_id = threading.get_ident()
        self._stalled_since: float | None = None
        self._checked_at = machine_clock.monotonic()

    def start(self) -> None:
        """Watch from now on. To be called from the main thread, where the signal arrives."""
        if sys.__stderr__ is not None:  # not Celery's, which is the log
            faulthandler.register(signal.SIGALRM, file=sys.__stderr__, all_threads=False)
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def read(self) -> None:
        """Check the loop once."""
        now, busy_since = machine_clock.monotonic(), self._loop.busy_since
        silent, self._checked_at = now - self._checked_at, now
        if self._stalled_since is not None and busy_since != self._stalled_since:
            log.warning("loop_recovered", seconds=round(now - self._stalled_since, 1))
            self._stalled_since = None
        if busy_since is not None and self._stalled_since is None and now - busy_since >= self._stall_seconds:
            self._stalled_since = busy_since
            log.error(
                "loop_stalled",
                seconds=round(now - busy_since, 1),
                call_id=self._loop.current_task,
                keeps_interpreter=silent >= self._stall_seconds,
                stack=self._stack(),
            )

    def _run(self) -> None:
        try:
            while not self._loop.is_closed:
                self._expect_next_check()
                time.sleep(self._pause_seconds)
                self.read()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _expect_next_check(self) -> None:
        """Have the stack shown without the lock, unless we come back here before that."""
        if sys.__stderr__ is not None:
            signal.setitimer(signal.ITIMER_REAL, self._stall_seconds + self._pause_seconds)

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._thread_id)  # noqa: SLF001 - documented, in spite of its name
        return "".join(traceback.format_stack(frame))


class QueuePauses:
    """The queue pauses of one worker.

    `known`: the present modules, of which added ones may be in another lane than the settings say.

    A call that was already fetched is not started all the same: the ledger says so where it is claimed.
    """

    def __init__(self, settings: Settings, consumption: Consumption, known: KnownModules | None) -> None:
        self._settings = settings
        self._consumption = consumption
        self._known = known

    def begin(self) -> None:
        """Have the worker begin without the queues that are paused; while Redis does not say which, without any module's."""
        if self._settings.redis_url is None:
            return
        try:
            states = read_states_now(self._settings, seconds=_PATIENCE_SECONDS)
        except (RedisError, OSError) as exc:
            log.warning("queue_states_not_read", error=str(exc) or repr(exc))
            self._consumption.begin_paused(_is_modules)
            return
        if states.stored:
            self._consumption.begin_paused(lambda name: self._is_paused(states, name))

    async def keep(self) -> None:
        """Follow them until cancelled."""
        await follow_queue_states(self._settings, self._follow)

    def _follow(self, states: QueueStates) -> None:
        def is_paused(name: str) -> bool:
            return self._is_paused(states, name)

        self._consumption.pause(is_paused)
        if (here := worker_runtime.current()) is not None:
            here.is_paused = is_paused

    def _is_paused(self, states: QueueStates, name: str) -> bool:
        if not states.stored or not _is_modules(name):
            return False
        module = name.removeprefix(queue_of(""))
        settings = self._settings if self._known is None else self._known.settings
        return states.is_paused(module, lane_of(module, settings))


def _is_modules(name: str) -> bool:
    return name.startswith(queue_of(""))


class Readiness(bootsteps.StartStopStep):
    """Prints `toolfleet worker ready lane=<lane>` once, when the worker has asked the broker for its first messages.

    And when its runner is prepared: it knows who may use which tool, and what operators have closed.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)
    is_announced = False

    def register_with_event_loop(self, consumer: Any, hub: Any) -> None:
        """Announce readiness. Called by Celery just before it consumes, at the start and after every reconnect."""
        if (notes := getattr(consumer.controller, "consumer_notes", None)) is not None:
            notes.wake()
        if not self.is_announced:
            self.is_announced = True
            # The hub's first tick runs callbacks, then timers, then asks for messages: a timer that a callback sets
            # is due in the second.
            hub.call_soon(hub.call_later, _FIRST_TICK_SECONDS, _announce_when_prepared, consumer)


class ReentrantEvents(bootsteps.StartStopStep):
    """Lets a signal's handler send events while the loop is sending others.

    A cold shutdown says of each call that it is cancelled, out of the handler. It would wait for ever for Celery's lock, which
    the code that it has interrupted holds.
    """

    requires = ("celery.worker.consumer.events:Events",)

    def start(self, parent: Any) -> None:
        """Make the dispatcher's lock reentrant. Called by Celery after each connect, with a new dispatcher."""
        if parent.event_dispatcher is not None:
            parent.event_dispatcher.mutex = threading.RLock()


class Attendance(bootsteps.StartStopStep):
    """Keeps noting at Redis that the worker lives, with which transport and how many slots, and what time it is, until it has ended."""

    requires = ("celery.worker.components:Pool",)

    def start(self, parent: Any) -> None:
        """Start the notes.

        Called by Celery when the pool has started. Ends the process if only our pool could renew its leases.
        """
        if not isinstance(parent.pool, AsyncioPool):  # nothing would renew the leases of its calls
            raise SystemExit("Calls need the asyncio pool: leave -P out.")
        settings: Settings = parent.app.settings
        presence, slots = Presence(settings), LaneCapacity(settings, count=parent.concurrency)
        consumption = Consumption(parent)
        parent.consumer_notes = notes = ConsumerNotes(settings, ConsumedNames(parent, consumption), calls_held)
        pauses = QueuePauses(settings, consumption, getattr(parent.app, "modules", None))
        pauses.begin()
        health_of(parent.app).consumption = consumption
        watch = ClockWatch(settings, on_reading=consumption.stop_if)
        served: ServedModules | None = getattr(parent.app, "served_modules", None)
        follow = ModuleWatch(settings, KnownModules(settings)).keep
        if served is not None:
            served.consume, follow = functools.partial(_consume, consumption), served.keep
        hub_loop: HubLoop = parent.pool.hub_loop
        kept = [presence.keep, slots.keep, watch.keep, follow, pauses.keep]
        if settings.redis_url is not None:
            kept.append(worker_runtime.here().part(WorkerTurns, parent.app).keep)
        if not getattr(parent, "has_checked_redis", False):  # it was away at the start
            kept.append(functools.partial(insist_on_fit, settings))
        parent.pool.autoscaler = getattr(parent, "autoscaler", None)
        self._keeping = hub_loop.loop.create_task(_attend(kept, hub_loop.wake), name="toolfleet-presence")
        notes.start()
        self._ending = ending = ShutdownReason()
        signals.worker_shutting_down.connect(ending.on_shutting_down, sender=parent.hostname)
        # After everything else: a worker that drains still lives.
        call_when_ended(parent, lambda: run_here(_part(presence, slots, served)))
        call_when_ended(parent, lambda: notes.leave(restarts=ending.is_restart))


class LoopWatchdog(bootsteps.StartStopStep):
    """Watches the pool's loop until the pool closes it."""

    requires = (Attendance,)

    def start(self, parent: Any) -> None:
        """Start the watchdog. Called by Celery when the pool has started, on the pool's thread."""
        Watchdog(parent.pool.hub_loop, stall_seconds=_STALL_SECONDS).start()


class ShutdownReason:
    """The reason of a worker's end.

    SIGTERM is what supervisors send before a restart; Ctrl-C, and a cold end, are final.
    """

    is_restart = False

    def on_shutting_down(self, sig: str = "", how: str = "", **_: object) -> None:
        """Note the reason. Called by Celery when the worker is told to end."""
        self.is_restart = (sig, how) == ("SIGTERM", "Warm")


class AnsweredProbes(bootsteps.StartStopStep):
    """Answers `/livez` and `/readyz` until the worker has ended."""

    requires = ("celery.worker.components:Pool",)

    def start(self, parent: Any) -> None:
        """Start the probes. Called by Celery when the pool has started."""
        settings: Settings = parent.app.settings
        health = health_of(parent.app)
        health.worker, health.has_redis_broker = parent, settings.has_redis_broker
        probes = Probes(getattr(parent.app, "lane", "all"), settings, live=health.stuck, ready=health.unready)
        probes.start()
        call_when_ended(parent, probes.leave)


def install(app: Celery) -> None:
    """Have every worker that is started from `app` do all of it."""
    steps: Any = app.steps
    steps["consumer"].add(ReentrantEvents)
    steps["consumer"].add(Readiness)
    steps["worker"].add(Attendance)
    steps["worker"].add(AnsweredProbes)
    steps["worker"].add(LoopWatchdog)
    steps["worker"].add(AnsweredMetrics)


async def _attend(kept: Iterable[Callable[[], Awaitable[None]]], wake_hub: Callable[[], None]) -> None:
    try:
        await asyncio.gather(*(keep() for keep in kept))
    except SettingsError as exc:
        log.critical("worker_refused", reason=str(exc))
        state.should_stop = EX_FAILURE  # Celery looks at it in every turn of its hub
        wake_hub()


async def _part(presence: Presence, slots: LaneCapacity, served: ServedModules | None) -> None:
    more = [] if served is None else [served.leave()]
    await asyncio.gather(presence.check_out(), slots.leave(), *more)


def _consume(consumption: Consumption, modules: Iterable[str]) -> None:
    consumption.add(make_queue(queue_of(module)) for module in modules)


def _announce_when_prepared(consumer: Any) -> None:
    app, prepare = consumer.app, getattr(consumer.app.runner, "prepare", None)
    served: ServedModules | None = getattr(consumer.app, "served_modules", None)
    if prepare is None:
        _announce(app)
        return
    preparing = consumer.pool.hub_loop.loop.create_task(_prepare(prepare, served), name="toolfleet-prepare")
    preparing.add_done_callback(functools.partial(_announce_prepared, app))


async def _prepare(prepare: Callable[[], Awaitable[None]], served: ServedModules | None) -> None:
    """Know the modules, and then what they offer."""
    if served is not None:
        await served.prepare()
    await prepare()


def _announce_prepared(app: Celery, preparing: "asyncio.Task[None]") -> None:
    if preparing.cancelled():
        return
    if (
        error := preparing.exception()
    ) is not None:  # a defect of ours: it works, and each call waits until it is known
        log.error("worker_not_prepared", exc_info=error)
        return
    _announce(app)


def _announce(app: Celery) -> None:
    _spare_the_collector()
    health_of(app).is_prepared = True
    # Past Celery's redirection of `sys.stdout` into the log; a reader that has gone is no reason to end.
    with contextlib.suppress(OSError, ValueError):
        print(f"toolfleet worker ready lane={getattr(app, 'lane', 'all')}", file=sys.__stdout__, flush=True)


def _spare_the_collector() -> None:
    """Keep Python from going over everything that a worker has, again and again, for cycles that calls hardly leave.

    Measured with calls of 0 ms: a sixth of the worker's time. A thousand calls in flight are some 100,000 objects.
    """
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)


class WorkerHealth:
    """The health of one worker, thread-safe. `is_prepared` is set when it has asked for its first messages."""

    def __init__(self) -> None:
        self.is_prepared = False
        self.worker: Any = None
        """Celery's, once its pool runs; so what is below."""
        self.consumption: Consumption | None = None
        self.has_redis_broker = True

    def stuck(self) -> str | None:
        """Return why it is not alive: its loop stands still. Waiting for a broker that is away is part of its work.

        With RabbitMQ it does that on the loop, for as long as it takes: of such a worker only that it answers is known.
        """
        pool, consumer = self.worker.pool, self.worker.consumer
        if not self.has_redis_broker or getattr(consumer, "waits_for_broker", False):
            return None
        busy_since = pool.hub_loop.busy_since
        still = 0.0 if busy_since is None else machine_clock.monotonic() - busy_since
        return None if still < STILL_SECONDS else f"the worker's loop has stood still for {still:.0f} s"

    def unready(self) -> str | None:
        """Return why it takes no calls."""
        # Exit codes, of which 0 is one.
        if any(code is not None and code is not False for code in (state.should_stop, state.should_terminate)):
            return "the worker is ending"
        consumer = self.worker.consumer
        if not self.is_prepared or consumer is None or consumer.task_consumer is None:
            return "the worker does not take calls yet"
        if self.consumption is not None and self.consumption.is_stopped:
            return "the worker takes no calls, for its machine's clock is too far off"
        return None


def health_of(app: Celery) -> WorkerHealth:
    """Return the health of the worker which is started from `app`."""
    if app not in _known:
        _known[app] = WorkerHealth()
    return _known[app]


def call_when_ended(worker: Any, leave: Callable[[], object]) -> None:
    """Call `leave` when this worker of Celery's has ended, and no other one. It is kept for as long as the worker."""

    def on_shutdown(**_: object) -> None:
        leave()

    # The signal, which is the whole interpreter's, holds no receiver itself.
    worker.__dict__.setdefault("on_ended", []).append(on_shutdown)
    signals.worker_shutdown.connect(on_shutdown, sender=worker)


_known: WeakKeyDictionary[Celery, WorkerHealth] = WeakKeyDictionary()


class AnsweredMetrics(bootsteps.StartStopStep):
    """Answers `GET /metrics` until the worker has ended."""

    requires = (Attendance,)

    def include_if(self, parent: Any) -> bool:
        """Return whether a port is set: a worker without one counts nothing, and loads nothing for it."""
        return parent.app.settings.metrics_port is not None

    def start(self, parent: Any) -> None:
        """Start the endpoint.

        Called by Celery when the pool has started, on the pool's thread. Ends the process if the library is missing.
        """
        settings: Settings = parent.app.settings
        recorder = metrics.start()
        recorder.gauges.append(WorkerGauges(parent, settings))
        try:
            endpoint = MetricsEndpoint(settings, Exposition(recorder).text)
        except SettingsError as exc:
            raise SystemExit(str(exc)) from exc
        here = worker_runtime.current()
        to_redis = None if here is None else here.to(str(settings.redis_url), master=settings.sentinel_master)
        keep = ProcessSampler(recorder, to_redis).keep()
        self._sampling = parent.pool.hub_loop.loop.create_task(keep, name="toolfleet-metrics")
        endpoint.start()
        call_when_ended(parent, endpoint.close)


class WorkerGauges:
    """The gauges of one worker. `worker` is Celery's. Called from any thread."""

    def __init__(self, worker: Any, settings: Settings) -> None:
        self._worker, self._process = worker, this_process()
        transport = "redis" if settings.has_redis_broker else "rabbitmq"
        self._info = settings.lane, transport

    def __call__(self) -> Iterable[Sample]:
        """Return the samples."""
        yield Sample(metric_families.WORKER_INFO, 1, (*self._info, _release()))
        yield Sample(metric_families.WORKER_READY, float(health_of(self._worker.app).unready() is None))
        yield Sample(metric_families.WORKER_LEASES, calls_held(self._process).total())
        pool: AsyncioPool = self._worker.pool
        yield Sample(metric_families.WORKER_IN_FLIGHT, pool.in_flight)
        yield Sample(metric_families.WORKER_SLOTS, pool.capacity())
        yield Sample(metric_families.LOOP_STALLED, pool.hub_loop.stalled_seconds)


@functools.cache
def _release() -> str:
    return version("toolfleet")  # reads the package's metadata: not at the start
