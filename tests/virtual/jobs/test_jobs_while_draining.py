"""Jobs whose module's queue drains, or is paused: what has begun is polled to its end, and what has not begun begins later."""

import asyncio
from functools import partial

from bed.fleet import until
from support.modules.works import BEGIN, HERE, SLOWLY, Works, job_ended
from toolfleet import Caller, Job, ToolFleet
from toolfleet_registry.contracts.jobs import ENDED

ended = partial(job_ended, seconds=3600)


async def begun(fleet: ToolFleet, works: Works, caller: Caller) -> Job:
    """Start a job, and return it once it is polled."""
    works.ends_after = 0
    job = await fleet.jobs.start(BEGIN, SLOWLY, conversation=HERE, caller=caller)
    await until(lambda: works.server.calls("state"), "it is polled")
    return job


async def test_a_job_that_has_begun_is_polled_to_its_end(fleet: ToolFleet, works: Works, owner: Caller) -> None:
    """While calls are refused; another one begins when the queue is resumed, once."""
    job = await begun(fleet, works, owner)
    await fleet.queues.drain("works")
    refused = await fleet.call(BEGIN, owner)
    later = await fleet.jobs.start(BEGIN, SLOWLY, conversation=HERE, caller=owner)
    works.ends_after = 1

    assert refused.error_code == "busy"
    assert (await ended(fleet, job, owner)).state == "completed"
    assert len(works.server.calls("begin")) == 1
    await fleet.queues.resume("works")
    assert (await ended(fleet, later, owner)).state == "completed"
    assert len(works.server.calls("begin")) == 2


async def test_a_job_waits_while_its_queue_is_paused(fleet: ToolFleet, works: Works, owner: Caller) -> None:
    """Its poll waits with all other calls, and goes on with the resuming."""
    job = await begun(fleet, works, owner)
    await fleet.queues.pause("works")
    works.ends_after, seen = 1, len(works.server.calls("state"))
    await asyncio.sleep(5 * SLOWLY.interval_seconds)
    found = await fleet.jobs.get(job.job_id, owner)
    polls = len(works.server.calls("state"))
    await fleet.queues.resume("works")

    assert polls == seen
    assert found is not None
    assert found.state not in ENDED
    assert (await ended(fleet, job, owner)).state == "completed"
    assert len(works.server.calls("begin")) == 1
