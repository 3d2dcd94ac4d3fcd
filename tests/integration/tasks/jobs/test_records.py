"""Jobs in Redis: made once, claimed by one, moved by one, ended once; and what nobody of the fleet wrote is never acted on."""

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import structlog
from redis.asyncio import Redis

from support.waiting import wait_until_answered
from support.workers.job_racers import MOVES, job_records, race
from support.workers.ledgers import RepeatingConnection
from toolfleet_registry.contracts import Caller, Conversation, ToolCall
from toolfleet_registry.contracts.jobs import JobSpec, Poll
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.jobs import records as stored_jobs
from toolfleet_tasks.jobs.completion import EndNote, JobEvent
from toolfleet_tasks.jobs.records import Found, JobChange, JobRecords
from toolfleet_tasks.jobs.state_machine import JobPosition
from toolfleet_tasks.redis_connection import Part, PipelinedConnection, RedisConnectionLost

KEY = "0123456789abcdef0123456789abcdef"
WAITING = JobPosition(state="waiting", due_at=1.0)


def make_spec(job_id: str = "j", *, user_id: str | None = "ada", **fields: Any) -> JobSpec:
    wanted: dict[str, Any] = {
        "start": ToolCall(tool_name="works.begin", arguments={"secret": "s3cret"}),
        "poll": Poll(tool_name="works.state", arguments={"token": "s3cret"}),
        "conversation": Conversation(conversation_id="c"),
        "created_at": time.time(),
        "deadline_at": time.time() + 3600,
        **fields,
    }
    return JobSpec(job_id=job_id, caller=Caller(user_id=user_id), user_id=user_id, **wanted)


@pytest.fixture(params=[False, True], ids=["", "sent-again"])
async def records(request: pytest.FixtureRequest, redis_url: str) -> AsyncIterator[JobRecords]:
    """Every fact holds as well when each script is sent twice, its first answer being lost."""
    async with job_records(redis_url, RepeatingConnection if request.param else PipelinedConnection) as records:
        yield records


class LosingConnection(PipelinedConnection):
    """A line that loses the first answer of each reading command."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._lost: list[tuple[Part, ...]] = []

    async def send(self, *command: Part) -> Any:  # type: ignore[override] # it is awaited only
        """As every line's."""
        answer = await super().send(*command)
        if command[0] == "HMGET" and command not in self._lost:
            self._lost.append(command)
            raise RedisConnectionLost("lost", sent=True)
        return answer


async def test_one_job_is_read_though_a_connection_is_lost(redis_url: str) -> None:
    """Its answer is small, so the command is sent again; a page of jobs is not, as its answer may be what Redis cut it for."""
    async with job_records(redis_url, LosingConnection) as records:
        await made(records)
        await made(records, make_spec("k"))
        found = await records.get("j")
        assert found is not None
        assert found.spec.job_id == "j"
        with pytest.raises(RedisConnectionLost):
            await records.of_user("ada", ended=False, limit=10)


async def made(
    records: JobRecords, spec: JobSpec | None = None, place: JobPosition = WAITING, limit: int = 100
) -> Found:
    found = await records.create(spec or make_spec(), place, limit=limit)
    assert isinstance(found, Found)
    return found


async def test_a_job_is_made_once(records: JobRecords, redis: Redis) -> None:
    """With an id that exists, the first job is returned, and nothing of it changes."""
    first = await made(records)
    again = await made(records, make_spec(name="other"), JobPosition(state="starting", due_at=9.0))

    assert (again.spec.name, again.place) == (first.spec.name, first.place)
    assert await redis.zcard("toolfleet:jobs-due") == 1


async def test_a_user_has_so_many_jobs_and_no_more(records: JobRecords) -> None:
    """Jobs that have ended do not count, nor do other users'."""
    jobs = [await made(records, make_spec(str(n)), limit=3) for n in range(3)]
    assert await records.create(make_spec("4"), WAITING, limit=3) == 3
    await made(records, make_spec("5", user_id="bob"), limit=3)

    over = JobChange(JobPosition(state="completed"), end=EndNote(ended_at=1.0))
    assert await records.move(jobs[0], over)
    await made(records, make_spec("6"), limit=3)


