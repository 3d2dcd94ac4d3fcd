"""Profiles' limits and retries with real workers and agents of their own processes: exactly so many calls and attempts."""

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from support.fleet import TestBed
from support.module_server import ModuleServer, Request, serve
from support.owls import echo
from support.processes import next_line, python_program
from support.waiting import wait_until
from toolfleet import Caller, Conversation, ToolCall, ToolFleet
from toolfleet_cli.local.environment import environment_of
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.config.module_settings import ModuleSpec
from toolfleet_registry.settings import Settings

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


class Flaky:
    """Each call ends as the next of `ends` says, and then well: a status, `reset`, or `nap` for a call that never ends."""

    def __init__(self, *ends: int | str) -> None:
        self.ends = list(ends)

    async def __call__(self, request: Request) -> web.StreamResponse | dict[str, Any]:
        end = self.ends.pop(0) if self.ends else 200
        if end == "nap":
            await asyncio.Future[None]()
        headers = {"Retry-After": "0"} if end == 503 else {}  # it turns the call away
        status = 503 if end == "reset" else int(end)  # as a proxy says that has lost its module
        return await echo(request) if end == 200 else web.Response(status=status, headers=headers)


def profile(**middleware: dict[str, Any]) -> dict[str, Any]:
    return {"agents": {"production": {"middleware": [{"name": name, **said} for name, said in middleware.items()]}}}


RETRIES = profile(tool_retry={"max_retries": 5, "initial_delay_seconds": 0.05})


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


def bed_of(redis_url: str, module: ModuleServer, folder: Path, **more: Any) -> TestBed:
    logs = folder / "logs"
    logs.mkdir()
    lease = {"visibility_timeout": 2} if more.get("fast_transport", True) else {}
    return TestBed(redis_url, (module,), logs, {**lease, **more})


def env_of(settings: Settings) -> dict[str, str]:
    return {name: value for name, value in environment_of(settings).items() if name.startswith("TOOLFLEET_")}


@pytest.mark.parametrize("is_fast", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["fast", "stock"])
async def test_of_a_runs_calls_that_race_exactly_so_many_pass(
    redis_here: str, module: ModuleServer, tmp_path: Path, is_fast: bool
) -> None:
    """From several processes, at once; all others are told to go on without the tool."""
    limits = profile(tool_call_limit={"run_limit": LIMIT, "thread_limit": 100})
    bed = bed_of(redis_here, module, tmp_path, fast_transport=is_fast, **limits)
    async with ToolFleet(settings=bed.settings) as fleet:
        with bed.worker(), contextlib.ExitStack() as stack:
            env = env_of(bed.settings)
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


async def test_an_agent_without_the_profile_gains_nothing(
    redis_here: str, module: ModuleServer, tmp_path: Path
) -> None:
    """Its calls, which it has not counted, are counted where they begin."""
    limits = profile(tool_call_limit={"run_limit": 2})
    bed = bed_of(redis_here, module, tmp_path, agents={"production": {}})
    run = Conversation(run_id="one")
    async with ToolFleet(settings=bed.settings) as fleet:
        with bed.worker(agents=Settings.model_validate(limits).agents):
            calls = [ToolCall(tool_name="owls.count", arguments={"n": n}) for n in range(5)]
            results = await fleet.call_many(calls, ADA, conversation=run, timeout=60)
            nowhere = await fleet.call(calls[0], ADA, timeout=60)
    assert sum(result.success for result in results) == len(module.requests) == 2
    assert {result.error_code for result in results if not result.success} == {"rate_limited"}
    assert nowhere.error_code == "rate_limited"


FLAKY: dict[str, tuple[str | None, tuple[int, ...], int, bool]] = {  # effect, ends, attempts, whether it works at last
    "read": ("read", (500, 503, 500), 4, True),  # three failures, and then it works
    "idempotent": ("idempotent", (500,) * 9, 6, False),  # five retries are all
    "once": ("once", (500,), 1, False),  # it may have happened
    "once_turned_away": ("once", (503, 503, 503), 4, True),  # it surely has not
    "undeclared": (None, (503, 500), 2, False),  # the first did nothing, the second may have
}


