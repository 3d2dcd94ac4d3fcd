"""Starts what a worker does besides consuming: it says when it is ready, that it lives, and what blocks its event loop."""

import asyncio
import contextlib
import functools
import gc
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from celery import Celery, bootsteps, signals
from celery.platforms import EX_FAILURE
from celery.worker import state

from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.directory.watch import ModuleWatch
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import Settings, load_settings
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.system.process import this_process
from toolfleet_tasks.aio.greenlet_bridge import run_here
from toolfleet_tasks.broker.kombu_queues import make_queue
from toolfleet_tasks.clock.watch import ClockWatch
from toolfleet_tasks.control.probes import Probes
from toolfleet_tasks.control.server_check import insist_on_fit
from toolfleet_tasks.ports import ServedModulesPort
from toolfleet_tasks.presence.consumers import ConsumerNotes
from toolfleet_tasks.presence.lane_capacity import LaneCapacity
from toolfleet_tasks.presence.transport_check import Presence
from toolfleet_tasks.queues import queue_of
from toolfleet_tasks.worker.ledgers import calls_held
from toolfleet_workers.pool.asyncio_pool import AsyncioPool
from toolfleet_workers.pool.consumption import ConsumedNames, Consumption
from toolfleet_workers.pool.health import call_when_ended, health_of
from toolfleet_workers.pool.queue_pauses import QueuePauses
from toolfleet_workers.pool.watchdog import Watchdog

log = get_logger(__name__)

_COLLECT_AFTER = (50_000, 20, 20)  # objects, then collections of the generation below
_FIRST_TICK_SECONDS = 0.02  # any time will do, as long as it is not over within the first tick


class Readiness(bootsteps.StartStopStep):  # type: ignore[misc] # Celery ships no types
    """Prints `toolfleet worker ready lane=<lane>` once, when the worker has asked the broker for its first messages.

    And when its runner is prepared: it knows who may use which tool, and what operators have closed.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)
    is_announced = False

    def register_with_event_loop(self, consumer: Any, hub: Any) -> None:
        """Called by Celery just before it consumes, at the start and after every reconnect."""
        if (notes := getattr(consumer.controller, "consumer_notes", None)) is not None:
            notes.wake()
        if not self.is_announced:
            self.is_announced = True
            # The hub's first tick runs callbacks, then timers, then asks for messages: a timer that a callback sets
            # is due in the second.
            hub.call_soon(hub.call_later, _FIRST_TICK_SECONDS, _announce_when_prepared, consumer)


class ReentrantEvents(bootsteps.StartStopStep):  # type: ignore[misc] # as above
    """Lets a signal's handler send events while the loop is sending others.

    A cold shutdown says of each call that it is cancelled, out of the handler. It would wait for ever for Celery's lock, which
    the code that it has interrupted holds.
    """

    requires = ("celery.worker.consumer.events:Events",)

    def start(self, parent: Any) -> None:
        """Called by Celery after each connect, with a new dispatcher."""
        if parent.event_dispatcher is not None:
            parent.event_dispatcher.mutex = threading.RLock()


class LoopWatchdog(bootsteps.StartStopStep):  # type: ignore[misc] # Celery ships no types
    """Watches the pool's loop, with `app.settings.loop_stall_seconds`, until the pool closes it."""

    requires = ("celery.worker.components:Pool",)

    def include_if(self, parent: Any) -> bool:
        """Other pools have no loop."""
        return isinstance(parent.pool, AsyncioPool)

    def start(self, parent: Any) -> None:
        """Called by Celery when the pool has started, on the pool's thread."""
        settings = getattr(parent.app, "settings", None) or load_settings()
        Watchdog(parent.pool.hub_loop, stall_seconds=settings.loop_stall_seconds).start()


