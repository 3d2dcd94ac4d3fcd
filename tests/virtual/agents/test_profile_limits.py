"""Profiles' limits and retries with workers that die, and agents that race: exactly so many calls and attempts."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from bed.fleet import Bed, until
from support.module_server import ModuleServer, Request
from support.owls import echo
from toolfleet import Caller, Conversation, ToolCall
from toolfleet_registry.settings import ModuleSpec

ADA = Caller(user_id="ada", permission="owner", allowed_modules="*", agent="production")
LIMIT, AGENTS, EACH = 7, 4, 10


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


RETRIES = profile(tool_retry={"max_retries": 5})


@pytest.fixture(autouse=True)
def _no_breaker_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolfleet_tasks.ledger.parameters.BREAKER_FAILURES", 1000)


@pytest.fixture
def module() -> ModuleServer:
    module = ModuleServer("owls")
    module.add("count", echo, effect="read")
    return module


async def test_of_a_runs_calls_that_race_exactly_so_many_pass(bed: Bed, module: ModuleServer) -> None:
    """From several agents, at once; all others are told to go on without the tool."""
    bed.given |= profile(tool_call_limit={"run_limit": LIMIT, "thread_limit": 100})
    await bed.serve(module)
    await bed.worker()
    agents = [await bed.agent() for _ in range(AGENTS)]
    run = Conversation(run_id="one", conversation_id="thread")
    calls = [ToolCall(tool_name="owls.count", arguments={"n": n}) for n in range(EACH)]
    results = await asyncio.gather(*(agent.call_many(calls, ADA, conversation=run) for agent in agents))
    left = await agents[0].remaining(ADA, conversation=run)
    ends = Counter(result.error_code for each in results for result in each)
    assert ends == {None: LIMIT, "rate_limited": AGENTS * EACH - LIMIT}
    assert len(module.calls("count")) == LIMIT
    assert (left.totals["owls.count"].used, left.totals["owls.count"].left) == (LIMIT, 0)


async def test_an_agent_without_the_profile_gains_nothing(bed: Bed, module: ModuleServer) -> None:
    """Its calls, which it has not counted, are counted where they begin."""
    bed.given["agents"] = {"production": {}}
    await bed.serve(module)
    await bed.worker(**profile(tool_call_limit={"run_limit": 2}))
    fleet = await bed.agent()
    calls = [ToolCall(tool_name="owls.count", arguments={"n": n}) for n in range(5)]
    results = await fleet.call_many(calls, ADA, conversation=Conversation(run_id="one"))
    nowhere = await fleet.call(calls[0], ADA)
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


async def test_retries_are_those_of_the_profile(bed: Bed, module: ModuleServer) -> None:
    """As many as it says where that does no harm; each is in the call's audit."""
    for name, (effect, ends, _, _) in FLAKY.items():
        module.add(name, Flaky(*ends), **({} if effect is None else {"effect": effect}))
    bed.given |= RETRIES
    await bed.serve(module)
    await bed.worker()
    fleet = await bed.agent()
    results = await fleet.call_many([ToolCall(tool_name=f"owls.{name}") for name in FLAKY], ADA)
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


async def test_a_profile_repeats_what_undeclared_tools_have_answered(bed: Bed, module: ModuleServer) -> None:
    """As often as `tool_retry` with `undeclared` says; a declined repeat keeps the first answer, and none is a dead letter."""
    for name, (effect, ends, _, _) in ANSWERED.items():
        module.add(name, Flaky(*ends), **({} if effect is None else {"effect": effect}))
    retries = {"max_retries": 3, "undeclared": True}
    bed.given |= profile(tool_retry=retries)
    await bed.serve(module)
    await bed.worker()
    fleet = await bed.agent()
    results = await fleet.call_many([ToolCall(tool_name=f"owls.{name}") for name in ANSWERED], ADA)
    letters = await fleet.dead_letters.list()
    ends_of = {name: (result.audit.attempts, result.error) for name, result in zip(ANSWERED, results, strict=True)}
    assert ends_of == {name: (attempts, error) for name, (_, _, attempts, error) in ANSWERED.items()}
    assert all(len(module.calls(name)) == attempts for name, (_, _, attempts, _) in ANSWERED.items())
    assert letters == []


