"""Limits, when a worker is killed, and when a day ends."""

import asyncio
import time

import pytest

from bed.fleet import Bed, until
from support.module_server import ModuleServer
from support.owls import echo, nap
from toolfleet import Caller, ToolCall, ToolFleet

DAY = 86_400


@pytest.mark.parametrize(("effect", "ended"), [("read", None), ("once", "outcome_unknown")])
async def test_a_worker_that_is_killed_neither_frees_nor_doubles(
    bed: Bed, owner: Caller, effect: str, ended: str | None
) -> None:
    """Whether the call is begun again or its end is unknown."""
    module = ModuleServer("owls")
    module.add("rare", nap, daily_limit=2, effect=effect)
    await bed.serve(module)
    worker, fleet = await bed.worker(), await bed.agent()
    rare = ToolCall(tool_name="owls.rare", arguments={"seconds": 20})
    handle = await fleet.submit(rare, owner, timeout=600)
    await until(lambda: module.requests, "it runs")
    worker.kill()
    await bed.worker()
    result = await handle.result()

    assert result.error_code == ended
    assert (await fleet.remaining(owner)).tools["owls.rare"].used == 1


async def test_a_daily_limit_begins_again_at_midnight(bed: Bed, owner: Caller) -> None:
    """UTC; until then whoever is refused is told when that is."""
    module, rare = ModuleServer("owls"), ToolCall(tool_name="owls.rare")
    module.add("rare", echo, daily_limit=2)
    await bed.serve(module)
    midnight, waits = (time.time() // DAY + 1) * DAY, []
    for at, allowed in ((time.time(), 2), (midnight - 10, 0), (midnight, 2)):
        await asyncio.sleep(at - time.time())
        await bed.worker()
        async with ToolFleet(settings=bed.settings) as fleet:
            results = [await fleet.call(rare, owner) for _ in range(3)]
            left = (await fleet.remaining(owner)).tools["owls.rare"].left
        bed.kill_members()
        codes = [None] * allowed + ["rate_limited"] * (3 - allowed)
        assert ([result.error_code for result in results], left) == (codes, 0)
        waits.append(midnight - time.time() - (results[-1].retry_after_seconds or 0))

    assert [abs(late) < 5 for late in waits] == [True, True, False]
    assert len(module.requests) == 4
