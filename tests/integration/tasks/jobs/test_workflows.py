"""Jobs that belong together: when one fails the others are cancelled, each once, whoever dies and whatever happens beside it."""

import asyncio
import time
from typing import Any

import pytest
from redis.asyncio import Redis

from support.waiting import PATIENCE_SECONDS, wait_until_answered
from support.workers.frail_jobs import LEASE_SECONDS, Died, FrailRecords, Ledger, Moments, make_spec, mover_of
from support.workers.job_racers import job_records
from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.contracts.jobs import ENDED, JobSpec, Schedule
from toolfleet_registry.settings import Settings
from toolfleet_tasks.jobs import state_machine
from toolfleet_tasks.jobs.completion import end_events_of, end_note
from toolfleet_tasks.jobs.engine import JobEngine
from toolfleet_tasks.jobs.records import Found, JobChange, JobRecords
from toolfleet_tasks.jobs.state_machine import EndedRound, JobPosition, Transition
from toolfleet_tasks.messages import json_text

BROKEN = ToolResult.failed("works.begin", "module_error", "No.", effect_state="done")
STAYS: dict[str, dict[str, Any]] = {
    "other": {"workflow_id": "nightly"},
    "theirs": {"workflow_id": "release", "user_id": "bob"},
    "alone": {},
}


def spec_of(job_id: str, **fields: Any) -> JobSpec:
    wanted: dict[str, Any] = {"user_id": "ada", "poll": None, "on_complete": ("resume_conversation",), **fields}
    return make_spec(**wanted).model_copy(update={"job_id": job_id})


async def add(records: JobRecords, job_id: str, place: JobPosition | None = None, **fields: Any) -> None:
    spec = spec_of(job_id, **fields)
    place = place or JobPosition(state="waiting", due_at=time.time() + 3600)
    assert isinstance(await records.create(spec, place, limit=99), Found)


async def add_workflow(records: JobRecords) -> None:
    """`j` is due and will fail; one of its workflow waits, one has a call under way, one has completed, and there are others."""
    release: dict[str, Any] = {"workflow_id": "release"}
    await add(records, "over", **release)
    over = await found(records, "over")
    ended = Transition(JobPosition(state="completed"), EndedRound("completed", 1), is_over=True)
    assert await records.move(over, JobChange(ended.place, end=end_note(over.spec, ended, time.time())))
    await add(records, "waits", **release)
    await add(records, "polls", JobPosition(state="polling", step=1, call_until=time.time() + 60), **release)
    polls = await found(records, "polls")
    assert await records.move(polls, JobChange(polls.place, due_at=time.time() + 60))
    for job_id, fields in STAYS.items():
        await add(records, job_id, **fields)
    await add(records, "j", JobPosition(state="starting", due_at=time.time()), **release)


async def found(records: JobRecords, job_id: str) -> Found:
    job = await records.get(job_id)
    assert job is not None
    return job


async def turn(records: JobRecords, mover: JobEngine) -> None:
    try:
        for job in (await records.claim(count=9, lease_seconds=LEASE_SECONDS))[0]:
            await mover.go_on(job)
        if (seen := await records.read("j")) is not None:
            await mover.evaluate(seen)
    except Died:  # another worker goes on
        pass


async def is_over(records: JobRecords) -> bool:
    return all([(await found(records, job_id)).place.state in ENDED for job_id in ("j", "waits", "polls")])


