"""A profile's limit with agents of their own processes: exactly so many calls."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fleet import TestBed
from support.module_server import ModuleServer, serve
from support.owls import echo
from support.processes import next_line, python_program
from toolfleet import Caller, Conversation, ToolFleet
from toolfleet_cli.local.environment import environment_of
from toolfleet_cli.local.redis_server import redis_server

ADA = Caller(user_id="ada", permission="owner", allowed_modules="*", agent="production")
LIMIT, AGENTS, EACH = 7, 4, 10

AGENT = """
import asyncio, sys
from toolfleet import Caller, Conversation, ToolCall, ToolFleet

async def main():
    async with ToolFleet() as fleet:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        ada = Caller(user_id="ada", permission="owner", allowed_modules="*", agent="production")
        calls = [ToolCall(tool_name="owls.count", arguments={"n": n}) for n in range(int(sys.argv[1]))]
        run = Conversation(run_id="one", conversation_id="thread")
        results = await fleet.call_many(calls, ada, conversation=run, timeout=60)
        print(*(result.error_code or "ok" for result in results), flush=True)

asyncio.run(main())
"""


@pytest.fixture
def module() -> Iterator[ModuleServer]:
    module = ModuleServer("owls")
    module.add("count", echo, effect="read")
    with serve(module) as served:
        yield served


@pytest.fixture
def redis_here(tmp_path: Path) -> Iterator[str]:
    with redis_server(tmp_path / "redis") as url:
        yield url


@pytest.mark.slow
async def test_of_a_runs_calls_that_race_exactly_so_many_pass(
    redis_here: str, module: ModuleServer, tmp_path: Path
) -> None:
    """From several processes, at once; all others are told to go on without the tool."""
    limit = {"name": "tool_call_limit", "run_limit": LIMIT, "thread_limit": 100}
    more = {"agents": {"production": {"middleware": [limit]}}}
    bed = TestBed(redis_here, (module,), tmp_path, more)
    async with ToolFleet(settings=bed.settings) as fleet:
        with bed.worker(), contextlib.ExitStack() as stack:
            env = {name: text for name, text in environment_of(bed.settings).items() if name.startswith("TOOLFLEET_")}
            agents = [stack.enter_context(python_program(AGENT, str(EACH), env=env, stdin=True)) for _ in range(AGENTS)]
            for agent in agents:
                assert await asyncio.to_thread(next_line, agent) == "ready"
            for agent in agents:
                assert agent.stdin is not None
                agent.stdin.write("go\n")
                agent.stdin.flush()
            ends = " ".join([await asyncio.to_thread(next_line, agent) for agent in agents]).split()
        left = await fleet.remaining(ADA, conversation=Conversation(run_id="one", conversation_id="thread"))
    assert (ends.count("ok"), ends.count("rate_limited"), len(ends)) == (LIMIT, AGENTS * EACH - LIMIT, AGENTS * EACH)
    assert len(module.calls("count")) == LIMIT
    assert (left.totals["owls.count"].used, left.totals["owls.count"].left) == (LIMIT, 0)
