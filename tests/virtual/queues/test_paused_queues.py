"""Operators pause, drain and resume queues: nothing is begun meanwhile, and no call is lost or made twice."""

import asyncio
import json

import pytest

from bed.fleet import Bed, Worker, until
from support.module_server import ModuleServer
from support.owls import make_module
from support.servers.hatchery import make_hatchery
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_registry.errors import NoSuchQueue, OperationRefused

STATES = "toolfleet:queue-states"
SLOW = ("larks", "wrens")


def echo(module: str = "owls", word: str = "hoot") -> ToolCall:
    return ToolCall(tool_name=f"{module}.echo", arguments={"word": word})


def nap(seconds: float) -> ToolCall:
    return ToolCall(tool_name="owls.nap_once", arguments={"seconds": seconds})


@pytest.fixture
async def worker(bed: Bed, owls: ModuleServer) -> Worker:
    bed.given["slow_modules"] = frozenset(SLOW)
    await bed.serve(owls, *map(make_module, SLOW))
    return await bed.worker()


@pytest.fixture
async def fleet(bed: Bed, worker: Worker) -> ToolFleet:
    return await bed.agent()


async def until_state(fleet: ToolFleet, expected: tuple[str, int, int], module: str = "owls") -> None:
    async def is_so() -> bool:
        (one,) = [queue for queue in await fleet.queues.list() if queue.module == module]
        return (one.state, one.waiting, one.held) == expected

    await until(is_so, f"{module} is {expected}")


async def test_calls_of_a_paused_queue_wait_and_are_run_when_it_is_resumed(
    fleet: ToolFleet, owls: ModuleServer, owner: Caller
) -> None:
    """What runs goes on, other queues too; what waits is begun with the resuming, each once."""
    running = await fleet.submit(nap(20), owner)
    await until(lambda: owls.running, "the first one runs")
    await fleet.queues.pause("owls", reason="deploy", by="olga")
    words = [f"w{number}" for number in range(20)]
    waiting = [asyncio.create_task(fleet.call(echo(word=word), owner, timeout=300)) for word in words]

    assert (await running.result()).success
    assert (await fleet.call(echo("larks"), owner)).success
    await until_state(fleet, ("paused", 20, 0))
    await asyncio.sleep(60)
    assert owls.calls("echo") == []
    await fleet.queues.resume("owls")
    assert [(await each).success for each in waiting] == [True] * 20
    assert sorted(call["arguments"]["word"] for call in owls.calls("echo")) == sorted(words)


async def test_a_call_that_waits_too_long_was_not_executed(fleet: ToolFleet, owls: ModuleServer, owner: Caller) -> None:
    """It ends at its deadline as anywhere else, and is not begun later."""
    await fleet.queues.pause("owls")
    result = await fleet.call(echo(word="late"), owner, timeout=30)
    await fleet.queues.resume("owls")
    await asyncio.sleep(60)
    assert (await fleet.call(echo(), owner)).success

    assert (result.error_code, result.effect_state) == ("expired", "none")
    assert [call["arguments"]["word"] for call in owls.calls("echo")] == ["hoot"]


async def test_a_draining_queue_refuses_new_calls_and_runs_the_others(
    fleet: ToolFleet, owls: ModuleServer, owner: Caller
) -> None:
    """At once, with a reason; what was there is run to its end, and then it is drained until it is resumed."""
    running = await fleet.submit(nap(20), owner)
    await until(lambda: owls.running, "it runs")
    left = await fleet.queues.drain("owls")
    refused = await fleet.call(echo(), owner)

    assert (left[0].state, left[0].is_empty) == ("draining", False)
    assert (refused.error_code, refused.effect_state, refused.retryable) == ("busy", "none", True)
    assert "the queue 'tools.owls' is draining" in (refused.error or "")
    assert "until an operator resumes it" in (refused.hint or "")
    assert (await running.result()).success
    (drained,) = await fleet.queues.drain("owls", wait_seconds=20)
    assert (drained.state, drained.is_empty) == ("drained", True)
    assert owls.calls("echo") == []


async def test_a_lane_is_paused_with_all_its_modules(fleet: ToolFleet, owner: Caller) -> None:
    """One of them is not resumed by itself, and one that was paused by itself stays so."""
    await fleet.queues.pause("lane:slow")
    await fleet.queues.pause("wrens")
    with pytest.raises(OperationRefused, match="lane:slow"):
        await fleet.queues.resume("larks")
    calls = [asyncio.create_task(fleet.call(echo(name), owner, timeout=300)) for name in SLOW]
    assert (await fleet.call(echo(), owner)).success
    await until_state(fleet, ("paused", 1, 0), "larks")
    await fleet.queues.resume("lane:slow")

    assert (await calls[0]).success
    await until_state(fleet, ("paused", 1, 0), "wrens")
    await fleet.queues.resume("wrens")
    assert (await calls[1]).success


async def test_twice_is_as_once_and_an_unknown_name_is_an_error(bed: Bed, fleet: ToolFleet) -> None:
    """The first one's time and reason stay; the nearest names are said."""
    await fleet.queues.pause("owls", reason="first")
    await fleet.queues.pause("tools.owls", reason="second")
    stored = json.loads(bed.ask("HGET", STATES, "owls"))
    await fleet.queues.resume("owls")
    await fleet.queues.resume("owls")

    assert stored["reason"] == "first"
    with pytest.raises(NoSuchQueue, match="owls") as caught:
        await fleet.queues.pause("owl")
    assert caught.value.nearest[0] == "owls"
    with pytest.raises(OperationRefused, match="own tasks"):
        await fleet.queues.pause("toolfleet.control")


async def test_a_worker_that_starts_takes_nothing_of_a_paused_queue(
    bed: Bed, fleet: ToolFleet, owls: ModuleServer, owner: Caller
) -> None:
    """Of the other queues it does, also where it has no others."""
    await fleet.queues.pause("lane:slow")
    await fleet.queues.pause("owls")
    calls = [asyncio.create_task(fleet.call(echo(name), owner, timeout=300)) for name in ("owls", *SLOW)]
    await until_state(fleet, ("paused", 1, 0))
    for lane in ("slow", "fast"):
        await bed.worker(lane=lane)
    await asyncio.sleep(30)
    await until_state(fleet, ("paused", 1, 0))
    await until_state(fleet, ("paused", 1, 0), "larks")
    assert owls.calls("echo") == []
    await fleet.queues.resume("lane:slow")
    await fleet.queues.resume("owls")
    assert [(await each).success for each in calls] == [True] * 3


async def test_an_accepted_call_ends_while_its_queue_is_paused(bed: Bed, owner: Caller) -> None:
    """Its worker goes on asking; nothing that waits is begun, and nothing is left behind."""
    nest = make_hatchery()
    nest.ends = 60.0
    await bed.serve(nest.server)
    await bed.worker()
    fleet = await bed.agent()
    hatch = ToolCall(tool_name="nest.hatch")
    call = await fleet.submit(hatch, owner, timeout=600)
    await until(lambda: nest.begun, "the module has it")
    await fleet.queues.pause("nest")
    waiting = await fleet.submit(hatch, owner, timeout=600)
    result = await call.result()
    (one,) = await fleet.queues.list()
    assert (result.success, one.state, len(nest.begun)) == (True, "paused", 1)
    assert one.waiting
    await fleet.queues.resume("nest")
    assert (await waiting.result()).success
    (drained,) = await fleet.queues.drain("nest", wait_seconds=20)
    assert drained.is_empty
    assert len(nest.begun) == 2