async def check(redis: "Redis", records: JobRecords) -> None:
    """The failed one is told of, once; its siblings are cancelled, and say why; all others are as they were."""
    states = {job_id: (await found(records, job_id)).place.state for job_id in ("j", "waits", "polls", "over", *STAYS)}
    assert states == {
        "j": "failed",
        "waits": "cancelled",
        "polls": "cancelled",
        "over": "completed",
        **dict.fromkeys(STAYS, "waiting"),
    }
    for job_id in ("waits", "polls"):
        end = (await found(records, job_id)).end
        assert end is not None
        assert end.error == "The job is cancelled: the job 'j' of its workflow has failed."
        assert end.error_code == "cancelled"
    streams: list[Any] = [await redis.xrange(key) async for key in redis.scan_iter("toolfleet:completions:*")]
    assert [entry["id"] for stream in streams for _, entry in stream] == ["j"]
    assert set(await redis.zrange("toolfleet:jobs-due", 0, -1)) == set(STAYS)


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("fatal", range(1, 7))
async def test_a_worker_that_dies_anywhere_leaves_no_sibling(
    redis: "Redis", redis_url: str, fatal: int, is_after: bool
) -> None:
    """A failed job's call is noted, published, confirmed and taken, and its two siblings are cancelled: at each it may die."""
    moments = Moments(fatal, is_after=is_after)
    async with job_records(redis_url) as records:
        await add_workflow(records)
        ledger = Ledger(redis, moments, [BROKEN], [])
        frail: Any = FrailRecords(records, moments)
        mover = mover_of(frail, ledger, Settings(redis_url=redis_url), lease_seconds=LEASE_SECONDS)

        async def has_gone_on() -> bool:
            await turn(records, mover)
            return await is_over(records)

        await wait_until_answered(has_gone_on, "the workflow is over")
        await check(redis, records)
        assert [call_id for call_id, _ in ledger.executed] == ["j.0"]


async def test_two_workers_cancel_each_sibling_once(redis: "Redis", redis_url: str) -> None:
    """They claim what is due beside each other."""
    async with job_records(redis_url) as first, job_records(redis_url) as second, asyncio.timeout(PATIENCE_SECONDS):
        await add_workflow(first)
        ledger, settings = Ledger(redis, Moments(None), [BROKEN], []), Settings(redis_url=redis_url)
        workers = [(each, mover_of(each, ledger, settings, lease_seconds=LEASE_SECONDS)) for each in (first, second)]
        while not await is_over(first):
            await asyncio.gather(*(turn(records, mover) for records, mover in workers))

        await check(redis, first)


async def fail(records: JobRecords, job_id: str) -> None:
    """The job's end, as its worker writes it."""
    job = await found(records, job_id)
    move, now = state_machine.failed(job.spec, job.place, "it broke."), time.time()
    events = end_events_of(job.spec, move, now, has_core=False, seal=records.sealed)
    assert await records.move(job, JobChange(move.place, end=end_note(job.spec, move, now), events=events))


async def test_who_looked_before_the_failure_moves_a_sibling_no_more(redis: "Redis", redis_url: str) -> None:
    """Neither to its next call, nor to an end of its own, nor is it put off: it is due at once, and is cancelled."""
    async with job_records(redis_url) as records:
        await add_workflow(records)
        before = await found(records, "waits")
        await fail(records, "j")
        begun = state_machine.begun(before.spec, before.place, now=time.time(), call_until=time.time() + 60)
        assert await records.move(before, JobChange(begun, due_at=time.time() + 60)) is None
        assert await records.move(before, JobChange(before.place, due_at=time.time() + 3600)) is None
        ended = Transition(JobPosition(state="completed"), EndedRound("completed", 1), is_over=True)
        note = end_note(before.spec, ended, time.time())
        assert await records.move(before, JobChange(ended.place, end=note)) is None

        claimed, _ = await records.claim(count=9, lease_seconds=5)
        assert {job.spec.job_id: job.stopped_by for job in claimed} == {"waits": "j", "polls": "j"}


