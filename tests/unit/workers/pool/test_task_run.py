"""A job of the pool by itself: what it leaves behind."""

import asyncio
import gc
import weakref
from typing import Any

import pytest
from celery.app.trace import fast_trace_task

from toolfleet_tasks.app import FleetApp
from toolfleet_tasks.greenlet_bridge import await_, bridged, limits
from toolfleet_tasks.messages.envelope import TASK
from toolfleet_workers.pool.asyncio_pool import Assignment, TaskRun

BODY = b'[["text"], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'


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


@pytest.mark.parametrize("target", [by_a_tracer, fast_trace_task], ids=["traced", "untraced"])
async def test_a_job_that_has_ended_goes_without_the_collector(lined_app: FleetApp, target: Any) -> None:
    """With its request, its message and its task: thousands of them a second would be a tenth of a worker's work."""
    lined_app.run_call = by_itself
    ends: list[Any] = []
    args = (TASK, "call-1", {"id": "call-1", "args": ["text"], "retries": 0}, BODY, "application/json", "utf-8")
    gc.collect()
    gc.disable()
    try:
        job = TaskRun(
            lined_app, Assignment.from_celery(target, args, {}, {"callback": ends.append}), asyncio.get_running_loop()
        )
        task = asyncio.create_task(job.run())
        await task
        left = weakref.ref(job)
        del job, task
        assert left() is None
    finally:
        gc.enable()
    assert len(ends) == 1
    assert ends[0] == "done" or ends[0][:2] == (0, "'done'")


@pytest.mark.parametrize("target", [by_a_tracer, fast_trace_task], ids=["traced", "untraced"])
async def test_a_job_that_is_revoked_as_it_begins_is_acknowledged(lined_app: FleetApp, target: Any) -> None:
    """Celery stores the revocation when the job is accepted, which waits for Redis, and acknowledges after that."""
    acknowledged, ends, is_stored = list[str](), list[Any](), asyncio.Event()

    def store_and_acknowledge(*_: Any) -> None:
        await_(is_stored.wait())
        acknowledged.append("call-1")

    args = (TASK, "call-1", {"id": "call-1", "args": ["text"], "retries": 0}, BODY, "application/json", "utf-8")
    told = {"accept_callback": store_and_acknowledge, "callback": ends.append, "error_callback": ends.append}
    job = TaskRun(lined_app, Assignment.from_celery(target, args, {}, told), asyncio.get_running_loop())
    task = asyncio.create_task(job.run())
    job.terminate()
    await asyncio.sleep(0)
    is_stored.set()
    await asyncio.wait([task])

    assert (acknowledged, ends) == (["call-1"], [])
