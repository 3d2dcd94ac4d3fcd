"""Whether a worker is alive, and whether it takes calls."""

import gc
import time
import weakref
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, signals
from celery.worker import state

from toolfleet_tasks.control.probes import STILL_SECONDS
from toolfleet_workers.pool.asyncio_pool import AsyncioPool
from toolfleet_workers.pool.bootsteps import WorkerHealth, call_when_ended, health_of


@pytest.fixture
def health() -> Iterator[WorkerHealth]:
    """Of a worker that consumes, with a loop whose last tick the tests set."""
    pool: Any = AsyncioPool(limit=1)
    pool.hub_loop = SimpleNamespace(busy_since=None)
    health = WorkerHealth()
    consumer = SimpleNamespace(task_consumer=object(), waits_for_broker=False)
    health.worker, health.is_prepared = SimpleNamespace(pool=pool, consumer=consumer), True
    yield health
    state.should_stop = None


def test_rabbitmq_is_waited_for_on_the_loop(health: WorkerHealth) -> None:
    """While it is silent, without a bound: a worker that does is not to be restarted for it."""
    health.has_redis_broker = False
    health.worker.pool.hub_loop.busy_since = time.monotonic() - 10 * STILL_SECONDS

    assert health.stuck() is None


@pytest.mark.parametrize(
    ("still", "waits", "said"),
    [
        (None, False, None),  # it waits for work
        (STILL_SECONDS - 1, False, None),  # the watchdog says what blocks it
        (STILL_SECONDS + 1, False, "the worker's loop has stood still for 31 s"),
        (STILL_SECONDS + 1, True, None),  # Celery tries to connect, and its own loop stands still for that
    ],
)
def test_a_loop_that_stands_still_is_stuck(
    health: WorkerHealth, still: float | None, said: str | None, *, waits: bool
) -> None:
    """Unless it waits for work, or for a broker that is away."""
    health.worker.pool.hub_loop.busy_since = None if still is None else time.monotonic() - still
    health.worker.consumer.waits_for_broker = waits

    assert health.stuck() == said


def test_a_worker_without_a_consumer_takes_no_calls(health: WorkerHealth) -> None:
    """Celery makes it after the pool."""
    health.worker.consumer = None

    assert health.stuck() is None
    assert health.unready() == "the worker does not take calls yet"


def test_a_worker_is_ready_while_it_takes_calls(health: WorkerHealth) -> None:
    """Not before it is prepared, not with a clock that is too far off, and not when it ends."""
    assert health.unready() is None
    health.is_prepared = False
    assert health.unready() == "the worker does not take calls yet"
    health.is_prepared, health.consumption = True, SimpleNamespace(is_stopped=True)  # type: ignore[assignment] # as it says
    assert "clock" in str(health.unready())
    state.should_stop = 0

    assert health.unready() == "the worker is ending"


def test_each_app_has_one() -> None:
    """The steps of its worker share it."""
    app, other = Celery(set_as_current=False), Celery(set_as_current=False)

    assert health_of(app) is health_of(app) is not health_of(other)


@pytest.mark.parametrize("ends", [0, 1])
def test_of_two_workers_only_the_end_of_ones_own_is_heard(ends: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery's signal is the whole interpreter's."""
    monkeypatch.setattr("celery._state._task_join_will_block", False)  # a worker sets it for good
    workers = [Celery(broker="memory://").WorkController(hostname=name, pool_cls="solo") for name in ("one", "other")]
    left = list[str]()
    for worker in workers:
        call_when_ended(worker, partial(left.append, worker.hostname))

    workers[ends].stop()

    assert left == [workers[ends].hostname]


def test_a_worker_that_has_gone_leaves_nothing_at_celerys_signal() -> None:
    """Neither what was to be called at its end, nor itself."""

    class Worker:
        def leave(self) -> None:
            pytest.fail("it has gone")

    worker = Worker()
    call_when_ended(worker, worker.leave)
    gone = weakref.ref(worker)

    del worker
    gc.collect()
    signals.worker_shutdown.send(sender=None)

    assert gone() is None
