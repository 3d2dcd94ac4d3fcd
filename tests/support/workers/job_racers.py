"""Processes that claim and move jobs beside each other: `python job_racers.py URL claim|move`, and what they say they did.

Each says `ready` and waits for a line first: a race is shorter than the start of a Python.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.waiting import PATIENCE_SECONDS
from toolfleet_registry.redis.servers import connection_factory
from toolfleet_registry.settings import Settings
from toolfleet_tasks.jobs.records import JobChange, JobRecords
from toolfleet_tasks.jobs.state_machine import JobPosition
from toolfleet_tasks.redis_connection import PipelinedConnection

MOVES = 300
"""How often each process tries to move the job."""


@asynccontextmanager
async def job_records(
    url: str, kind: type[PipelinedConnection] = PipelinedConnection, **settings: Any
) -> AsyncGenerator[JobRecords]:
    """The records over a line of their own."""
    line = kind(connection_factory(url), name="jobs")
    line.start()
    await line.connected()
    try:
        yield JobRecords(line, Settings(redis_url=url, **settings))
    finally:
        await line.aclose()


async def race(url: str, what: str, *, processes: int = 3) -> list[Any]:
    """What each of several processes says that begin together."""
    command, pipe = (sys.executable, __file__, url, what), asyncio.subprocess.PIPE
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    started = [
        await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, env=env) for _ in range(processes)
    ]
    async with asyncio.timeout(3 * PATIENCE_SECONDS):
        for process in started:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"ready\n"
        said = await asyncio.gather(*(process.communicate(b"go\n") for process in started))
    return [json.loads(output) for output, _ in said]


def _wait_for_the_others() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()


async def _claim(url: str) -> list[str]:
    async with job_records(url) as records:
        ids: list[str] = []
        _wait_for_the_others()
        while found := (await records.claim(count=2, lease_seconds=60))[0]:
            ids += [job.spec.job_id for job in found]
        return ids


async def _move(url: str) -> int:
    done = 0
    async with job_records(url) as records:
        _wait_for_the_others()
        for _ in range(MOVES):
            job = await records.get("j")
            assert job is not None
            place = JobPosition(state="waiting", step=job.place.step + 1, due_at=9e9)
            done += await records.move(job, JobChange(place, due_at=9e9)) is not None
    return done


if __name__ == "__main__":
    print(json.dumps(asyncio.run({"claim": _claim, "move": _move}[sys.argv[2]](sys.argv[1]))))  # noqa: T201 - its answer
