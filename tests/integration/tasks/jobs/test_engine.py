"""A worker that moves jobs dies at every step there is, before it and after it: each job still ends once, as it should."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from redis.asyncio import Redis

from support.clocks import fleet_clock_ahead
from support.workers.frail_jobs import (
    BEGUN,
    DONE,
    RUNNING,
    Ledger,
    Moments,
    live,
    make_spec,
    mover_of,
    ok,
)
from support.workers.job_racers import job_records
from toolfleet_registry.contracts import PublishedCall, ToolCall, ToolResult
from toolfleet_registry.contracts.jobs import HookSpec, Poll
from toolfleet_registry.errors import BegunBefore, FleetError, PublishUnconfirmed
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks.jobs import state_machine
from toolfleet_tasks.jobs.engine import JobCallState, JobEngine, JobSteps
from toolfleet_tasks.jobs.records import Found, JobChange, JobRecords
from toolfleet_tasks.jobs.state_machine import JobPosition
from toolfleet_tasks.messages import fleet_results, json_text


async def check_ended_once(redis: "Redis", job: Found, ledger: Ledger) -> None:
    assert job.place.state == "completed"
    assert [call_id for call_id, _ in ledger.executed] == ["j.0", "j.1", "j.2"]
    assert ledger.executed[1][1] == {"id": 7}
    assert [await redis.xlen(key) async for key in redis.scan_iter("toolfleet:completions:*")] == [1]
    assert await redis.zrange("toolfleet:wakes-due:calls", 0, -1) == ["j.then.0"]
    assert not await redis.exists("toolfleet:jobs-due")


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("fatal", range(1, 13))
async def test_a_worker_that_dies_anywhere_costs_nothing(
    redis: "Redis", redis_url: str, fatal: int, is_after: bool
) -> None:
    """Each call is made once, in order; the job ends once, with one piece of news and one call of its end."""
    moments = Moments(fatal, is_after=is_after)
    job, ledger = await live(redis, redis_url, moments, [BEGUN, RUNNING, DONE])

    await check_ended_once(redis, job, ledger)


async def test_twelve_moments_are_all_there_are(redis: "Redis", redis_url: str) -> None:
    """The test above knows every step of such a life: three calls, each noted, published, confirmed and taken."""
    moments = Moments(None)
    job, ledger = await live(redis, redis_url, moments, [BEGUN, RUNNING, DONE])

    assert moments.count == 12
    await check_ended_once(redis, job, ledger)


async def test_a_step_that_cannot_be_published_for_now_is_tried_under_the_same_id(
    redis: "Redis", redis_url: str
) -> None:
    """A queue that is away puts the first call off; nothing is lost and nothing has failed."""
    away = fleet_results.not_published("works.begin", "away")
    job, ledger = await live(redis, redis_url, Moments(None), [BEGUN, RUNNING, DONE], refusals=[away])

    assert ledger.tries[:2] == ["j.0", "j.0"]
    await check_ended_once(redis, job, ledger)


async def test_a_step_whose_message_may_be_lost_is_published_again_after_the_lease(
    redis: "Redis", redis_url: str
) -> None:
    """The connection is cut while the first call is sent: nobody waits for that call's deadline."""
    lost = PublishUnconfirmed("the connection was lost")
    job, ledger = await live(redis, redis_url, Moments(None), [BEGUN, RUNNING, DONE], refusals=[lost])

    assert ledger.tries[:2] == ["j.0", "j.0"]
    await check_ended_once(redis, job, ledger)


class Post:
    """What publishes, and says what it was made with."""

    def __init__(self, answer: FleetError) -> None:
        self._answer = answer

    async def detach(self, call: PublishedCall, *, most_waiting: int, again: bool) -> ToolResult | None:
        raise self._answer


