"""Jobs whose module's queue drains, or is paused: what has begun is polled to its end, and what has not begun begins later."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from support.fleet import TestBed
from support.modules.works import BEGIN, HERE, STATE, Works, job_ended, make_works, running
from support.waiting import PATIENCE_SECONDS, wait_until
from toolfleet import Caller, Job, ToolFleet
from toolfleet_registry.contracts.jobs import ENDED

OWNER = Caller(user_id="ada", permission="owner", allowed_modules="*")


@pytest.fixture(scope="module")
def works() -> Works:
    return make_works()


@pytest.fixture(scope="module")
def bed(works: Works, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    """With a worker and beat."""
    with running(tmp_path_factory.mktemp("jobs"), works) as bed:
        yield bed


@pytest.fixture
async def fleet(bed: TestBed, works: Works) -> AsyncIterator[ToolFleet]:
    works.forget()
    async with ToolFleet(settings=bed.settings) as fleet:
        yield fleet
        await fleet.queues.resume("works")


async def begun(fleet: ToolFleet, works: Works) -> Job:
    """A job that is polled."""
    job = await fleet.jobs.start(BEGIN, STATE, conversation=HERE, caller=OWNER, deadline=120)
    await wait_until(lambda: len(works.server.calls("state")) > 1, "it is polled", seconds=PATIENCE_SECONDS)
    return job


async def test_a_job_that_has_begun_is_polled_to_its_end(fleet: ToolFleet, works: Works) -> None:
    """While calls are refused; another one begins when the queue is resumed, once."""
    job = await begun(fleet, works)
    await fleet.queues.drain("works")
    refused = await fleet.call(BEGIN, OWNER)
    later = await fleet.jobs.start(BEGIN, STATE, conversation=HERE, caller=OWNER, deadline=120)
    works.ends_after = 1

    assert refused.error_code == "busy"
    assert (await job_ended(fleet, job, OWNER, seconds=2 * PATIENCE_SECONDS)).state == "completed"
    assert len(works.server.calls("begin")) == 1
    await fleet.queues.resume("works")
    assert (await job_ended(fleet, later, OWNER, seconds=2 * PATIENCE_SECONDS)).state == "completed"
    assert len(works.server.calls("begin")) == 2


async def test_a_job_waits_while_its_queue_is_paused(fleet: ToolFleet, works: Works) -> None:
    """Its poll waits with all other calls, and goes on with the resuming."""
    job = await begun(fleet, works)
    await fleet.queues.pause("works")

    async def nothing_comes() -> bool:
        seen = len(works.server.calls("state"))
        await asyncio.sleep(1)
        return len(works.server.calls("state")) == seen

    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await nothing_comes():
            pass
    works.ends_after = 1
    found = await fleet.jobs.get(job.job_id, OWNER)
    await fleet.queues.resume("works")

    assert found is not None
    assert found.state not in ENDED
    assert (await job_ended(fleet, job, OWNER, seconds=2 * PATIENCE_SECONDS)).state == "completed"
    assert len(works.server.calls("begin")) == 1