async def test_retries_are_those_of_the_profile(redis_here: str, module: ModuleServer, tmp_path: Path) -> None:
    """As many as it says where that does no harm; each is in the call's audit."""
    for name, (effect, ends, _, _) in FLAKY.items():
        module.add(name, Flaky(*ends), **({} if effect is None else {"effect": effect}))
    bed = bed_of(redis_here, module, tmp_path, **RETRIES)
    async with ToolFleet(settings=bed.settings) as fleet:
        with bed.worker(breaker_failures=1000):
            calls = [ToolCall(tool_name=f"owls.{name}") for name in FLAKY]
            results = await fleet.call_many(calls, ADA, timeout=60)
    ends_of = {name: (result.audit.attempts, result.success) for name, result in zip(FLAKY, results, strict=True)}
    assert ends_of == {name: (attempts, success) for name, (_, _, attempts, success) in FLAKY.items()}
    assert all(len(module.calls(name)) == attempts for name, (_, _, attempts, _) in FLAKY.items())


ANSWERED: dict[str, tuple[str | None, tuple[int, ...], int, str | None]] = {  # effect, ends, attempts, the error
    "works": (None, (500, 500), 3, None),
    "fails": (None, (500,) * 9, 4, "Module returned status 500:"),
    "declines": (None, (500, 409), 2, "Module returned status 500:"),  # the first answer, and not the conflict
    "once": ("once", (500,), 1, "Module returned status 500:"),
}
UNHEARD: tuple[int | str, ...] = (502, 504, "reset")


async def test_a_profile_repeats_what_undeclared_tools_have_answered(
    redis_here: str, module: ModuleServer, tmp_path: Path
) -> None:
    """As often as `tool_retry` with `undeclared` says; a declined repeat keeps the first answer, and none is a dead letter."""
    for name, (effect, ends, _, _) in ANSWERED.items():
        module.add(name, Flaky(*ends), **({} if effect is None else {"effect": effect}))
    retries = {"max_retries": 3, "initial_delay_seconds": 0.05, "undeclared": True}
    bed = bed_of(redis_here, module, tmp_path, **profile(tool_retry=retries))
    async with ToolFleet(settings=bed.settings) as fleet:
        with bed.worker(breaker_failures=1000):
            calls = [ToolCall(tool_name=f"owls.{name}") for name in ANSWERED]
            results = await fleet.call_many(calls, ADA, timeout=60)
            letters = await fleet.dead_letters.list()
    ends_of = {name: (result.audit.attempts, result.error) for name, result in zip(ANSWERED, results, strict=True)}
    assert ends_of == {name: (attempts, error) for name, (_, _, attempts, error) in ANSWERED.items()}
    assert all(len(module.calls(name)) == attempts for name, (_, _, attempts, _) in ANSWERED.items())
    assert letters == []


async def test_a_profile_repeats_no_undeclared_tool_of_which_nobody_knows_the_end(
    redis_here: str, module: ModuleServer, tmp_path: Path
) -> None:
    """It is run once, whatever the profile, the fleet or a proxy says; and an operator hears of it."""
    for number, end in enumerate(UNHEARD):
        module.add(f"unheard{number}", Flaky(end))
    retries = {"max_retries": 3, "initial_delay_seconds": 0.05, "undeclared": True}
    bed = bed_of(redis_here, module, tmp_path, retry_undeclared=True, **profile(tool_retry=retries))
    async with ToolFleet(settings=bed.settings) as fleet:
        with bed.worker(breaker_failures=1000):
            calls = [ToolCall(tool_name=f"owls.unheard{number}") for number in range(len(UNHEARD))]
            results = await fleet.call_many(calls, ADA, timeout=60)
            letters = await fleet.dead_letters.list()
    assert [(result.success, result.effect_state) for result in results] == [(False, "unknown")] * len(UNHEARD)
    assert [len(module.calls(call.tool_name.partition(".")[2])) for call in calls] == [1] * len(UNHEARD)
    assert len(letters) == len(UNHEARD)


