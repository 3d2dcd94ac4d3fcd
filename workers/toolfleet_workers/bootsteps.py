"""What a worker does besides consuming: it says when it is ready, and watches its event loop."""

import contextlib
import sys
from typing import Any

from celery import Celery, bootsteps

from toolfleet_registry.settings import load_settings
from toolfleet_workers.pool import AsyncioPool
from toolfleet_workers.watchdog import Watchdog

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


def install(app: Celery) -> None:
    """Have every worker that is started from `app` do both."""
    steps: Any = app.steps
    steps["consumer"].add(Readiness)
    steps["worker"].add(LoopWatchdog)


def _announce(lane: str) -> None:
    # Past Celery's redirection of `sys.stdout` into the log; a reader that has gone is no reason to end.
    with contextlib.suppress(OSError, ValueError):
        print(f"toolfleet worker ready lane={lane}", file=sys.__stdout__, flush=True)
