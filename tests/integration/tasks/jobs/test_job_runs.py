"""A recurring job that ends after so many rounds: each counts once, whoever dies and however many look after it."""

import asyncio
import hashlib
import json
import time
from typing import Any

import pytest
from redis.asyncio import Redis

from support.waiting import PATIENCE_SECONDS
from support.workers.frail_jobs import LEASE_SECONDS, Ledger, Moments, live, make_spec, mover_of, ok, one_turn
from support.workers.job_racers import job_records
from toolfleet_registry.contracts import ToolCall, ToolResult
from toolfleet_registry.contracts.jobs import ENDED, JobSpec, Poll, Schedule
from toolfleet_registry.settings import Settings
from toolfleet_tasks.jobs import state_machine
from toolfleet_tasks.jobs.completion import end_note, shown
from toolfleet_tasks.jobs.state_machine import JobPosition, Transition
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.ids import request_digest

NOW = 1_800_000_000.0
EVERY_MINUTE = Schedule(cron="* * * * *", max_runs=3)
ROUNDS: dict[str, Any] = {
    "start": None,
    "poll": Poll(tool_name="works.state", until=None),
    "schedule": EVERY_MINUTE,
    "on_complete": ("resume_conversation",),
}
TICK = ok({"status": "completed"})


@pytest.fixture
def quick_cron(monkeypatch: pytest.MonkeyPatch) -> None:
    """Minutes of 20 ms: the calendar is not what is looked at here."""
    monkeypatch.setattr(state_machine, "next_after", lambda _, after: after + 0.02)


async def poll_values(redis: "Redis") -> list[str]:
    """The ids of all news, in their order."""
    streams: list[Any] = [await redis.xrange(key) async for key in redis.scan_iter("toolfleet:completions:*")]
    return [entry["id"] for stream in streams for _, entry in stream]


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("fatal", range(1, 13))
@pytest.mark.usefixtures("quick_cron")
async def test_a_worker_that_dies_anywhere_changes_no_count(
    redis: "Redis", redis_url: str, fatal: int, is_after: bool
) -> None:
    """Three rounds are called, told and counted, each once; then the job has completed."""
    job, ledger = await live(redis, redis_url, Moments(fatal, is_after=is_after), [TICK], spec=ROUNDS)

    assert (job.place.state, job.place.runs) == ("completed", 3)
    assert [call_id for call_id, _ in ledger.executed] == ["j.1", "j.2", "j.3"]
    assert await poll_values(redis) == ["j.1", "j.2", "j.3"]
    assert not await redis.exists("toolfleet:jobs-due")


@pytest.mark.usefixtures("quick_cron")
async def test_two_workers_count_each_round_once(redis: "Redis", redis_url: str) -> None:
    """Both claim what is due and take what each call came to, in any order."""
    async with job_records(redis_url) as first, job_records(redis_url) as second:
        spec = make_spec(**ROUNDS)
        place = state_machine.first_place(spec, now=time.time(), jitter=0)
        await first.create(spec, place, limit=9)
        ledger = Ledger(redis, Moments(None), [TICK], [])
        settings = Settings(redis_url=redis_url)
        workers = [(each, mover_of(each, ledger, settings, lease_seconds=LEASE_SECONDS)) for each in (first, second)]
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (job := await first.get("j")) is None or job.place.state not in ENDED:
                await asyncio.gather(*(one_turn(records, mover) for records, mover in workers))

    assert (job.place.state, job.place.runs) == ("completed", 3)
    assert await poll_values(redis) == ["j.1", "j.2", "j.3"]


def job_of(**fields: Any) -> JobSpec:
    return make_spec(**{**ROUNDS, "created_at": NOW, "deadline_at": NOW + 86_400, **fields})


def rounds_of(spec: JobSpec, *results: ToolResult) -> list[Transition]:
    """What follows from each round's result, as long as the job goes on."""
    place, now, moves = state_machine.first_place(spec, now=NOW, jitter=0), NOW, list[Transition]()
    for result in results:
        now = place.due_at or now
        begun = state_machine.begun(spec, place, now=now, call_until=now + 9)
        moves.append(state_machine.after_poll(spec, begun, result, now=now, jitter=0))
        place = moves[-1].place
    return moves


