"""Jobs whose module's queue drains, or is paused: what has begun is polled to its end, and what has not begun begins later."""

import asyncio

import pytest

from bed.fleet import until
from support.modules.works import BEGIN, HERE, SLOWLY, Works, job_ended
from toolfleet import Caller, Job, ToolFleet
from toolfleet_registry.contracts.jobs import ENDED

HOUR = 3600


@pytest.fixture
def works(works: Works) -> Works:
    """It goes on with its work until a test ends it."""
    works.ends_after = 0
    return works


async def begun(fleet: ToolFleet, works: Works, owner: Caller) -> Job:
    """A job that is polled."""
    job = await fleet.jobs.start(BEGIN, SLOWLY, conversation=HERE, caller=owner, deadline=HOUR)
    await until(lambda: len(works.server.calls("state")) > 1, "it is polled", step=1)
    return job


async def test_a_job_that_has_begun_is_polled_to_its_end(fleet: ToolFleet, works: Works, owner: Caller) -> None:
    """While calls are refused; another one begins when the queue is resumed, once."""
    job = await begun(fleet, works, owner)
    await fleet.queues.drain("works")
    refused = await fleet.call(BEGIN, owner)
    later = await fleet.jobs.start(BEGIN, SLOWLY, conversation=HERE, caller=owner, deadline=HOUR)
    works.ends_after = 1

    assert refused.error_code == "busy"
    assert (await job_ended(fleet, job, owner, seconds=HOUR)).state == "completed"
    await asyncio.sleep(30)
    assert len(works.server.calls("begin")) == 1
    await fleet.queues.resume("works")
    assert (await job_ended(fleet, later, owner, seconds=HOUR)).state == "completed"
    assert len(works.server.calls("begin")) == 2


async def test_a_job_waits_while_its_queue_is_paused(fleet: ToolFleet, works: Works, owner: Caller) -> None:
    """Its poll waits with all other calls, and goes on with the resuming."""
    job = await begun(fleet, works, owner)
    await fleet.queues.pause("works")
    await asyncio.sleep(2)  # a worker may not have heard of it before
    polls, works.ends_after = len(works.server.calls("state")), 1
    await asyncio.sleep(6 * SLOWLY.interval_seconds)
    found = await fleet.jobs.get(job.job_id, owner)
    assert len(works.server.calls("state")) == polls
    await fleet.queues.resume("works")

    assert found is not None
    assert found.state not in ENDED
    assert (await job_ended(fleet, job, owner, seconds=HOUR)).state == "completed"
    assert len(works.server.calls("begin")) == 1
