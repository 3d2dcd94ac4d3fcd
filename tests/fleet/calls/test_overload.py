"""A fleet on the stock transport that gets more calls than its modules may be at, and the same call again."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fleet import TestBed, own_bed
from support.module_server import ModuleServer, holding, serve
from support.owls import make_module
from support.waiting import PATIENCE_SECONDS, wait_until, wait_until_sync
from toolfleet import Caller, ToolCall, ToolFleet

ADA, BOB = (Caller(user_id=name, permission="owner", allowed_modules="*") for name in ("ada", "bob"))
NAP = ToolCall(tool_name="owls.nap", arguments={"seconds": 0.2})


@pytest.fixture
def bed(owls: ModuleServer, tmp_path: Path) -> Iterator[TestBed]:
    wait_until_sync(lambda: not owls.running, "what other tests have left has ended")
    owls.forget()
    with own_bed(owls, tmp_path, fast_transport=False) as bed:
        yield bed


async def test_a_modules_bound_holds_over_all_workers(bed: TestBed, owls: ModuleServer) -> None:
    """By the module's own count: never more at once, and it is used up; another module's calls are not held up."""
    with serve(make_module("ravens")) as ravens:
        bed.modules, bed.more = (owls, ravens), {**bed.more, "module_concurrency": {"owls": 3}}
        with bed.worker(), bed.worker():
            async with ToolFleet(settings=bed.settings) as fleet:
                with holding(owls, "nap"):
                    naps = asyncio.create_task(fleet.call_many([NAP] * 9, ADA, timeout=60))
                    await wait_until(lambda: owls.running == 3, "as many naps as may be are under way")
                    raven = await fleet.call(ToolCall(tool_name="ravens.echo"), ADA, timeout=20)
                    assert not naps.done()
                results = await asyncio.wait_for(naps, 3 * PATIENCE_SECONDS)

    assert raven.success
    assert all(result.success for result in results)
    assert (owls.most_running, len(owls.requests)) == (3, 9)


async def test_one_intention_is_one_call(bed: TestBed, owls: ModuleServer) -> None:
    """A repeat joins the running call, and after its end brings its result; the module has seen one request."""
    once = ToolCall(tool_name="owls.nap_once", arguments={"seconds": 0.5}, idempotency_key="conversation-1/call-7")
    other = once.model_copy(update={"arguments": {"seconds": 0.6}})
    with bed.worker():
        async with ToolFleet(settings=bed.settings) as fleet, ToolFleet(settings=bed.settings) as elsewhere:
            first = asyncio.create_task(fleet.call(once, ADA))
            await wait_until(lambda: owls.running, "it runs")
            repeats = await asyncio.gather(*(one.call(once, ADA, timeout=20) for one in (fleet, elsewhere, elsewhere)))
            conflict = await elsewhere.call(other, ADA)
            results = [await first, *repeats, await elsewhere.call(once, ADA)]
            mine = await fleet.call(once, BOB)

    assert {result.audit.call_id for result in results} == {results[0].audit.call_id}
    assert all(result.success for result in results)
    assert (conflict.error_code, conflict.effect_state) == ("conflict", "none")
    assert mine.audit.call_id != results[0].audit.call_id
    assert len(owls.requests) == 2
