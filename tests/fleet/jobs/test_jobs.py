"""Jobs with real processes: a worker, beat and a module; `tests/virtual/jobs` has the rest."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from support.fleet import TestBed
from support.modules.works import BEGIN, HERE, STATE, Works, job_ended, make_works, running
from support.waiting import PATIENCE_SECONDS
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_registry.contracts.jobs import ENDED


@pytest.fixture(scope="module")
def works() -> Works:
    return make_works(ends_after=2)


@pytest.fixture(scope="module")
def bed(works: Works, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    with running(tmp_path_factory.mktemp("jobs"), works) as bed:
        yield bed


async def test_a_job_is_started_polled_and_wakes_its_conversation(bed: TestBed, works: Works, owner: Caller) -> None:
    """It makes its first call, polls with what that brought until the work is over, and then tells the conversation once."""
    works.forget(ends_after=2)
    async with ToolFleet(settings=bed.settings) as fleet, asyncio.timeout(PATIENCE_SECONDS):
        job = await fleet.jobs.start(BEGIN, STATE, conversation=HERE, caller=owner, name="build")
        over = await job_ended(fleet, job, owner)
        wake = await anext(aiter(fleet.wakeups.completions("c-1")))

    assert (over.state, over.polls, over.result["status"]) == ("completed", 2, "completed")
    assert (wake.type, wake.wake_id, wake.result) == ("job.completed", job.job_id, over.result)
    assert len(works.server.calls("begin")) == 1
    assert [call["arguments"] for call in works.server.calls("state")] == [{"id": "piece-1"}] * 2


def test_programs_without_a_loop_have_jobs_too(bed: TestBed, owner: Caller) -> None:
    """The same methods, without `await`."""
    with ToolFleet.sync(settings=bed.settings) as fleet:
        job = fleet.jobs.start(ToolCall(tool_name="works.ship"), conversation=HERE, caller=owner)
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while (found := fleet.jobs.get(job.job_id, owner)) is not None and found.state not in ENDED:
            assert time.monotonic() < give_up_at

        assert found is not None
        assert found.state == "completed"
        assert fleet.jobs.cancel(job.job_id, owner) == found
        assert found in fleet.jobs.list(owner)