async def test_who_publishes_a_step_hears_whether_it_may_be_lost() -> None:
    """Or what a job's end causes would be taken for done; what has a record in the ledger is not lost."""
    ledger = Ledger(None, Moments(None), [], [])  # type: ignore[arg-type] # not used
    call = await ledger.prepare(make_spec(), ToolCall(tool_name="works.begin"), "j.0")

    def steps(answer: FleetError) -> JobSteps:
        # Only the posting is used.
        return JobSteps(None, Post(answer), None, None, Settings(), ledger=None)  # type: ignore[arg-type]

    assert isinstance(call, PublishedCall)
    assert await steps(BegunBefore()).publish(call) == JobCallState("j.0")
    with pytest.raises(PublishUnconfirmed):
        await steps(PublishUnconfirmed()).publish(call)


async def test_a_start_whose_result_lacks_what_the_poll_needs_fails_the_job(redis: "Redis", redis_url: str) -> None:
    """In words that have none of the result's values in them."""
    job, ledger = await live(redis, redis_url, Moments(None), [ok({"name": "s3cret"})])

    assert job.end is not None
    assert (job.place.state, job.end.error) == (
        "failed",
        "The job has failed: The start's result has nothing at 'id'.",
    )
    assert len(ledger.executed) == 1


async def test_ticks_that_overlap_do_nothing_twice(redis: "Redis", redis_url: str) -> None:
    """Two beats, or a late tick: many who go on with the same view of a job move it once."""
    async with job_records(redis_url) as records:
        spec = make_spec()
        await records.create(spec, state_machine.first_place(spec, now=time.time(), jitter=0), limit=9)
        ledger = Ledger(redis, Moments(None), [BEGUN, RUNNING, DONE], [])
        mover = mover_of(records, ledger, Settings(redis_url=redis_url), lease_seconds=5)
        job = await records.read("j")
        assert job is not None
        await asyncio.gather(*(mover.go_on(job) for _ in range(10)))
        seen = await records.read("j")
        assert seen is not None
        await asyncio.gather(*(mover.evaluate(seen) for _ in range(10)))
        after = await records.read("j")

    assert ledger.tries == ["j.0"]
    assert after is not None
    assert (after.place.state, after.place.step, after.poll_values) == ("waiting", 0, {"id": 7})


@asynccontextmanager
async def begun_job(
    redis: "Redis", url: str, ledger: "Ledger", *, standing: JobCallState | None = None
) -> AsyncGenerator[tuple[JobRecords, JobEngine, Found]]:
    """A job whose start was just published, and what moves it."""
    async with job_records(url) as records:
        spec = make_spec()
        await records.create(spec, state_machine.first_place(spec, now=time.time(), jitter=0), limit=9)
        mover = mover_of(records, ledger, Settings(redis_url=url), lease_seconds=5)
        ledger.standing = standing
        job = await records.read("j")
        assert job is not None
        await mover.go_on(job)
        begun = await records.read("j")
        assert begun is not None
        yield records, mover, begun


async def due_at(redis: "Redis") -> float:
    """When somebody looks at the job."""
    score = await redis.zscore("toolfleet:jobs-due", "j")
    assert score is not None, "nobody ever looks at the job"
    return float(score) / 1000


async def in_seconds(redis: "Redis") -> float:
    """Until somebody looks at the job."""
    return await due_at(redis) - time.time()


async def claimed(redis: "Redis", records: JobRecords) -> Found:
    """The job, once it is due again; one that nobody would look at is not found."""
    await redis.zadd("toolfleet:jobs-due", {"j": 1}, xx=True)
    ((found,), _) = await records.claim(count=1, lease_seconds=5)
    return found


async def test_a_lost_word_of_a_calls_end_costs_half_a_minute(redis: "Redis", redis_url: str) -> None:
    """And not the time until the call's deadline; while the call runs it is looked at again."""
    ledger = Ledger(redis, Moments(None), [BEGUN], [])
    ledger.seconds = 500
    async with begun_job(redis, redis_url, ledger) as (records, mover, _):
        assert 10 < await in_seconds(redis) < 31
        await redis.hset("toolfleet:call:j.0", "begun", "1")
        await redis.hdel("toolfleet:call:j.0", "state")
        await mover.go_on(await claimed(redis, records))
        assert 10 < await in_seconds(redis) < 31
        await redis.hset("toolfleet:call:j.0", "state", "done")
        await mover.go_on(await claimed(redis, records))  # its result is read for it
        after = await records.read("j")

    assert after is not None
    assert (after.place.state, after.poll_values) == ("waiting", {"id": 7})


