"""Limits where calls wait in RabbitMQ, with real workers and agents of their own processes: exactly so many calls, whoever races, bypasses or dies."""

import asyncio
import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from support.fleet import TestBed
from support.fleet_calls import FleetCalls
from support.module_server import ModuleServer, serve
from support.owls import echo
from support.processes import next_line, python_program
from support.servers.rabbitmq import RabbitMq
from support.waiting import PATIENCE_SECONDS, wait_until, wait_until_answered
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_cli.local.environment import environment_of
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.settings import Settings

ADA = Caller(user_id="ada", permission="owner", allowed_modules="*")
LIMIT, AGENTS, EACH = 7, 2, 20
RARE = ToolCall(tool_name="owls.rare", arguments={"n": 1})
CHEAP = ToolCall(tool_name="owls.cheap", arguments={"n": 1})

pytestmark = pytest.mark.usefixtures("same_day")

AGENT = """
import asyncio, os, sys
from toolfleet import Caller, ToolCall, ToolFleet

async def main():
    async with ToolFleet() as fleet:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        ada = Caller(user_id="ada", permission="owner", allowed_modules="*")
        calls = [ToolCall(tool_name=sys.argv[1], arguments={"n": n}) for n in range(int(sys.argv[2]))]
        if len(sys.argv) > 3:
            handles = [await fleet.submit(call, ada) for call in calls]
            print("submitted", flush=True)
            os.kill(os.getpid(), 9)
        results = await fleet.call_many(calls, ada, timeout=60)
        print(*(result.error_code or "ok" for result in results), flush=True)

asyncio.run(main())
"""


def make_module() -> ModuleServer:
    module = ModuleServer("owls")
    module.add("rare", echo, daily_limit=LIMIT, effect="read")
    module.add("cheap", echo, cost="cheap")
    return module


@pytest.fixture
def module() -> Iterator[ModuleServer]:
    with serve(make_module()) as module:
        yield module


@pytest.fixture
def redis_here(tmp_path: Path) -> Iterator[str]:
    with redis_server(tmp_path / "redis") as url:
        yield url


@pytest.fixture
def bed(broker: RabbitMq, redis_here: str, module: ModuleServer, tmp_path: Path) -> TestBed:
    logs = tmp_path / "logs"
    logs.mkdir()
    return TestBed(redis_here, (module,), logs, {"broker_url": broker.url})


async def works(fleet: ToolFleet) -> bool:
    return (await fleet.call(CHEAP, ADA)).success


async def used(fleet: ToolFleet, tool: str = "owls.rare") -> int:
    return (await fleet.remaining(ADA)).tools[tool].used


def env_of(settings: Settings) -> dict[str, str]:
    return {name: value for name, value in environment_of(settings).items() if name.startswith("TOOLFLEET_")}


async def test_of_calls_that_race_exactly_so_many_pass(bed: TestBed, module: ModuleServer) -> None:
    """From several processes, at once; all others are told when to try again."""
    async with ToolFleet(settings=bed.settings) as fleet:
        with bed.worker(), contextlib.ExitStack() as stack:
            agents = [
                stack.enter_context(python_program(AGENT, "owls.rare", EACH, env=env_of(bed.settings), stdin=True))
                for _ in range(AGENTS)
            ]
            for agent in agents:
                assert await asyncio.to_thread(next_line, agent) == "ready"
            for agent in agents:
                assert agent.stdin is not None
                agent.stdin.write("go\n")
                agent.stdin.flush()
            said = [await asyncio.to_thread(next_line, agent) for agent in agents]
        ends = " ".join(said).split()
        assert (ends.count("ok"), ends.count("rate_limited"), len(ends)) == (
            LIMIT,
            AGENTS * EACH - LIMIT,
            AGENTS * EACH,
        )
        assert await used(fleet) == len(module.requests) == LIMIT


async def test_a_client_that_bypasses_gains_nothing(bed: TestBed, module: ModuleServer) -> None:
    """Calls that were put into the queue without being counted are counted where they begin, with a budget too."""
    settings = bed.settings.model_copy(update={"cost_budgets": {"cheap": 2}})
    async with ToolFleet(settings=settings) as fleet:
        with bed.worker(cost_budgets={"cheap": 2}):
            calls = FleetCalls(settings)
            for method, allowed in (("rare", LIMIT), ("cheap", 2)):
                results = calls.results(*(calls.call(method) for _ in range(LIMIT + 3)), seconds=3 * PATIENCE_SECONDS)
                refused = [result for result in results if not result["success"]]
                assert {result["error_code"] for result in refused} == {"rate_limited"}
                assert len(results) - len(refused) == len(module.calls(method)) == allowed
                assert all(result["hint"] and "Try again at" in result["error"] for result in refused)
            calls.close()
        nobody = Caller(permission="owner", allowed_modules="*")
        assert (await fleet.remaining(nobody)).costs["cheap"].left == 0


async def test_a_call_that_finds_no_module_is_given_back(bed: TestBed, module: ModuleServer) -> None:
    """Whoever had counted it, and so often as it is made; when the module is there, all of its calls are."""
    away = bed.settings.model_copy(update={"module_services": {"owls": "http://127.0.0.1:9"}})
    async with ToolFleet(settings=bed.settings) as fleet:
        with bed.worker(module_services=away.module_services):
            results = await fleet.call_many([RARE] * (LIMIT - 1), ADA, timeout=60)
            assert {(result.error_code, result.effect_state) for result in results} == {("module_unreachable", "none")}
            assert await used(fleet) == 0
        with bed.worker():
            # The first worker's breaker is open for a while.
            await wait_until_answered(functools.partial(works, fleet), "calls work", seconds=3 * PATIENCE_SECONDS)
            results = await fleet.call_many([RARE] * (LIMIT + 1), ADA, timeout=60)
    assert [result.error_code for result in results if not result.success] == ["rate_limited"]
    assert len(module.calls("rare")) == LIMIT


async def test_an_agent_that_is_killed_neither_frees_nor_doubles(bed: TestBed, module: ModuleServer) -> None:
    """Its calls are published, so they run, and count."""
    async with ToolFleet(settings=bed.settings) as fleet, Redis.from_url(bed.redis_url) as redis:
        with python_program(AGENT, "owls.rare", 3, "dies", env=env_of(bed.settings), stdin=True) as agent:
            assert await asyncio.to_thread(next_line, agent) == "ready"
            assert agent.stdin is not None
            agent.stdin.write("go\n")
            agent.stdin.flush()
            assert await asyncio.to_thread(next_line, agent) == "submitted"
            await asyncio.to_thread(agent.wait, 20)
        assert await used(fleet) == 3
        with bed.worker():
            await wait_until(lambda: len(module.requests) == 3, "all have run")
            left: Any = ["one"]
            while left:
                left = await redis.keys("toolfleet:limit:*:unbegun")
        assert await used(fleet) == 3