async def test_a_sibling_ends_before_or_after_the_failure_and_never_both(redis: "Redis", redis_url: str) -> None:
    """Two ends in the same moment: who completed first is told of, who was stopped first is not."""
    async with job_records(redis_url) as first, job_records(redis_url) as second:
        for number in range(20):
            name, sibling = f"w-{number}", f"s-{number}"
            await add(first, name, workflow_id=name)
            await add(first, sibling, workflow_id=name)
            job = await found(second, sibling)
            ended, now = (
                Transition(JobPosition(state="completed"), EndedRound("completed", 1), is_over=True),
                time.time(),
            )
            events = end_events_of(job.spec, ended, now, has_core=False, seal=second.sealed)
            change = JobChange(ended.place, end=end_note(job.spec, ended, now), events=events)
            _, moved = await asyncio.gather(fail(first, name), second.move(job, change))
            seen = await first.read(sibling)
            assert seen is not None
            assert (moved is None) == (seen.stopped_by == name) == (seen.place.state == "waiting")
            assert (await found(first, name)).place.state == "failed"


@pytest.mark.parametrize("state", ["completed", "cancelled"])
async def test_only_a_failure_stops_the_others(redis: "Redis", redis_url: str, state: Any) -> None:
    """A job that completes, or that its owner ends, is none."""
    async with job_records(redis_url) as records:
        await add_workflow(records)
        job = await found(records, "j")
        ended = None if state == "cancelled" else EndedRound(state, 1)
        move = Transition(JobPosition(state=state), ended, is_over=True)
        assert await records.move(job, JobChange(move.place, end=end_note(job.spec, move, time.time())))
        seen = await records.read("waits")

    assert seen is not None
    assert seen.stopped_by is None


async def test_a_round_that_fails_stops_nothing(redis: "Redis", redis_url: str) -> None:
    """Its job goes on; and a job that is made after a failure is a new beginning."""
    async with job_records(redis_url) as records:
        await add_workflow(records)
        job = await found(records, "j")
        place = JobPosition(state="waiting", step=1, first=1, due_at=time.time() + 60)
        events = end_events_of(
            job.spec, Transition(place, EndedRound("failed", error="No."), round_step=1), 1.0, has_core=False, seal=str
        )
        assert await records.move(job, JobChange(place, due_at=place.due_at, events=events))
        seen = await records.read("waits")
        assert seen is not None
        assert seen.stopped_by is None

        await fail(records, "j")
        await add(records, "later", workflow_id="release")
        later = await records.read("later")
        assert later is not None
        assert later.stopped_by is None


async def test_a_stopped_job_may_be_cancelled_by_its_owner(redis: "Redis", redis_url: str) -> None:
    """That is what is to become of it, anyway."""
    async with job_records(redis_url) as records:
        await add_workflow(records)
        await fail(records, "j")
        job = await found(records, "waits")
        move = state_machine.cancelled(job.place)
        assert await records.move(job, JobChange(move.place, end=end_note(job.spec, move, time.time())))
        assert not await redis.hexists("toolfleet:job:waits", "stopped")


async def test_the_workflow_of_a_record_is_its_own(redis: "Redis", redis_url: str) -> None:
    """Jobs are listed by it, of one user or of all, with those that have ended or without."""
    async with job_records(redis_url) as records:
        await add_workflow(records)
        live = await records.of_user("ada", ended=False, limit=9, workflow_id="release")
        all_of_ada = await records.of_user("ada", ended=True, limit=9, workflow_id="release")
        everybody = await records.of_all(ended=True, limit=9, workflow_id="release")
        first = await records.of_user("ada", ended=False, limit=1, workflow_id="nightly")
        none = await records.of_all(ended=True, limit=9, workflow_id="nothing")

    assert {job.spec.job_id for job in live} == {"j", "waits", "polls"}
    assert {job.spec.job_id for job in all_of_ada} == {"j", "waits", "polls", "over"}
    assert {job.spec.job_id for job in everybody} == {"j", "waits", "polls", "over", "theirs"}
    assert [job.spec.job_id for job in first] == ["other"]  # though it is not the newest
    assert none == []


def test_a_job_in_a_workflow_is_for_newer_workers() -> None:
    """An older one would not look after its siblings: it leaves the job to others."""
    assert json_text.version_of(spec_of("j", workflow_id="release")) == 2
    assert json_text.version_of(spec_of("j", schedule=Schedule(at=9e9))) == 1
