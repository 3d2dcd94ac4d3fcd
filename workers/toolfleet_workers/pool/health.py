"""Knows whether a worker's loop turns, whether it takes calls, which its probes answer, and when it has ended."""

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from celery import Celery, signals
from celery.worker import state

from toolfleet_registry.system import machine_clock
from toolfleet_tasks.control.probes import STILL_SECONDS
from toolfleet_workers.pool.asyncio_pool import AsyncioPool
from toolfleet_workers.pool.consumption import Consumption


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
        if (
            not self.has_redis_broker
            or not isinstance(pool, AsyncioPool)
            or getattr(consumer, "waits_for_broker", False)
        ):
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
