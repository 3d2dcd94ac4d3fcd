"""Jobs whose first call waits for its turn: the job has it to its end, and its polls run in it."""

import pytest

from bed.fleet import Bed, pass_time, until
from support.modules.works import HERE, Works, job_ended
from toolfleet import Caller, Job, Poll, ToolCall, ToolFleet
from toolfleet_registry.contracts.jobs import Schedule
from toolfleet_registry.redis.keys import Keys

HOUR = 3600
DIG = ToolCall(tool_name="works.dig", arguments={"site": "a"})
DUG = Poll(tool_name="works.dug", arguments={"site": "a", "id": {"$from": "task.id"}}, interval_seconds=10)


@pytest.fixture
def works(works: Works) -> Works:
    """Its work at one site is done by one job after the other; it goes on until a test ends it."""
    works.ends_after = 0
    schema = {"type": "object", "properties": {"site": {}, "id": {}}}
    works.server.add("dig", works.begin, effect="once", concurrency_key="site", input_schema=schema)
    works.server.add("dug", works.state, effect="read", concurrency_key="site", input_schema=schema)
    return works


def left(bed: Bed) -> list[bytes]:
    return [key for kind in ("turns:*", "line*", "turn-of:*") for key in bed.ask("KEYS", Keys().begin + kind)]


async def begun(fleet: ToolFleet, works: Works, owner: Caller, schedule: Schedule | None = None) -> Job:
    """A job that is polled."""
    job = await fleet.jobs.start(DIG, DUG, conversation=HERE, caller=owner, deadline=HOUR, schedule=schedule)
    await until(lambda: len(works.server.calls("dug")) > 1, "it is polled", step=1)
    return job


@pytest.mark.parametrize("schedule", [None, Schedule(delay_seconds=5)])
async def test_a_job_keeps_the_turn_of_its_first_call(
    bed: Bed, fleet: ToolFleet, works: Works, owner: Caller, schedule: Schedule | None
) -> None:
    """Long after that call's deadline: nothing else begins at its site until it has ended. Also where it begins later."""
    job = await begun(fleet, works, owner, schedule)
    waiting = await fleet.submit(DIG, owner, timeout=HOUR)
    await pass_time(300, step=5)
    assert len(works.server.calls("dig")) == 1
    works.ends_after = 1
    assert (await job_ended(fleet, job, owner, seconds=HOUR)).state == "completed"
    assert (await waiting.result()).success
    assert left(bed) == []


async def test_a_job_that_is_cancelled_gives_its_turn_back(
    bed: Bed, fleet: ToolFleet, works: Works, owner: Caller
) -> None:
    """The next one begins."""
    job = await begun(fleet, works, owner)
    waiting = await fleet.submit(DIG, owner, timeout=HOUR)
    await fleet.jobs.cancel(job.job_id, owner)
    assert (await waiting.result()).success
    assert left(bed) == []