async def test_a_call_that_waits_in_its_queue_is_seldom_published_again(redis: "Redis", redis_url: str) -> None:
    """Its message may be lost; in a queue that is long, one more at each look would make it longer."""
    ledger = Ledger(redis, Moments(None), [BEGUN], [])
    ledger.seconds, ledger.is_lost = 500, True
    async with begun_job(redis, redis_url, ledger) as (records, mover, _):
        await mover.go_on(await claimed(redis, records))
        assert ledger.tries == ["j.0"]
        assert 10 < await in_seconds(redis) < 31
        await redis.hset("toolfleet:job:j", "sent", int(time.time() - 600) * 1000)
        await mover.go_on(await claimed(redis, records))
        assert ledger.tries == ["j.0", "j.0"]
        await mover.go_on(await claimed(redis, records))
        assert ledger.tries == ["j.0", "j.0"]


async def test_a_start_whose_key_stands_for_another_call_takes_its_result(redis: "Redis", redis_url: str) -> None:
    """Its user has called the tool with that key before: the job goes on with what that has brought, or brings."""
    ledger = Ledger(redis, Moments(None), [], [])
    async with begun_job(redis, redis_url, ledger, standing=JobCallState("theirs")) as (records, mover, begun):
        assert (begun.place.state, begun.place.call_id, begun.call_state) == ("starting", "theirs", "")
        claimed_at = time.time()
        await mover.go_on(await claimed(redis, records))
        assert ledger.tries == ["j.0"]
        assert claimed_at + 1 < await due_at(redis) < time.time() + 3
        await redis.hset("toolfleet:call:theirs", mapping={"state": "done", "result": json_text.dump(BEGUN)})
        await redis.expire("toolfleet:call:theirs", 60)
        await mover.go_on(await claimed(redis, records))
        after = await records.read("j")

    assert after is not None
    assert (after.place.state, after.poll_values, after.place.call_id) == ("waiting", {"id": 7}, None)


async def test_a_start_whose_tool_is_unknown_just_now_is_put_off(redis: "Redis", redis_url: str) -> None:
    """While a fleet starts, say. Nothing has failed."""
    ledger = Ledger(redis, Moments(None), [BEGUN], [])
    ledger.unknown.append(ToolResult.refused("works.begin", "unknown_tool", "Unknown tool: works.begin"))
    async with begun_job(redis, redis_url, ledger) as (_, _, job):
        assert (job.place.state, job.place.step, ledger.tries) == ("starting", -1, [])
        assert 10 < await in_seconds(redis) < 20


async def test_whoever_claims_hears_that_a_module_has_enough_to_do(redis: "Redis", redis_url: str) -> None:
    """The call is put off, and is no fault."""
    busy = ToolResult.failed("works.begin", "busy", "No.", effect_state="none", retryable=True)
    ledger = Ledger(redis, Moments(None), [BEGUN], [busy])
    async with begun_job(redis, redis_url, ledger) as (_, mover, job):
        assert mover.is_crowded
        assert (job.place.state, job.place.step) == ("starting", -1)


async def test_a_job_goes_on_by_the_fleets_clock_when_redis_was_set(redis: "Redis", redis_url: str) -> None:
    """Its call is not given up by a clock that has jumped past the call's deadline, nor is one begun too early."""
    with fleet_clock_ahead(-500):  # as all of the fleet goes on, after Redis's clock was set forward
        async with job_records(redis_url) as records:
            now = fleet_clock.now()
            spec = make_spec(created_at=now, deadline_at=now + 60)
            await records.create(spec, state_machine.first_place(spec, now=now, jitter=0), limit=9)
            ledger = Ledger(redis, Moments(None), [BEGUN], [])
            mover = mover_of(records, ledger, Settings(redis_url=redis_url), lease_seconds=5)
            (job,), _ = await records.claim(count=9, lease_seconds=5)
            await mover.go_on(job)
            begun = await records.read("j")
            again, _ = await records.claim(count=9, lease_seconds=5)

    assert begun is not None
    assert begun.place.is_under_way
    assert begun.now == pytest.approx(now, abs=20)
    assert again == []