async def test_a_profile_repeats_no_undeclared_tool_of_which_nobody_knows_the_end(
    bed: Bed, module: ModuleServer
) -> None:
    """It is run once, whatever the profile, the fleet or a proxy says; and an operator hears of it."""
    for number, end in enumerate(UNHEARD):
        module.add(f"unheard{number}", Flaky(end))
    retries = {"max_retries": 3, "undeclared": True}
    bed.given |= {"retry_undeclared": True, **profile(tool_retry=retries)}
    await bed.serve(module)
    await bed.worker()
    fleet = await bed.agent()
    calls = [ToolCall(tool_name=f"owls.unheard{number}") for number in range(len(UNHEARD))]
    results = await fleet.call_many(calls, ADA)
    letters = await fleet.dead_letters.list()
    assert [(result.success, result.effect_state) for result in results] == [(False, "unknown")] * len(UNHEARD)
    assert [len(module.calls(call.tool_name.partition(".")[2])) for call in calls] == [1] * len(UNHEARD)
    assert len(letters) == len(UNHEARD)


async def test_agents_know_what_the_fleets_settings_say_of_tools(bed: Bed, module: ModuleServer) -> None:
    """An agent without these settings sends the effect that workers keep, and both refuse whom the settings refuse."""
    module.add("lost", Flaky(502))
    module.add("declared", Flaky(502), effect="once")
    lines = {"owls": ModuleSpec(effects={"lost": "read", "declared": "read"}, permission="admin")}
    bed.given["agents"] = {"production": {}}
    await bed.serve(module)
    await bed.worker(module=lines)
    fleet = await bed.agent()
    await fleet.modules.refresh()
    lost = await fleet.call(ToolCall(tool_name="owls.lost"), ADA)
    declared = await fleet.call(ToolCall(tool_name="owls.declared"), ADA)
    refused = await fleet.call(ToolCall(tool_name="owls.lost"), ADA.model_copy(update={"permission": "user"}))
    assert (lost.success, lost.audit.attempts) == (True, 2)
    assert (declared.success, declared.effect_state, declared.audit.attempts) == (False, "unknown", 1)
    assert (refused.error_code, refused.error) == (
        "permission_denied",
        "Tool 'owls.lost' needs 'admin'; caller is 'user'.",
    )


async def test_a_worker_retries_no_more_often_than_its_own_profile_says(bed: Bed, module: ModuleServer) -> None:
    """Whatever the call's message says: with none in the profile, there is the fleet's single retry."""
    module.add("flaky", Flaky(*(500,) * 9), effect="read")
    bed.given |= RETRIES
    await bed.serve(module)
    await bed.worker(agents={"production": {}})
    fleet = await bed.agent()
    result = await fleet.call(ToolCall(tool_name="owls.flaky"), ADA)
    assert (result.success, result.audit.attempts) == (False, 2)


async def test_an_attempt_of_a_killed_worker_is_one(bed: Bed, module: ModuleServer) -> None:
    """After one that failed, and one whose worker was killed, there is a third only where the profile has two retries."""
    for name in ("two", "one"):
        module.add(name, Flaky(500, "nap"), effect="read")
    said = [
        {"name": "tool_retry", "max_retries": number, "tools": [f"owls.{name}"]}
        for name, number in (("two", 2), ("one", 1))
    ]
    bed.given["agents"] = {"production": {"middleware": said}}
    await bed.serve(module)
    doomed = await bed.worker()
    fleet = await bed.agent()
    handles = [await fleet.submit(ToolCall(tool_name=f"owls.{name}"), ADA, timeout=600) for name in ("two", "one")]
    await until(lambda: len(module.requests) == 4, "their second attempts run")
    doomed.kill()
    await bed.worker()
    two, one = [await handle.result() for handle in handles]
    assert (two.success, one.success) == (True, False)
    assert (len(module.calls("two")), len(module.calls("one"))) == (3, 2)


async def test_a_worker_that_is_killed_between_two_attempts_loses_nothing(
    bed: Bed, module: ModuleServer, said: Callable[[], str]
) -> None:
    """The next worker goes on after the pause, with the attempts that are left."""
    module.add("flaky", Flaky(500, 500), effect="read")
    bed.given |= profile(tool_retry={"max_retries": 2, "initial_delay_seconds": 20, "jitter": False})
    await bed.serve(module)
    doomed = await bed.worker()
    fleet = await bed.agent()
    handle = await fleet.submit(ToolCall(tool_name="owls.flaky"), ADA, timeout=600)
    await until(lambda: "tool_call_retried" in said(), "it waits for its second attempt")
    doomed.kill()
    await bed.worker()
    result = await handle.result()
    assert (result.success, result.audit.attempts, len(module.calls("flaky"))) == (True, 3, 3)
