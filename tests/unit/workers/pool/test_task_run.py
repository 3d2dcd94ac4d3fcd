"""A job of the pool by itself: what it leaves behind."""

import asyncio
import gc
import weakref
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from toolfleet_registry.system.shared_timers import shared_timers
from toolfleet_tasks.app import FleetApp
from toolfleet_tasks.greenlet_bridge import await_, bridged, limits
from toolfleet_workers.pool.asyncio_pool import Assignment, CallRun, PoolRun, TaskRun


@bridged
async def by_a_tracer(*_: Any) -> str:
    with limits(5, 10):
        await asyncio.sleep(0)
    return "done"


async def by_itself(task: Any, _: str) -> str:
    with task.limits(5, 10):
        await asyncio.sleep(0)
    task.request.is_stored = True
    return "done"


class Call:
    """Stands for a fetched call."""

    id, body, is_stored = "call-1", "text", False

    def __init__(self, ends: list[Any]) -> None:
        self._ends = ends

    def succeed(self, *end: Any) -> None:
        self._ends.append(end)

    def leave(self) -> None:
        self._ends.append("left")

    @property
    def celery(self) -> Any:
        def timed_out(is_soft: bool, seconds: float) -> None:
            self._ends.append(("soft" if is_soft else "hard", seconds))

        ends = {"on_success": self._ends.append, "on_failure": self._ends.append, "on_timeout": timed_out}
        return SimpleNamespace(id=self.id, request_dict={}, body=([self.body], {}, {}), **ends)


class Timers:
    """Whatever is set falls due in the loop's next turn."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()

    def call_later(self, _: float, callback: Any, *args: Any) -> asyncio.Handle:
        return self.loop.call_soon(callback, *args)


def run_of(app: FleetApp, ends: list[Any], timers: Any = None, **told: Any) -> PoolRun:
    """The job of a task of Celery's, or without `told` of a fetched call."""
    timers = timers or shared_timers(asyncio.get_running_loop())
    if not told:
        return CallRun(app, Call(ends), timers, lambda _: ends.append("ended"))  # type: ignore[arg-type] # as far as it is asked
    return TaskRun(Assignment.from_celery(by_a_tracer, ("call-1",), {}, told), timers)


@pytest.mark.parametrize("is_traced", [True, False], ids=["traced", "fetched"])
async def test_a_job_that_has_ended_goes_without_the_collector(lined_app: FleetApp, *, is_traced: bool) -> None:
    """With its request, its message and its task: thousands of them a second would be a tenth of a worker's work."""
    lined_app.run_call = by_itself
    ends: list[Any] = []
    gc.collect()
    gc.disable()
    try:
        job = run_of(lined_app, ends, **({"callback": ends.append} if is_traced else {}))
        task = asyncio.create_task(job.run())
        await task
        left = weakref.ref(job)
        del job, task
        assert left() is None
    finally:
        gc.enable()
    if is_traced:
        assert ends == ["done"]
    else:
        assert (ends[0][0], ends[1:]) == ("done", ["left", "ended"])


async def test_a_fetched_call_that_is_revoked_before_it_begins_is_not_run(lined_app: FleetApp) -> None:
    """Celery has stored and acknowledged that by then."""
    lined_app.run_call = by_itself
    ends: list[Any] = []
    job = run_of(lined_app, ends)
    task = asyncio.create_task(job.run())
    job.terminate()
    await asyncio.wait([task])

    assert ends == ["left", "ended"]


async def test_a_fetched_call_is_held_to_its_limits(lined_app: FleetApp) -> None:
    """Celery hears of both; after the hard one nothing that the call does counts any more."""

    async def stubborn(task: Any, message: str) -> str:
        del message
        with task.limits(3, 5):
            for __ in range(2):
                with suppress(asyncio.CancelledError):  # the soft one is one, too
                    await asyncio.Event().wait()
        return "too late"

    lined_app.run_call = stubborn
    ends: list[Any] = []
    await run_of(lined_app, ends, Timers()).run()

    assert ends == [("soft", 3), ("hard", 5), "left", "ended"]


async def test_a_job_that_is_revoked_as_it_begins_is_acknowledged(lined_app: FleetApp) -> None:
    """Celery stores the revocation when the job is accepted, which waits for Redis, and acknowledges after that."""
    acknowledged, ends, is_stored = list[str](), list[Any](), asyncio.Event()

    def store_and_acknowledge(*_: Any) -> None:
        await_(is_stored.wait())
        acknowledged.append("call-1")

    told = {"accept_callback": store_and_acknowledge, "callback": ends.append, "error_callback": ends.append}
    job = run_of(lined_app, ends, **told)
    task = asyncio.create_task(job.run())
    job.terminate()
    await asyncio.sleep(0)
    is_stored.set()
    await asyncio.wait([task])

    assert (acknowledged, ends) == (["call-1"], [])