async def test_a_lost_record_does_not_count_for_ever(redis: Redis, redis_url: str) -> None:
    """Where Redis has lost a job, or it was taken out of the way, its user may have another."""
    async with job_records(redis_url) as records:
        await made(records, limit=1)
        await redis.delete("toolfleet:job:j")
        assert await records.claim(count=5, lease_seconds=5) == ([], False)

        await made(records, make_spec("other"), limit=1)


async def test_a_move_needs_the_place_it_was_made_from(records: JobRecords) -> None:
    """Of two who move a job one succeeds; what the other wanted to tell is not told."""
    job = await made(records)
    assert await records.move(job, JobChange(JobPosition(state="polling", step=1, call_until=5.0), due_at=5.0))

    events = (JobEvent("continue", "j", "{}"),)
    assert not await records.move(
        job, JobChange(JobPosition(state="timed_out"), end=EndNote(ended_at=1.0), events=events)
    )
    found = await records.get("j")
    assert found is not None
    assert found.place.state == "polling"


async def test_an_end_writes_its_news_and_keeps_no_arguments(records: JobRecords, redis: Redis) -> None:
    """In one step: the wake, the entry for an agent without HTTP, the note of the end; the record expires then."""
    job = await made(records)
    events = (
        JobEvent("continue", "j", '{"a":1}'),
        JobEvent("call", "j.then.0", "{}"),
        JobEvent("completion", "j.c", "{}", "c"),
    )
    end = EndNote(ended_at=5.0, result={"x": 1})
    assert await records.move(job, JobChange(JobPosition(state="completed", step=2), end=end, events=events))

    assert await redis.hget("toolfleet:wake:j", "body") == '{"a":1}'
    assert await redis.zcard("toolfleet:wakes-due") == 1
    assert await redis.zcard("toolfleet:wakes-due:calls") == 1
    assert [key async for key in redis.scan_iter("toolfleet:completions:*")] == [Keys().completions_of("c", "ada")]
    assert await redis.xlen(Keys().completions_of("c", "ada")) == 1
    assert await redis.ttl("toolfleet:job:j") > 0
    assert "s3cret" not in str(await redis.hgetall("toolfleet:job:j"))
    assert not await redis.exists("toolfleet:jobs-due")
    shown = await records.get("j")
    assert shown is not None
    assert shown.end == end
    assert [one.spec.job_id for one in await records.of_user("ada", ended=True, limit=9)] == ["j"]
    assert await records.of_user("ada", ended=False, limit=9) == []
    assert [one.spec.job_id for one in await records.of_all(ended=True, limit=9)] == ["j"]


async def test_a_claimed_job_is_nobody_elses_until_its_lease_is_over(redis_url: str) -> None:
    """It comes back then; and what is not due is not claimed."""
    async with job_records(redis_url) as records:
        await made(records)
        await made(records, make_spec("later"), JobPosition(state="waiting", due_at=time.time() + 60))
        found, is_full = await records.claim(count=5, lease_seconds=1)
        assert ([job.spec.job_id for job in found], is_full) == (["j"], False)
        assert await records.claim(count=5, lease_seconds=5) == ([], False)

        async def is_free() -> bool:
            return bool((await records.claim(count=5, lease_seconds=5))[0])

        await wait_until_answered(is_free, "its lease is over")


async def test_many_who_claim_at_once_share_what_is_due(redis_url: str) -> None:
    """Processes that claim beside each other get each job once."""
    async with job_records(redis_url) as records:
        for number in range(300):
            await made(records, make_spec(f"j{number}"), limit=1_000)
    shares = await race(redis_url, "claim")
    taken = [job_id for ids in shares for job_id in ids]

    assert len([ids for ids in shares if ids]) >= 2, "there was no race"
    assert sorted(taken) == sorted(f"j{number}" for number in range(300))


