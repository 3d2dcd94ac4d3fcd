"""Runs that were deferred go on anywhere and any time: the real packages, scripted models, and work that happens once."""

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis

from fleet.adapters.deferred.conftest import LongWork, each_once
from support.fleet import TestBed
from support.frameworks.deferred_runs import RUNS, DeferredRun
from support.waiting import wait_until
from toolfleet import Caller, ToolFleet

each_framework = pytest.mark.parametrize("framework", RUNS)


async def begun(bed: TestBed, run: DeferredRun) -> tuple[dict[str, Any], Any]:
    """Begin a run in a process that has gone then."""
    async with ToolFleet(settings=bed.settings) as fleet:
        return await run.begin(fleet)


async def expire(bed: TestBed, *kinds: str) -> None:
    """Have what Redis keeps of these kinds be over, as it is by itself after its time."""
    async with Redis.from_url(bed.redis_url) as redis:
        keys = [key for kind in kinds for key in [each async for each in redis.scan_iter(f"*{kind}:*")]]
        assert keys
        for key in keys:
            await redis.pexpire(key, 0)


@each_framework
async def test_another_process_goes_on_with_what_was_kept(
    bed: TestBed, fleet: ToolFleet, ada: Caller, work: LongWork, framework: str
) -> None:
    """The framework has kept which call or job it is; a run that goes on too early is deferred again, and then has the one result."""
    run = work.run(framework, ada)
    known, kept = await begun(bed, run)
    assert (known["kind"], known["toolfleet_tool"]) == (work.kind, work.tool)
    await wait_until(lambda: work.times() == 1, "it has begun")

    early, kept = await run.go_on(fleet, kept, wait=0)
    assert early is None
    work.end()
    shown, _ = await run.go_on(fleet, kept)

    assert work.shown in str(shown)
    assert work.times() == 1


@each_once
async def test_whoever_goes_on_twice_or_at_once_has_the_first_result(
    bed: TestBed, fleet: ToolFleet, ada: Caller, work: LongWork, framework: str
) -> None:
    """Two processes go on with the same run at the same time, and a third one later: the work is done once."""
    run = work.run(framework, ada)
    _, kept = await begun(bed, run)

    async with ToolFleet(settings=bed.settings) as other:
        both = asyncio.gather(run.go_on(fleet, kept), run.go_on(other, kept))
        await wait_until(lambda: work.times() == 1, "it has begun")
        work.end()
        results = [shown for shown, _ in await both]
    results.append((await run.go_on(fleet, kept))[0])

    assert all(work.shown in str(shown) for shown in results), results
    assert work.times() == 1


@each_once
async def test_a_result_may_be_there_before_anybody_has_seen_the_deferral(
    bed: TestBed, fleet: ToolFleet, ada: Caller, work: LongWork, framework: str
) -> None:
    """The end is kept for whoever comes. It is nobody else's: what another user has kept of it brings nothing, and begins nothing."""
    run = work.run(framework, ada)
    _, kept = await begun(bed, run)
    await wait_until(lambda: work.times() == 1, "it has begun")
    work.end()

    run.caller = ada.model_copy(update={"user_id": "eve"})
    foreign, _ = await run.go_on(fleet, kept)
    run.caller = ada
    shown, _ = await run.go_on(fleet, kept)

    assert work.shown not in str(foreign)
    assert "unknown" in str(foreign)
    assert work.shown in str(shown)
    assert work.times() == 1


@each_framework
async def test_the_id_outlives_the_calls_key(
    bed: TestBed, fleet: ToolFleet, ada: Caller, work: LongWork, framework: str
) -> None:
    """Once the key is over, the run that goes on joins its call by the id that it has kept. A `RunState` has no place for one: the fleet keeps it."""
    run = work.run(framework, ada)
    _, kept = await begun(bed, run)
    await wait_until(lambda: work.times() == 1, "it has begun")
    await expire(bed, "intent", *(() if framework == "openai-agents" else ("approval-asked",)))
    work.end()

    results = [(await run.go_on(fleet, kept))[0] for _ in range(2)]

    assert all(work.shown in str(shown) for shown in results), results
    assert work.times() == 1


@each_framework
async def test_what_the_fleet_has_forgotten_is_not_done_again(
    bed: TestBed, fleet: ToolFleet, ada: Caller, work: LongWork, framework: str
) -> None:
    """Its outcome is unknown, in words that invite to no repeat; also where the fleet has nothing left of it at all."""
    run = work.run(framework, ada)
    _, kept = await begun(bed, run)
    await wait_until(lambda: work.times() == 1, "it has begun")
    await expire(bed, "intent", "begun-call", "approval-asked", "job")

    shown, _ = await run.go_on(fleet, kept)

    if framework == "claude":
        assert shown == "There is no such call: it is unknown, or was forgotten."
    else:
        assert "error_code: outcome_unknown\neffect_state: unknown\nretryable: false" in str(shown)
        assert "no longer knows" in str(shown)
    assert work.times() == 1
