"""Calls that their module goes on with by itself: the fleet holds no slot for them, and asks where they are."""

import asyncio
from functools import partial
from typing import Any

import pytest

from bed import clock
from bed.fleet import Bed, until
from support.servers.hatchery import HATCHED, Hatchery, make_hatchery
from toolfleet import Caller, CallHandle, ToolCall

HATCH = ToolCall(tool_name="nest.hatch")


@pytest.fixture
def nest() -> Hatchery:
    return make_hatchery()


async def test_others_need_not_wait_for_them(bed: Bed, nest: Hatchery, owner: Caller) -> None:
    """Calls that go on leave both slots of a worker, both places of their module and their caller's share to others."""
    most = 100
    nest.poll_after = 30.0
    bed.given["module_concurrency"] = {"nest": 2}
    await bed.serve(nest.server)
    await bed.worker(worker_concurrency=2)
    fleet, handles = await bed.agent(), list[CallHandle]()
    for count in range(1, most + 1):
        handles.append(await fleet.submit(HATCH, owner, timeout=1200))
        await until(partial(nest.has_begun, count), "it has begun")
    result = await fleet.call(ToolCall(tool_name="nest.quick"), owner, timeout=20)
    assert (result.success, nest.server.most_running <= 2) == (True, True)
    nest.answer = HATCHED
    results = [await handle.result() for handle in handles]

    assert {(each.success, each.audit.attempts) for each in results} == {(True, 1)}
    assert len(nest.begun) == most


async def test_any_worker_asks(bed: Bed, nest: Hatchery, owner: Caller) -> None:
    """The one that has begun the call is killed; another one hears how it ends, and begins nothing."""
    await bed.serve(nest.server)
    doomed, fleet = await bed.worker(), await bed.agent()
    handle = await fleet.submit(HATCH, owner, timeout=600)
    await until(lambda: len(nest.asked) >= 2, "it was asked for")
    doomed.kill()
    count = len(nest.asked)
    await bed.worker()
    await until(lambda: len(nest.asked) >= count + 2, "another one asks")
    nest.answer = HATCHED
    result = await handle.result()

    assert (result.success, result.audit.attempts, len(nest.begun)) == (True, 1, 1)


async def test_a_worker_that_dies_as_a_call_is_accepted_loses_nothing(bed: Bed, nest: Hatchery, owner: Caller) -> None:
    """Nobody has heard the handle; whoever asks what became of the call does, and follows it."""

    async def slowly(request: dict[str, Any]) -> Any:
        nest.acceptance(request["tool_name"])
        await asyncio.Event().wait()

    nest.server.tools["nest.hatch"] = slowly
    nest.server.memory = lambda _: {"state": "running", "handle": nest.begun[0]}
    await bed.serve(nest.server)
    doomed, fleet = await bed.worker(), await bed.agent()
    handle = await fleet.submit(HATCH, owner, timeout=600)
    await until(lambda: nest.begun, "the module has the call")
    doomed.kill()
    await bed.worker()
    await until(lambda: nest.asked, "it is followed")
    nest.answer = HATCHED
    result = await handle.result()

    assert (result.success, result.audit.attempts, len(nest.begun)) == (True, 1, 1)


async def test_a_module_that_is_away_is_waited_for(bed: Bed, nest: Hatchery, owner: Caller) -> None:
    """Its call goes on once it is back at its address."""
    site = await bed.serve(nest.server)
    await bed.worker()
    fleet = await bed.agent()
    handle = await fleet.submit(HATCH, owner, timeout=600)
    await until(lambda: nest.asked, "it was asked for")
    site.kill()
    await asyncio.sleep(30)
    assert await handle.status() == "running"
    nest.answer = HATCHED
    await bed.serve(nest.server, port=int(nest.server.url.rpartition(":")[2]))
    result = await handle.result()

    assert (result.success, result.audit.attempts, len(nest.begun)) == (True, 1, 1)


async def test_its_deadline_ends_it(bed: Bed, nest: Hatchery, owner: Caller) -> None:
    """Nobody knows what the module makes of it; it is told, once, that nobody wants it any more."""
    await bed.serve(nest.server)
    await bed.worker()
    fleet, before = await bed.agent(), clock.monotonic()
    result = await fleet.call(HATCH, owner, timeout=60)

    assert (result.error_code, result.effect_state) == ("timed_out", "unknown")
    assert 60 <= clock.monotonic() - before < 66
    await until(lambda: nest.cancelled, "the module is told")
    await asyncio.sleep(120)
    assert nest.cancelled == [{"call_id": result.audit.call_id, "handle": nest.begun[0], "cancel": True}]