async def test_a_call_that_nobody_ended_is_given_up_after_its_deadline(redis: "Redis", redis_url: str) -> None:
    """One that was begun is unknown, and fails a job's start; one that was not is a poll to be made again."""
    async with job_records(redis_url) as records:
        mover = mover_of(records, Ledger(redis, Moments(None), [], []), Settings(redis_url=redis_url), lease_seconds=5)
        spec, long_ago = make_spec(), time.time() - 50
        await records.create(spec, JobPosition(state="polling", step=4, call_until=long_ago), limit=9)
        job = await records.read("j")
        assert job is not None
        await mover.go_on(job)
        waiting = await records.read("j")
        assert waiting is not None
        assert (waiting.place.state, waiting.place.faults) == ("waiting", 0)

        assert await records.move(
            waiting, JobChange(JobPosition(state="starting", step=0, call_until=long_ago), due_at=1)
        )
        await redis.hset("toolfleet:call:j.0", "begun", "1")
        await redis.expire("toolfleet:call:j.0", 60)
        job = await records.read("j")
        assert job is not None
        await mover.go_on(job)
        over = await records.get("j")

    assert over is not None
    assert over.end is not None
    assert (over.place.state, over.end.error_code) == ("failed", "outcome_unknown")


@pytest.mark.parametrize(("seconds", "kept", "executed"), [(50, 1, 2), (70, 3600, 2), (70, 60, 1), (7200, 3600, 1)])
async def test_a_call_whose_record_may_have_expired_is_not_made_again(
    redis: "Redis", redis_url: str, seconds: float, kept: float, executed: int
) -> None:
    """All workers were away for so long after they had run it, or had not: only while a record would be there one knows."""
    act = Poll(tool_name="works.pay", interval_seconds=0.01, until=None)
    async with job_records(redis_url) as records:
        settings = Settings(redis_url=redis_url, result_ttl_seconds=kept)
        ledger = Ledger(redis, Moments(None), [RUNNING], [])
        mover = mover_of(records, ledger, settings, lease_seconds=5)
        spec = make_spec(start=None, poll=act, on_complete=(), deadline_at=time.time() + 86_400)
        await records.create(spec, state_machine.first_place(spec, now=time.time(), jitter=0), limit=9)
        job = await records.read("j")
        assert job is not None
        await mover.go_on(replace(job, now=job.place.due_at or 0))
        assert [call_id for call_id, _ in ledger.executed] == ["j.1"]
        await redis.delete("toolfleet:call:j.1")
        job = await records.read("j")
        assert job is not None
        await mover.go_on(replace(job, now=(job.place.call_until or 0) + seconds))
        job = await records.read("j")
        assert job is not None
        if job.place.state == "waiting":
            await mover.go_on(replace(job, now=job.place.due_at or 0))
        assert len(ledger.executed) == executed
        over = await records.get("j")

    assert over is not None
    assert (over.place.state == "failed") == (executed == 1)


async def test_a_job_that_waits_for_its_hook_does_not_end_before_its_deadline(redis: "Redis", redis_url: str) -> None:
    """A worker that looks at it a moment too early leaves it; at the deadline it has timed out. It calls nothing."""
    async with job_records(redis_url) as records:
        ledger = Ledger(redis, Moments(None), [], [])
        mover = mover_of(records, ledger, Settings(redis_url=redis_url), lease_seconds=5)
        now = fleet_clock.now()
        hook = HookSpec(secrets=("whsec_" + "b3ds" * 8,))
        spec = make_spec(start=None, poll=None, hook=hook, created_at=now, deadline_at=now + 60)
        await records.create(spec, state_machine.first_place(spec, now=now, jitter=0), limit=9)
        states = list[str]()
        for early in (30.0, 0.003, 0.0):
            job = await records.read("j")
            assert job is not None
            await mover.go_on(replace(job, now=spec.deadline_at - early))
            found = await records.get("j")
            assert found is not None
            states.append(found.place.state)

    assert states == ["waiting", "waiting", "timed_out"]
    assert not ledger.executed
    assert not ledger.tries