def test_a_round_counts_whatever_it_came_to() -> None:
    """One that failed has run; the job has completed after the last, and says how many there were and what went wrong in it."""
    broken = ToolResult.failed("works.state", "module_error", "No.", effect_state="done")
    spec = job_of()
    moves = rounds_of(spec, TICK, broken, broken)
    last = moves[-1]
    job = shown(spec, last.place, end_note(spec, last, NOW))

    assert [(move.place.runs, move.is_over) for move in moves] == [(1, False), (2, False), (3, True)]
    assert last.ended is not None
    assert (last.ended.state, last.round_step) == ("failed", 3)
    assert (job.state, job.runs, job.error_code) == ("completed", 3, "module_error")


def test_a_round_that_is_put_off_or_polls_again_counts_once() -> None:
    """What counts is the end of a round, and not the calls that it takes."""
    spec = job_of(poll=Poll(tool_name="works.state", until={"status": "completed"}))
    busy = ToolResult.failed("works.state", "busy", "Later.", effect_state="none")
    moves = rounds_of(spec, ok({"status": "running"}), busy, TICK, TICK)

    assert [move.place.runs for move in moves] == [0, 0, 1, 2]


def test_a_job_that_is_cancelled_keeps_its_count() -> None:
    """So that its owner sees how often it has run."""
    assert state_machine.cancelled(JobPosition(state="waiting", step=2, runs=2)).place.runs == 2


def test_only_jobs_that_count_are_for_newer_workers() -> None:
    """An older worker goes on with every other job, and leaves these to others: it would never end them."""
    uncounted = job_of(schedule=Schedule(cron="* * * * *"))
    assert rounds_of(uncounted, TICK)[-1].place.runs == 0
    assert (json_text.version_of(uncounted), json_text.version_of(job_of())) == (1, 2)
    assert json_text.version_of(job_of(schedule=Schedule(delay_seconds=60).counted_from(NOW))) == 1


def test_a_key_stands_for_one_count() -> None:
    """Another number of rounds is another wish; without one the digest is as it always was."""
    jobs = [job_of(schedule=Schedule(cron="* * * * *", max_runs=most)) for most in (None, 3, 4)]
    assert len({request_digest(job) for job in jobs}) == 3


def test_a_key_stands_for_the_versions_that_are_named() -> None:
    """A wish that names none has the digest that agents of earlier releases give it."""
    polls = [Poll(tool_name="a.b", tool_version=version) for version in (None, "1", "2")]
    starts = [ToolCall(tool_name="a.b", tool_version=version) for version in (None, "1")]
    wishes = [job_of(poll=poll) for poll in polls] + [job_of(start=start) for start in starts]
    assert len({request_digest(wish) for wish in wishes}) == 5

    said = polls[0].model_dump(mode="json", exclude={"tool_version"})
    known = json.dumps([[None, said, "resume_conversation"], None], sort_keys=True)
    assert request_digest(job_of(poll=polls[0], schedule=None)) == hashlib.sha256(known.encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"at": NOW, "delay_seconds": 5}, "one of `at`, `delay_seconds` and `cron`"),
        ({"cron": "* * * * *", "delay_seconds": 5}, "one of `at`, `delay_seconds` and `cron`"),
        ({"at": NOW, "max_runs": 2}, "and there is none"),
        ({"cron": "* * * * *", "max_runs": 0}, "greater than or equal to 1"),
        ({"delay_seconds": 0}, "greater than 0"),
        ({"delay_seconds": float("inf")}, "finite"),
    ],
)
def test_a_schedule_that_contradicts_itself_is_refused_when_it_is_made(fields: dict[str, Any], reason: str) -> None:
    """In one sentence, and not only when a job is made of it."""
    with pytest.raises(ValueError, match=reason):
        Schedule(**fields)


def test_a_delay_counts_from_the_moment_that_is_given() -> None:
    """It becomes a time; other schedules stay as they are."""
    assert Schedule(delay_seconds=90).counted_from(NOW) == Schedule(at=NOW + 90)
    assert EVERY_MINUTE.counted_from(NOW) is EVERY_MINUTE
    assert make_spec(start=ToolCall(tool_name="a.b")).schedule is None
