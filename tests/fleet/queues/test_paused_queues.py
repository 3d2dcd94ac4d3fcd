"""Operators pause, drain and resume queues: nothing is begun meanwhile, and no call is lost or made twice."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from support.fleet import TestBed
from support.module_server import ModuleServer, holding
from support.waiting import PATIENCE_SECONDS, wait_until, wait_until_answered
from toolfleet import Caller, ToolCall, ToolFleet

OWNER = Caller(user_id="ada", permission="owner", allowed_modules="*")
STATES = "toolfleet:queue-states"


@pytest.fixture(autouse=True)
async def clean(bed: TestBed, fleet: ToolFleet, owls: ModuleServer) -> AsyncIterator[None]:
    """Each test begins and ends with open queues."""
    owls.forget()
    yield
    async with Redis.from_url(bed.redis_url) as redis:
        await redis.delete(STATES)
    await is_idle(fleet)


def echo(module: str = "owls", word: str = "hoot") -> ToolCall:
    return ToolCall(tool_name=f"{module}.echo", arguments={"word": word})


def nap(seconds: float) -> ToolCall:
    return ToolCall(tool_name="owls.nap_once", arguments={"seconds": seconds})


async def is_idle(fleet: ToolFleet) -> None:
    async def is_open() -> bool:
        return (await fleet.call(echo(), OWNER, timeout=20)).success

    await wait_until_answered(is_open, "the queue is open again", seconds=PATIENCE_SECONDS)


async def state_of(fleet: ToolFleet, module: str = "owls") -> tuple[str, int, int]:
    (one,) = [queue for queue in await fleet.queues.list() if queue.module == module]
    assert one.waiting is not None
    return one.state, one.waiting, one.held


async def until(fleet: ToolFleet, expected: tuple[str, int, int], module: str = "owls") -> None:
    async def is_so() -> bool:
        return await state_of(fleet, module) == expected

    await wait_until_answered(is_so, f"{module} is {expected}", seconds=PATIENCE_SECONDS)


@pytest.mark.usual
async def test_calls_of_a_paused_queue_wait_and_are_run_when_it_is_resumed(
    fleet: ToolFleet, owls: ModuleServer
) -> None:
    """What runs goes on, other queues too; what waits is begun with the resuming, each once."""
    with holding(owls, "nap_once"):
        running = asyncio.create_task(fleet.call(nap(0.5), OWNER))
        await wait_until(lambda: owls.calls("nap_once") != [], "the first one runs")
        await fleet.queues.pause("owls", reason="deploy", by="olga")
        waiting = [asyncio.create_task(fleet.call(echo(word=f"w{i}"), OWNER, timeout=60)) for i in range(20)]

    assert (await running).success
    assert (await fleet.call(echo("larks"), OWNER)).success
    await until(fleet, ("paused", 20, 0))
    assert owls.calls("echo") == []

    await fleet.queues.resume("owls")
    assert [(await each).success for each in waiting] == [True] * 20
    assert sorted(call["arguments"]["word"] for call in owls.calls("echo")) == sorted(f"w{i}" for i in range(20))


@pytest.mark.usual
async def test_a_draining_queue_refuses_new_calls_and_runs_the_others(fleet: ToolFleet, owls: ModuleServer) -> None:
    """At once, with a reason; what was there is run to its end, and then it is drained until it is resumed."""
    with holding(owls, "nap_once"):
        running = asyncio.create_task(fleet.call(nap(0), OWNER))
        await wait_until(lambda: owls.calls("nap_once") != [], "it runs")
        left = await fleet.queues.drain("owls")
        refused = await fleet.call(echo(), OWNER)

    assert (left[0].state, left[0].is_empty) == ("draining", False)
    assert (refused.error_code, refused.effect_state, refused.retryable) == ("busy", "none", True)
    assert "the queue 'tools.owls' is draining" in (refused.error or "")
    assert "until an operator resumes it" in (refused.hint or "")
    assert (await running).success
    (drained,) = await fleet.queues.drain("owls", wait_seconds=20)
    assert (drained.state, drained.is_empty) == ("drained", True)
    assert owls.calls("echo") == []


async def test_a_worker_that_starts_takes_nothing_of_a_paused_queue(
    bed: TestBed, fleet: ToolFleet, owls: ModuleServer
) -> None:
    """Of the other queues it does, also where it has no others."""
    await fleet.queues.pause("lane:slow")
    await fleet.queues.pause("owls")
    calls = [asyncio.create_task(fleet.call(echo(name), OWNER, timeout=90)) for name in ("owls", "larks", "wrens")]
    await until(fleet, ("paused", 1, 0))
    with bed.worker(lane="slow") as slow, bed.worker(lane="fast"):
        await until(fleet, ("paused", 1, 0))
        await until(fleet, ("paused", 1, 0), "larks")
        assert owls.calls("echo") == []
        assert slow.process.poll() is None
        await fleet.queues.resume("lane:slow")
        await fleet.queues.resume("owls")
        assert [(await each).success for each in calls] == [True] * 3
