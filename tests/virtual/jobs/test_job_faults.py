"""Jobs while workers, beat and Redis die: each call of theirs is made once, each end is told once, and none is lost."""

from typing import Any

import pytest

from bed.fleet import Bed, until
from support.modules.works import BEGIN, HERE, STATE, make_works
from toolfleet import Caller, Job, ToolFleet
from toolfleet_registry.contracts.jobs import ENDED
from toolfleet_tasks.messages.ids import step_call_id

JOBS = 8
OFTEN = STATE.model_copy(update={"interval_seconds": 2})


async def all_ended(fleet: ToolFleet, jobs: list[Job], caller: Caller) -> list[Job]:
    found: list[Job] = []

    async def have_ended() -> bool:
        found[:] = await fleet.jobs.list(caller, limit=1000)
        return len(found) == len(jobs) and all(job.state in ENDED for job in found)

    await until(have_ended, "all jobs have ended", step=1)
    return found


@pytest.mark.parametrize("part", [0.0, 1.0], ids=["before", "after"])
@pytest.mark.parametrize("dying", ["worker", "beat", "Redis"])
async def test_what_dies_costs_no_job_and_doubles_none(bed: Bed, owner: Caller, dying: str, part: float) -> None:
    """At one write after the other, while jobs are between two steps; the next one goes on. Two beats do no harm.

    Each start is made at most once (one whose worker died is unknown, and has failed), and each end is told once.
    """
    works = make_works(ends_after=12)
    bed.given["visibility_timeout"] = 4  # of many deaths each is found out soon
    await bed.serve(works.server)
    fleet, worker, beat = await bed.agent(), await bed.worker(), await bed.beat()
    await bed.beat()
    jobs: list[Job] = []
    for most in (JOBS // 2, JOBS):  # at the first death one half has begun, and the other half is about to
        await until(lambda: len(set(works.server.call_ids("begin"))) == len(jobs), "those jobs have begun")
        while len(jobs) < most:
            jobs.append(await fleet.jobs.start(BEGIN, OFTEN, conversation=HERE, caller=owner))
    for write in range(1, 50, 7):
        if dying == "worker":
            await worker.dies_at(write, part).wait()
            worker = await bed.worker()
        elif dying == "beat":
            await beat.die_at(write, part).wait()
            beat = await bed.beat()
        else:
            polls = len(works.server.calls("state"))
            await until(lambda: len(works.server.calls("state")) > polls, "jobs are polled")  # noqa: B023 - awaited
            bed.redis.restart()
    over = await all_ended(fleet, jobs, owner)

    begun, states = works.server.call_ids("begin"), {job.state for job in over}
    assert "completed" in states
    for job in over:
        times = begun.count(step_call_id(job.job_id, 0))
        assert (times, job.state) == (1, "completed") or (times <= 1 and job.error_code == "outcome_unknown"), job
    told: list[Any] = bed.ask("XRANGE", bed.settings.keys.completions_of("c-1", owner.user_id), "-", "+")
    assert sorted(entry["id"] for _, entry in told) == sorted(job.job_id for job in jobs)
    assert not bed.ask("EXISTS", bed.settings.keys.jobs_due)