async def test_processes_that_move_one_job_do_so_once(redis_url: str) -> None:
    """Hundreds of changes from several processes: each follows the one before, and none is lost or doubled."""
    async with job_records(redis_url) as records:
        await made(records)
    done = sum(await race(redis_url, "move", processes=3))
    async with job_records(redis_url) as records:
        found = await records.get("j")

    assert found is not None
    assert found.place.step == done - 1
    assert done < 3 * MOVES, "there was no race"


@pytest.mark.parametrize(
    "damage",
    [
        *("forged", "unsigned", "another's", "no JSON", "no place"),
        *("not text", "unsigned place", "another's place", "unsigned values", "another's values"),
    ],
)
async def test_a_record_that_is_not_ours_is_never_acted_on(redis: Redis, redis_url: str, damage: str) -> None:
    """It is logged, and left to others for a while; after days it is taken out of the way, and kept for a look."""
    async with job_records(redis_url, signing_key=KEY) as records:
        other = await made(records, make_spec("other"), JobPosition(state="waiting", due_at=time.time() + 99))
        assert await records.move(other, JobChange(other.place, poll_values={"token": "x"}))
        await made(records)
        spec = str(await redis.hget("toolfleet:job:j", "spec"))
        damages: dict[str, tuple[str, str | bytes]] = {
            "forged": ("spec", spec.replace("works.state", "works.steal")),
            "unsigned": ("spec", spec.partition(" ")[2]),
            "another's": ("spec", str(await redis.hget("toolfleet:job:other", "spec"))),
            "no JSON": ("spec", "\xff"),
            "no place": ("at", '{"state":"nowhere"}'),
            "not text": ("at", b"\xff\xfe"),
            "unsigned place": ("at", '{"state":"starting","due_at":1.0}'),
            "another's place": ("at", str(await redis.hget("toolfleet:job:other", "at"))),
            "unsigned values": ("told", '{"token":"x"}'),
            "another's values": ("told", str(await redis.hget("toolfleet:job:other", "told"))),
        }
        field, value = damages[damage]
        await redis.hset("toolfleet:job:j", field, value)
        with structlog.testing.capture_logs() as logs:
            assert await records.claim(count=5, lease_seconds=0.01) == ([], False)
            assert await records.read("j") is None

        assert "job_refused" in {line["event"] for line in logs}
        assert (await redis.zscore("toolfleet:jobs-due", "j") or 0) / 1000 - time.time() == pytest.approx(45, abs=20)

        await redis.hset("toolfleet:job:j", "unread", int(time.time() - 8 * 86_400) * 1000)
        await redis.zadd("toolfleet:jobs-due", {"j": 1})
        assert await records.claim(count=5, lease_seconds=0.01) == ([], False)
        assert await redis.zscore("toolfleet:jobs-due", "j") is None
        assert await redis.ttl("toolfleet:job:j") > 0


@pytest.mark.parametrize("reader", ["other-key", "no-key", "older"])
async def test_a_worker_that_cannot_read_a_job_leaves_it_to_one_that_can(
    redis: Redis, redis_url: str, reader: str
) -> None:
    """Another key, or a newer field, ends nothing: the right worker goes on, and its creator may cancel the job meanwhile."""
    keys = {"other-key": KEY[::-1], "no-key": None, "older": None}
    async with (
        job_records(redis_url, signing_key=None if reader == "older" else KEY) as writer,
        job_records(redis_url, signing_key=keys[reader]) as wrong,
    ):
        job = await made(writer)
        spec = str(await redis.hget("toolfleet:job:j", "spec"))
        if reader == "older":
            await redis.hset("toolfleet:job:j", "spec", spec.replace('"job_id"', '"new_field":1,"job_id"'))
        assert await wrong.claim(count=5, lease_seconds=5) == ([], False)
        assert await redis.ttl("toolfleet:job:j") == -1
        assert await redis.zscore("toolfleet:jobs-due", "j") is not None

        await redis.hset("toolfleet:job:j", "spec", spec)
        await redis.zadd("toolfleet:jobs-due", {"j": 1})
        (found,), _ = await writer.claim(count=5, lease_seconds=5)
        assert (found.spec, found.place) == (job.spec, job.place)
        assert await writer.move(found, JobChange(JobPosition(state="cancelled"), end=EndNote(ended_at=1.0)))