class Attendance(bootsteps.StartStopStep):  # type: ignore[misc] # Celery ships no types
    """Keeps noting at Redis that the worker lives, with which transport and how many slots, and what time it is, until it has ended."""

    requires = ("celery.worker.components:Pool",)

    def start(self, parent: Any) -> None:
        """Called by Celery when the pool has started. Ends the process if only our pool could renew its leases."""
        settings = getattr(parent.app, "settings", None) or load_settings()
        presence, slots = Presence(settings), LaneCapacity(settings, count=parent.concurrency)
        consumption = Consumption(parent)
        parent.consumer_notes = notes = ConsumerNotes(settings, ConsumedNames(parent, consumption), calls_held)
        pauses = QueuePauses(settings, consumption, getattr(parent.app, "modules", None))
        pauses.begin()
        health_of(parent.app).consumption = consumption
        watch = ClockWatch(settings, on_reading=consumption.stop_if)
        served: ServedModulesPort | None = getattr(parent.app, "served_modules", None)
        # A pool without a loop has its calls run in other processes, which would not hear of modules that are added.
        follow = ModuleWatch(settings, KnownModules(settings)).keep
        if served is not None and isinstance(parent.pool, AsyncioPool):
            served.consume, follow = functools.partial(_consume, consumption), served.keep
        attend = functools.partial(_attend, settings, presence, slots, watch, follow, pauses)
        if isinstance(parent.pool, AsyncioPool):
            parent.pool.autoscaler = getattr(parent, "autoscaler", None)
            self._keeping = parent.pool.hub_loop.loop.create_task(attend(), name="toolfleet-presence")
        elif settings.is_fast:
            raise SystemExit(
                "The fast transport needs the asyncio pool: leave -P out, or set TOOLFLEET_FAST_TRANSPORT=0."
            )
        else:  # a pool without a loop
            this_process().thread(lambda: run_here(attend()), name="presence").start()
        notes.start()
        self._ending = ending = ShutdownReason()
        signals.worker_shutting_down.connect(ending.on_shutting_down, sender=parent.hostname)
        # After everything else: a worker that drains still lives.
        call_when_ended(parent, lambda: run_here(_part(presence, slots, served)))
        call_when_ended(parent, lambda: notes.leave(restarts=ending.is_restart))


class ShutdownReason:
    """Why the worker ends. SIGTERM is what supervisors send to what they start again; Ctrl-C, and a cold end, are for good."""

    is_restart = False

    def on_shutting_down(self, sig: str = "", how: str = "", **_: object) -> None:
        """Called by Celery when the worker is told to end."""
        self.is_restart = (sig, how) == ("SIGTERM", "Warm")


class AnsweredProbes(bootsteps.StartStopStep):  # type: ignore[misc] # as above
    """Answers `/livez` and `/readyz` until the worker has ended."""

    requires = ("celery.worker.components:Pool",)

    def start(self, parent: Any) -> None:
        """Called by Celery when the pool has started."""
        settings = getattr(parent.app, "settings", None) or load_settings()
        health = health_of(parent.app)
        health.worker, health.is_fast = parent, settings.is_fast
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


async def _attend(
    settings: Settings,
    presence: Presence,
    slots: LaneCapacity,
    watch: ClockWatch,
    follow: Callable[[], Awaitable[None]],
    pauses: QueuePauses,
) -> None:
    try:
        kept = presence.keep(), slots.keep(), watch.keep(), follow(), pauses.keep()
        await asyncio.gather(insist_on_fit(settings), *kept)
    except SettingsError as exc:
        log.critical("worker_refused", reason=str(exc))
        state.should_stop = EX_FAILURE  # Celery looks at it in every turn of its hub


async def _part(presence: Presence, slots: LaneCapacity, served: ServedModulesPort | None) -> None:
    more = [] if served is None else [served.leave()]
    await asyncio.gather(presence.check_out(), slots.leave(), *more)


def _consume(consumption: Consumption, modules: Iterable[str]) -> None:
    consumption.add(make_queue(queue_of(module)) for module in modules)


def _announce_when_prepared(consumer: Any) -> None:
    app, prepare = consumer.app, getattr(consumer.app.runner, "prepare", None)
    served: ServedModulesPort | None = getattr(consumer.app, "served_modules", None)
    if prepare is None or not isinstance(consumer.pool, AsyncioPool):  # a pool without a loop: its first calls wait
        _announce(app)
        return
    preparing = consumer.pool.hub_loop.loop.create_task(_prepare(prepare, served), name="toolfleet-prepare")
    preparing.add_done_callback(functools.partial(_announce_prepared, app))


async def _prepare(prepare: Callable[[], Awaitable[None]], served: ServedModulesPort | None) -> None:
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
