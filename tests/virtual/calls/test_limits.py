"""Limits: exactly so many calls, whoever races, bypasses or dies, until the day ends."""

import asyncio
import json
import time
from collections import Counter
from contextlib import closing

import pytest

from bed.fleet import Bed, until
from support.fleet_calls import FleetCalls
from support.module_server import ModuleServer
from support.owls import echo, nap
from toolfleet import Caller, ToolCall, ToolFleet, ToolResult
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.ledger.parameters import BREAKER_SECONDS

DAY = 86_400
LIMIT = 7
RARE = ToolCall(tool_name="owls.rare", arguments={"n": 1})


@pytest.fixture
async def module(bed: Bed) -> ModuleServer:
    """With a tool that each user may call so often a day, and one whose calls a budget limits."""
    module = ModuleServer("owls")
    module.add("rare", echo, daily_limit=LIMIT, effect="read")
    module.add("cheap", echo, cost="cheap")
    await bed.serve(module)
    return module


async def used(fleet: ToolFleet, owner: Caller) -> int:
    return (await fleet.remaining(owner)).tools["owls.rare"].used


async def test_of_calls_that_race_exactly_so_many_pass(bed: Bed, module: ModuleServer, owner: Caller) -> None:
    """Of several agents, at once; all others are told when to try again."""
    await bed.worker()

    async def agent() -> list[ToolResult]:
        async with ToolFleet(settings=bed.settings) as fleet:
            return await fleet.call_many([RARE] * 10, owner, timeout=60)

    said = await asyncio.gather(*(bed.site("agent").start(agent()) for _ in range(4)))
    results = [result for results in said for result in results]

    assert Counter(result.error_code for result in results) == {None: LIMIT, "rate_limited": len(results) - LIMIT}
    assert all(result.retry_after_seconds for result in results if not result.success)
    assert await used(await bed.agent(), owner) == len(module.requests) == LIMIT


async def test_a_client_that_bypasses_gains_nothing(bed: Bed, module: ModuleServer) -> None:
    """Calls that were put into the queue without being counted are counted where they begin, with a budget too."""
    bed.given["cost_budgets"] = {"cheap": 2}
    fleet = await bed.agent()
    await bed.worker()
    with closing(FleetCalls(bed.settings)) as calls:
        for method, allowed in (("rare", LIMIT), ("cheap", 2)):
            stored = [Keys().result(calls.call(method)) for _ in range(LIMIT + 3)]
            await until(lambda: bed.ask("EXISTS", *stored) == LIMIT + 3, "all have ended")  # noqa: B023 - awaited
            ends = [ToolResult.model_validate_json(json.loads(bed.ask("GET", key))["result"]) for key in stored]
            refused = [end for end in ends if not end.success]
            assert {end.error_code for end in refused} == {"rate_limited"}
            assert len(ends) - len(refused) == len(module.calls(method)) == allowed
            assert all(end.hint and "Try again at" in str(end.error) for end in refused)
    nobody = Caller(permission="owner", allowed_modules="*")
    assert (await fleet.remaining(nobody)).costs["cheap"].left == 0


async def test_a_call_that_finds_no_module_is_given_back(bed: Bed, module: ModuleServer, owner: Caller) -> None:
    """Whoever had counted it, and so often as it is made; when the module is there, all of its calls are."""
    fleet = await bed.agent()
    away = await bed.worker(module_services={"owls": "http://127.0.0.1:9"})
    results = await fleet.call_many([RARE] * (LIMIT - 1), owner, timeout=60)
    assert {(result.error_code, result.effect_state) for result in results} == {("module_unreachable", "none")}
    assert await used(fleet, owner) == 0
    await away.stop()
    await bed.worker()
    await asyncio.sleep(BREAKER_SECONDS)
    results = await fleet.call_many([RARE] * (LIMIT + 1), owner, timeout=60)

    assert [result.error_code for result in results if not result.success] == ["rate_limited"]
    assert len(module.calls("rare")) == LIMIT


async def test_an_agent_that_is_killed_neither_frees_nor_doubles(bed: Bed, module: ModuleServer, owner: Caller) -> None:
    """Its calls are published, so they run, and count."""
    fleet, site = await bed.agent(), bed.site("agent")

    async def submit() -> None:
        async with ToolFleet(settings=bed.settings) as agent:
            for _ in range(3):
                await agent.submit(RARE, owner)
            site.kill()
            await asyncio.sleep(0)

    site.start(submit())
    await until(lambda: site.is_dead, "it has published them")
    assert await used(fleet, owner) == 3
    await bed.worker()
    await until(lambda: len(module.requests) == 3, "all have run")
    await until(lambda: not bed.ask("KEYS", "toolfleet:limit:*:unbegun"), "all have begun")
    assert await used(fleet, owner) == 3


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