async def test_agents_know_what_the_fleets_settings_say_of_tools(
    redis_here: str, module: ModuleServer, tmp_path: Path
) -> None:
    """An agent without these settings sends the effect that workers keep, and both refuse whom the settings refuse."""
    module.add("lost", Flaky(502))
    module.add("declared", Flaky(502), effect="once")
    lines = {"owls": ModuleSpec(effects={"lost": "read", "declared": "read"}, permission="admin")}
    bed = bed_of(redis_here, module, tmp_path, agents={"production": {}})
    with bed.worker(module=lines):
        async with ToolFleet(settings=bed.settings) as fleet:
            await fleet.modules.refresh()
            lost = await fleet.call(ToolCall(tool_name="owls.lost"), ADA, timeout=30)
            declared = await fleet.call(ToolCall(tool_name="owls.declared"), ADA, timeout=30)
            user = Caller(user_id="ada", permission="user", allowed_modules="*", agent="production")
            refused = await fleet.call(ToolCall(tool_name="owls.lost"), user, timeout=30)
    assert (lost.success, lost.audit.attempts) == (True, 2)
    assert (declared.success, declared.effect_state, declared.audit.attempts) == (False, "unknown", 1)
    assert (refused.error_code, refused.error) == (
        "permission_denied",
        "Tool 'owls.lost' needs 'admin'; caller is 'user'.",
    )


async def test_a_worker_retries_no_more_often_than_its_own_profile_says(
    redis_here: str, module: ModuleServer, tmp_path: Path
) -> None:
    """Whatever the call's message says: with none in the profile, there is the fleet's single retry."""
    module.add("flaky", Flaky(*(500,) * 9), effect="read")
    bed = bed_of(redis_here, module, tmp_path, **RETRIES)
    none = Settings.model_validate({"agents": {"production": {}}}).agents
    async with ToolFleet(settings=bed.settings) as fleet:
        with bed.worker(agents=none, breaker_failures=1000):
            result = await fleet.call(ToolCall(tool_name="owls.flaky"), ADA, timeout=30)
    assert (result.success, result.audit.attempts) == (False, 2)


async def test_an_attempt_of_a_killed_worker_is_one(redis_here: str, module: ModuleServer, tmp_path: Path) -> None:
    """After one that failed, and one whose worker was killed, there is a third only where the profile has two retries."""
    for name in ("two", "one"):
        module.add(name, Flaky(500, "nap"), effect="read")
    said = [
        {"name": "tool_retry", "max_retries": number, "initial_delay_seconds": 0.05, "tools": [f"owls.{name}"]}
        for name, number in (("two", 2), ("one", 1))
    ]
    bed = bed_of(redis_here, module, tmp_path, agents={"production": {"middleware": said}})
    async with ToolFleet(settings=bed.settings) as fleet:
        with bed.worker() as doomed:
            calls = [ToolCall(tool_name=f"owls.{name}") for name in ("two", "one")]
            handles = [await fleet.submit(call, ADA, timeout=60) for call in calls]
            await wait_until(lambda: len(module.requests) == 4, "their second attempts run")
            doomed.send_signal(signal.SIGKILL)
            doomed.wait()
        with bed.worker():
            two, one = [await handle.result(30) for handle in handles]
    assert (two.success, one.success) == (True, False)
    assert (len(module.calls("two")), len(module.calls("one"))) == (3, 2)


async def test_a_worker_that_is_killed_between_two_attempts_loses_nothing(
    redis_here: str, module: ModuleServer, tmp_path: Path
) -> None:
    """The next worker goes on after the pause, with the attempts that are left."""
    module.add("flaky", Flaky(500, 500), effect="read")
    said = profile(tool_retry={"max_retries": 2, "initial_delay_seconds": 2, "jitter": False})
    bed = bed_of(redis_here, module, tmp_path, visibility_timeout=4, **said)  # no pause is longer than half a lease
    async with ToolFleet(settings=bed.settings) as fleet:
        with bed.worker() as doomed:
            handle = await fleet.submit(ToolCall(tool_name="owls.flaky"), ADA, timeout=60)
            await wait_until(lambda: "tool_call_retried" in doomed.said(), "it waits for its second attempt")
            doomed.send_signal(signal.SIGKILL)
            doomed.wait()
        with bed.worker():
            result = await handle.result(30)
    assert (result.success, result.audit.attempts, len(module.calls("flaky"))) == (True, 3, 3)
