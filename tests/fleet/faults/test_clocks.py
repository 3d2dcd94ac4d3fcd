"""Clocks that are wrong, and a Redis whose clock is set, in a real fleet: no call is harmed, and somebody says so."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.clocks import WallClock, redis_with_a_clock
from support.fleet import TestBed
from support.module_server import ModuleServer
from support.modules.later import LATER, LATER_SECONDS, later_module
from support.owls import echo, turn_away
from support.pace import at_rate
from support.waiting import PATIENCE_SECONDS, wait_until
from support.worker_process import WorkerProcess
from toolfleet import Caller, ToolCall, ToolFleet, ToolResult
from toolfleet_cli.local.environment import environment_of
from toolfleet_registry.system.fleet_clock import YOUNG_SECONDS

ECHO = ToolCall(tool_name="owls.echo", arguments={"n": 1})

AGENT = """
import asyncio, json, sys
from toolfleet import Caller, ToolCall, ToolFleet

async def main():
    caller = Caller(user_id="bob", permission="owner", allowed_modules="*")
    async with ToolFleet() as fleet:
        calls = [ToolCall(tool_name="owls.echo", arguments={"n": n}) for n in range(20)]
        calls.append(ToolCall(tool_name="owls.nap_once", arguments={"seconds": 1}))
        results = await asyncio.gather(*(fleet.call(call, caller, timeout=20) for call in calls))
        print(json.dumps([result.error for result in results]))

asyncio.run(main())
"""


LEASE_SECONDS = 4


@contextmanager
def stepping(owls: ModuleServer, folder: Path) -> Generator[tuple[TestBed, WallClock]]:
    """A fleet's place whose Redis can be set, with short leases."""
    (folder / "logs").mkdir()
    owls.forget()
    with redis_with_a_clock(folder) as (url, clock):
        yield (
            TestBed(url, (owls,), folder / "logs", {"visibility_timeout": LEASE_SECONDS}),
            clock,
        )


async def agent(bed: TestBed, clock: WallClock | None = None) -> list[str | None]:
    """What the calls of an agent that is started now come to: an error each, or nothing."""
    env = {**environment_of(bed.settings), **(clock.env if clock else {})}
    run = asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", AGENT],
        env=env,
        cwd=bed.folder,
        capture_output=True,
        timeout=3 * PATIENCE_SECONDS,
        check=False,
    )
    done: Any = await run
    assert done.returncode == 0, done.stderr.decode()
    errors: list[str | None] = json.loads(done.stdout.splitlines()[-1])
    return errors


@dataclass(frozen=True)
class Pair:
    """Two workers and an agent that have stopped believing Redis's clock."""

    bed: TestBed
    clock: WallClock
    workers: tuple[WorkerProcess, WorkerProcess]
    fleet: ToolFleet


@asynccontextmanager
async def grown_up(owls: ModuleServer, folder: Path) -> AsyncGenerator[Pair]:
    with stepping(owls, folder) as (bed, clock), bed.worker() as first, bed.worker() as second:
        async with ToolFleet(settings=bed.settings) as fleet:
            grown_up_at = time.monotonic() + YOUNG_SECONDS + 1
            await wait_until(lambda: time.monotonic() > grown_up_at, "nobody believes Redis any more")
            yield Pair(bed, clock, (first, second), fleet)


@pytest.fixture
def fast_bed(owls: ModuleServer, redis_url: str, tmp_path: Path) -> TestBed:
    """A fleet whose Redis keeps the time."""
    owls.forget()
    (tmp_path / "logs").mkdir()
    more = {"visibility_timeout": 2 * LEASE_SECONDS}  # of which a retry may be half away
    return TestBed(redis_url, (owls,), tmp_path / "logs", more)


@pytest.mark.parametrize("seconds", [30, -30])
async def test_a_worker_that_is_off_works(fast_bed: TestBed, owner: Caller, tmp_path: Path, seconds: float) -> None:
    """Also when a call is to be tried again later, when the module wants it: by the time that passes. It says so once a minute."""
    clock = WallClock(tmp_path, ahead=seconds)
    with later_module() as (module, asked_at):
        module.add("echo", echo, effect="read")
        module.add("turn_away", turn_away, effect="once")
        fast_bed.modules = (module,)
        with fast_bed.worker(env=clock.env) as worker:
            async with ToolFleet(settings=fast_bed.settings) as fleet:
                results = await asyncio.gather(*(fleet.call(ECHO, owner, timeout=20) for _ in range(20)))
                turned_away = await fleet.call(ToolCall(tool_name="owls.turn_away"), owner, timeout=20)
                result = await fleet.call(LATER, owner, timeout=LATER_SECONDS + 20)

    assert [result.error for result in results if not result.success] == []
    assert all((result.audit.queued_ms or 0) < 20_000 for result in results)
    assert (turned_away.error_code, turned_away.audit.attempts) == ("busy", 2)
    check_that_it_was_asked_in_time(result, asked_at)
    assert worker.said().count("own_clock_off") == 1


