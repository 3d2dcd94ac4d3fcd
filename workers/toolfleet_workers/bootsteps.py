"""What a worker does besides consuming: it says when it is ready, that it lives, and what blocks its event loop."""

import asyncio
import contextlib
import gc
import sys
import threading
from typing import Any

import structlog
from celery import Celery, bootsteps, signals
from celery.platforms import EX_FAILURE
from celery.worker import state

from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import load_settings
from toolfleet_tasks.presence import Presence
from toolfleet_tasks.slots import Slots
from toolfleet_workers.pool import AsyncioPool
from toolfleet_workers.watchdog import Watchdog

log = structlog.get_logger(__name__)

_COLLECT_AFTER = (50_000, 20, 20)  # objects, then collections of the generation below
_FIRST_TICK_SECONDS = 0.02  # any time will do, as long as it is not over within the first tick


class Readiness(bootsteps.StartStopStep):  # type: ignore[misc] # Celery ships no types
    """Prints `toolfleet worker ready lane=<lane>` once, when the worker has asked the broker for its first messages."""

    requires = ("celery.worker.consumer.tasks:Tasks",)
    is_announced = False

    def register_with_event_loop(self, consumer: Any, hub: Any) -> None:
        """Called by Celery just before it consumes, at the start and after every reconnect."""
        if not self.is_announced:
            self.is_announced = True
            # The hub's first tick runs callbacks, then timers, then asks for messages: a timer that a callback sets
            # is due in the second.
            hub.call_soon(hub.call_later, _FIRST_TICK_SECONDS, _announce, getattr(consumer.app, "lane", "all"))


class LoopWatchdog(bootsteps.StartStopStep):  # type: ignore[misc] # Celery ships no types
    """Watches the pool's loop, with `app.settings.loop_stall_seconds`, until the pool closes it."""

    requires = ("celery.worker.components:Pool",)

    def include_if(self, parent: Any) -> bool:
        """Other pools have no loop."""
        return isinstance(parent.pool, AsyncioPool)

    def start(self, parent: Any) -> None:
        """Called by Celery when the pool has started, on the pool's thread."""
        settings = getattr(parent.app, "settings", None) or load_settings()
        Watchdog(parent.pool.pump, stall_seconds=settings.loop_stall_seconds).start()


class Attendance(bootsteps.StartStopStep):  # type: ignore[misc] # Celery ships no types
    """Keeps noting at Redis that the worker lives, with which transport and how many slots, until it has ended."""

    requires = ("celery.worker.components:Pool",)

    def start(self, parent: Any) -> None:
        """Called by Celery when the pool has started. Ends the process if only our pool could renew its leases."""
        settings = getattr(parent.app, "settings", None) or load_settings()
        presence, slots = Presence(settings), Slots(settings, count=parent.concurrency)
        if isinstance(parent.pool, AsyncioPool):
            self._keeping = parent.pool.pump.loop.create_task(_attend(presence, slots), name="toolfleet-presence")
        elif settings.is_fast:
            raise SystemExit(
                "The fast transport needs the asyncio pool: leave -P out, or set TOOLFLEET_FAST_TRANSPORT=0."
            )
        else:  # a pool without a loop
            threading.Thread(target=asyncio.run, args=[_attend(presence, slots)], name="presence", daemon=True).start()
        # After everything else: a worker that drains still lives.
        signals.worker_shutdown.connect(lambda **_: asyncio.run(_part(presence, slots)), weak=False)


def install(app: Celery) -> None:
    """Have every worker that is started from `app` do all of it."""
    steps: Any = app.steps
    steps["consumer"].add(Readiness)
    steps["worker"].add(Attendance)
    steps["worker"].add(LoopWatchdog)


async def _attend(presence: Presence, slots: Slots) -> None:
    try:
        await asyncio.gather(presence.keep(), slots.keep())
    except SettingsError as exc:
        log.critical("worker_refused", reason=str(exc))
        state.should_stop = EX_FAILURE  # Celery looks at it in every turn of its hub


async def _part(presence: Presence, slots: Slots) -> None:
    await asyncio.gather(presence.check_out(), slots.leave())


def _announce(lane: str) -> None:
    _spare_the_collector()
    # Past Celery's redirection of `sys.stdout` into the log; a reader that has gone is no reason to end.
    with contextlib.suppress(OSError, ValueError):
        print(f"toolfleet worker ready lane={lane}", file=sys.__stdout__, flush=True)


def _spare_the_collector() -> None:
    """Keep Python from going over everything that a worker has, again and again, for cycles that calls hardly leave.

    Measured with calls of 0 ms: a sixth of the worker's time. A thousand calls in flight are some 100,000 objects.
    """
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)