async def test_a_place_and_what_the_start_told_travel_sealed(redis: Redis, redis_url: str) -> None:
    """Both are read back as they were, and the call that is under way is found by them."""
    async with job_records(redis_url, signing_key=KEY) as records:
        job = await made(records)
        place = JobPosition(state="polling", step=3, call_until=9e9)
        assert await records.move(job, JobChange(place, due_at=1, poll_values={"id": 7}))
        await redis.hset("toolfleet:call:j.3", "begun", "1")
        await redis.expire("toolfleet:call:j.3", 60)
        found = await records.read("j")

    assert found is not None
    assert (found.place.step, found.poll_values, found.call_state) == (3, {"id": 7}, "begun")
    assert str(await redis.hget("toolfleet:job:j", "told")).startswith("eyJ")


async def test_ended_jobs_are_bounded(redis: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one user, as many are kept as can be listed; nothing that is long about what they waited for is."""
    monkeypatch.setattr(stored_jobs, "MOST_ENDED", 3)
    until = {"status": ["x" * 1_000]}
    async with job_records(redis_url) as records:
        for number in range(6):
            poll = Poll(tool_name="works.state", until=until, failed_when=until)
            job = await made(records, make_spec(f"j{number}", poll=poll, message="y" * 1_000))
            assert await records.move(job, JobChange(JobPosition(state="completed"), end=EndNote(ended_at=1.0)))
        listed = {one.spec.job_id for one in await records.of_user("ada", ended=True, limit=9)}

    kept = {key async for key in redis.scan_iter("toolfleet:job:*")}
    assert kept == {f"toolfleet:job:{job_id}" for job_id in listed} == {f"toolfleet:job:j{n}" for n in (3, 4, 5)}
    assert await redis.zcard("toolfleet:jobs-ended") == 3
    assert len(str(await redis.hget("toolfleet:job:j5", "spec"))) < 800


async def test_claiming_brings_no_results(redis: Redis, redis_url: str) -> None:
    """A hundred results may be more than a process has memory for; each is read where it is needed."""
    async with job_records(redis_url) as records:
        await made(records, place=JobPosition(state="polling", step=3, call_until=9.0, due_at=1.0))
        await redis.hset("toolfleet:call:j.3", mapping={"state": "done", "result": '{"tool_name":"t","success":true}'})
        await redis.expire("toolfleet:call:j.3", 60)
        (claimed,), _ = await records.claim(count=5, lease_seconds=5)
        looked = await records.read("j")

    assert (claimed.call_state, claimed.result) == ("done", None)
    assert looked is not None
    assert looked.result is not None


async def test_a_calls_end_is_read_with_its_job(redis: Redis, redis_url: str) -> None:
    """From the ledger's record, wherever the result is; one that has expired is none."""
    async with job_records(redis_url) as records:
        await made(records, place=JobPosition(state="polling", step=3, call_until=9.0))
        states = []
        for fields in (
            {},
            {"begun": "1"},
            {"state": "done"},
            {"state": "done", "result": '{"tool_name":"t","success":true}'},
        ):
            if fields:
                await redis.hset("toolfleet:call:j.3", mapping=dict[Any, Any](fields))
            found = await records.read("j")
            assert found is not None
            states.append((found.call_state, found.result is not None and found.result.success))
        await redis.delete("toolfleet:call:j.3")

    assert states == [("", False), ("begun", False), ("done", False), ("done", True)]