def check_that_it_was_asked_in_time(result: ToolResult, asked_at: Sequence[float]) -> None:
    assert (result.result, result.audit.attempts) == ("now", 2), result
    assert asked_at[1] - asked_at[0] > LATER_SECONDS - 0.5


async def test_an_agent_that_is_off_works(bed: TestBed, worker: object, tmp_path: Path) -> None:
    """Its calls' deadlines are by the fleet's clock."""
    del worker
    assert await agent(bed, WallClock(tmp_path, ahead=-30)) == [None] * 21


async def test_a_worker_that_is_far_off_takes_no_calls(
    fast_bed: TestBed, owls: ModuleServer, owner: Caller, tmp_path: Path
) -> None:
    """Until its clock is right again; what has begun ends."""
    clock = WallClock(tmp_path)
    with fast_bed.worker(env=clock.env) as worker:
        async with ToolFleet(settings=fast_bed.settings) as fleet:
            running = await fleet.submit(ToolCall(tool_name="owls.nap_once", arguments={"seconds": 2}), owner)
            await wait_until(lambda: owls.calls("nap_once"), "the call runs")
            clock.set_ahead(400)
            await wait_until(lambda: "worker_takes_no_calls" in worker.said(), "the worker has stopped")
            waiting = await fleet.submit(ECHO, owner, timeout=30)
            begun = await running.result()
            assert begun.success
            assert await waiting.status() == "queued"
            clock.set_ahead(0)
            assert (await waiting.result()).success

    assert "worker_takes_calls_again" in worker.said()


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [90, -600])
async def test_no_call_ends_when_redis_is_set_whose_worker_lives(
    owls: ModuleServer, owner: Caller, tmp_path: Path, seconds: float
) -> None:
    """Calls that run, wait or are made later, by agents old and new, at workers old and new: each runs once and succeeds."""
    async with grown_up(owls, tmp_path) as pair:
        fleet = pair.fleet
        calls = [asyncio.create_task(fleet.call(nap(2.5 * LEASE_SECONDS), owner, timeout=40)) for _ in range(60)]
        await wait_until(lambda: owls.running >= 60, "all run")
        pair.clock.set_ahead(seconds)
        async for _ in at_rate(20):
            if calls[0].done():
                break
            calls.append(asyncio.create_task(fleet.call(nap(0.5), owner, timeout=20)))
        results = await asyncio.gather(*calls)
        with pair.bed.worker():
            later = await asyncio.gather(agent(pair.bed), agent(pair.bed))
            last = await asyncio.gather(*(fleet.call(ECHO, owner) for _ in range(60)))

    assert [(result.error_code, result.error) for result in (*results, *last) if not result.success] == []
    assert list(later) == [[None] * 21] * 2
    assert len(owls.calls("nap_once")) == len(calls) + 2
    assert any("redis_clock_stepped" in worker.said() for worker in pair.workers)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [90, -600])
async def test_a_dead_workers_calls_come_back_though_redis_is_set(
    owls: ModuleServer, owner: Caller, tmp_path: Path, seconds: float
) -> None:
    """Within a few leases, as ever: a lease from before the clock was set back does not hold until then."""
    async with grown_up(owls, tmp_path) as pair:
        call = ToolCall(tool_name="owls.nap", arguments={"seconds": 3})
        calls = [asyncio.create_task(pair.fleet.call(call, owner, timeout=60)) for _ in range(40)]
        await wait_until(lambda: owls.running >= 40, "all run")
        killed, survivor = pair.workers
        killed.process.kill()
        pair.clock.set_ahead(seconds)
        async with asyncio.timeout(8 * LEASE_SECONDS):
            results = await asyncio.gather(*calls)

    assert [(result.error_code, result.error) for result in results if not result.success] == []
    assert any(result.audit.attempts == 2 for result in results)
    assert "expired_leases_restored" in survivor.said()


def nap(seconds: float) -> ToolCall:
    return ToolCall(tool_name="owls.nap_once", arguments={"seconds": seconds})
