"""Jobs while workers, beat and Redis are killed: each call of theirs is made once, each end is told once, and none is lost."""

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from support.fleet import TestBed, program
from support.module_server import serve
from support.modules.works import Works, make_works
from support.servers.redis_faults import faulty_redis
from support.waiting import PATIENCE_SECONDS, wait_until
from toolfleet import Caller, Conversation, Job, Poll, ToolCall, ToolFleet
from toolfleet_cli.local.commands import beat_command
from toolfleet_registry.contracts.jobs import ENDED
from toolfleet_tasks.messages.ids import step_call_id

JOBS = 40
# A short lease has the sweep look often; the module's work is quick, so that most jobs are between two steps.
QUICK = {"jobs_interval_seconds": 0.2, "shortest_poll_seconds": 0.05, "visibility_timeout": 4}
POLL = Poll(tool_name="works.state", arguments={"id": {"$from": "task.id"}}, interval_seconds=0.3)


@pytest.fixture(autouse=True)
def _in_fast_mode(fast_mode: None) -> None:
    """A lease so short is for workers that renew it; what is about others says so."""


def beds(folder: Path, works: Works, url: str) -> TestBed:
    logs = folder / "logs"
    logs.mkdir()
    return TestBed(url, (works.server,), logs, QUICK)


async def start_all(fleet: ToolFleet, caller: Caller) -> list[Job]:
    here = Conversation(conversation_id="c")
    return [
        await fleet.jobs.start(ToolCall(tool_name="works.begin"), POLL, conversation=here, caller=caller, deadline=600)
        for _ in range(JOBS)
    ]


async def all_ended(fleet: ToolFleet, jobs: list[Job], caller: Caller, *, seconds: float = 90) -> list[Job]:
    give_up_at, found = time.monotonic() + seconds, list[Job]()
    while time.monotonic() < give_up_at:
        with contextlib.suppress(Exception):  # Redis is away now and then
            found = await fleet.jobs.list(caller, limit=1000)
            if len(found) == len(jobs) and all(job.state in ENDED for job in found):
                return found
        await asyncio.sleep(0.1)
    raise AssertionError([job for job in found if job.state not in ENDED][:3])


async def check(url: str, jobs: list[Job], works: Works) -> None:
    """Each start was made at most once (one whose worker died is unknown, and has failed), and each end is told once."""
    assert sum(job.state == "completed" for job in jobs) > 0
    begun = works.server.call_ids("begin")
    for job in jobs:
        times = begun.count(step_call_id(job.job_id, 0))
        assert (times, job.state) == (1, "completed") or (times <= 1 and job.error_code == "outcome_unknown"), job
    async with Redis.from_url(url, decode_responses=True) as redis:
        streams: list[Any] = [await redis.xrange(key) async for key in redis.scan_iter("toolfleet:completions:*")]
        told = [entry["id"] for stream in streams for _, entry in stream]
        assert sorted(told) == sorted(job.job_id for job in jobs)
        assert not await redis.exists("toolfleet:jobs-due")


@pytest.mark.slow
async def test_killed_workers_cost_no_job_and_double_none(tmp_path: Path, owner: Caller) -> None:
    """Workers are killed one after the other while jobs run; the next ones go on."""
    works = make_works(ends_after=12)  # there must be work for each of them
    with serve(works.server), faulty_redis(tmp_path / "redis") as redis:
        bed = beds(tmp_path, works, redis.url)
        with program(bed, beat_command(), "beat", ready="beat: Starting"):
            async with ToolFleet(settings=bed.settings) as fleet:
                jobs = await start_all(fleet, owner)
                for _ in range(4):
                    with bed.worker() as worker:
                        polls = len(works.server.calls("state"))
                        await wait_until(_more_than(works, polls + 5), "the worker polls", seconds=2 * PATIENCE_SECONDS)
                        await asyncio.sleep(random.random() / 5)
                        worker.send_signal(signal.SIGKILL)
                with bed.worker():
                    over = await all_ended(fleet, jobs, owner)
        await check(redis.url, over, works)


async def test_redis_and_beat_come_back_and_jobs_go_on(tmp_path: Path, owner: Caller) -> None:
    """Redis restarts with its data, and beat is killed and comes again: what was due meanwhile is late, and not lost."""
    works = make_works(ends_after=4)
    with serve(works.server), faulty_redis(tmp_path / "redis") as redis:
        bed = beds(tmp_path, works, redis.url)
        with bed.worker():
            async with ToolFleet(settings=bed.settings) as fleet:
                with program(bed, beat_command(), "beat", ready="beat: Starting") as beat:
                    jobs = await start_all(fleet, owner)
                    await wait_until(lambda: len(works.server.calls("state")) > 10, "jobs are polled")
                    with redis.restarted():
                        await asyncio.sleep(0.3)
                    beat.send_signal(signal.SIGKILL)
                with program(bed, beat_command(), "beat", ready="beat: Starting"):
                    over = await all_ended(fleet, jobs, owner)
        await check(redis.url, over, works)


def _more_than(works: Works, polls: int) -> Callable[[], bool]:
    return lambda: len(works.server.calls("state")) > polls


@pytest.mark.parametrize("is_fast", [True, False], ids=["fast", "stock"])
async def test_jobs_run_over_either_transport(
    tmp_path: Path, owner: Caller, monkeypatch: pytest.MonkeyPatch, is_fast: bool
) -> None:
    """Kombu's own transport carries them as well; two beats do no harm."""
    monkeypatch.setenv("TOOLFLEET_FAST_TRANSPORT", "1" if is_fast else "0")
    works = make_works(ends_after=2)
    with serve(works.server), faulty_redis(tmp_path / "redis") as redis:
        bed = beds(tmp_path, works, redis.url)
        bed.more = {"jobs_interval_seconds": 0.2, "shortest_poll_seconds": 0.05}
        beats = [program(bed, beat_command(), f"beat-{number}", ready="beat: Starting") for number in range(2)]
        with bed.worker(), beats[0], beats[1]:
            async with ToolFleet(settings=bed.settings) as fleet:
                over = await all_ended(fleet, await start_all(fleet, owner), owner)
        assert {job.state for job in over} == {"completed"}
        await check(redis.url, over, works)
