"""Pydantic AI's agents call the fleet through `FleetToolset`: the real package, and a model that follows a script."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from pydantic_ai import Agent, ModelMessage, RunContext, ToolCallPart, ToolReturnPart
from pydantic_ai.exceptions import RunTimedOut, ToolFailed, UsageLimitExceeded
from pydantic_ai.tools import DeferredToolRequests

from support.fleet import TestBed
from support.frameworks.pydantic_script import PydanticScript
from support.local_tools.talkers import Talker
from support.module_server import ModuleServer
from support.waiting import wait_until
from toolfleet import Caller, ToolFleet
from toolfleet.adapters.pydantic_ai import FleetToolset, ToolProgress
from toolfleet_registry.system import fleet_clock


def returns(messages: Sequence[ModelMessage]) -> list[ToolReturnPart]:
    """What the model was shown of its calls."""
    return [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]


async def test_an_agent_sees_its_callers_tools_and_calls_one(fleet: ToolFleet, ada: Caller, owls: ModuleServer) -> None:
    """The tools are those of the caller, under names that providers take; the result is what the tool has answered."""
    script = PydanticScript([ToolCallPart("owls__echo", {"text": "hoo"}, "c1")])
    agent = Agent(script.model(), toolsets=[FleetToolset(fleet, ada)])

    ran = await agent.run("Ask the owl.")

    assert "owls__echo" in script.seen[0]
    assert "owls__admin_only" not in script.seen[0]
    assert [part.content for part in returns(ran.all_messages())] == [{"text": "hoo"}]
    assert [call["arguments"] for call in owls.calls("echo")] == [{"text": "hoo"}]


async def test_the_caller_may_follow_from_the_run(fleet: ToolFleet) -> None:
    """One toolset serves many users: a function of the run's dependencies says whose run it is."""
    script = PydanticScript()

    def whose(ctx: RunContext[str]) -> Caller:
        return Caller(user_id=ctx.deps, permission="admin" if ctx.deps == "eve" else "user", allowed_modules="*")

    agent = Agent(script.model(), deps_type=str, toolsets=[FleetToolset(fleet, whose)])
    await agent.run("Hello", deps="ada")
    await agent.run("Hello", deps="eve")

    assert ["owls__admin_only" in names for names in script.seen] == [False, True]


async def test_a_failure_is_worded_and_not_repeated(fleet: ToolFleet, ada: Caller, owls: ModuleServer) -> None:
    """The model reads the code, what has become of the effect and the hint; the framework makes no second call by itself."""
    script = PydanticScript([ToolCallPart("owls__garble", {}, "c1")])
    agent = Agent(script.model(), toolsets=[FleetToolset(fleet, ada)])

    (part,) = returns((await agent.run("Try.")).all_messages())

    assert part.outcome == "failed"
    assert "error_code: invalid_response\neffect_state: unknown\nretryable: false\nhint: " in str(part.content)
    assert len(owls.calls("garble")) == 1


@pytest.mark.parametrize("arguments", ["no JSON", "[1]", {"seconds": float("nan")}])
async def test_arguments_that_are_none_are_refused_with_one_sentence(
    fleet: ToolFleet, ada: Caller, owls: ModuleServer, arguments: str | dict[str, float]
) -> None:
    """They reach the fleet as the model wrote them, which refuses them: the run goes on, and nothing is called."""
    script = PydanticScript([ToolCallPart("owls__nap", arguments, "c1")])
    agent = Agent(script.model(), toolsets=[FleetToolset(fleet, ada)])

    ran = await agent.run("Try.")

    assert ran.output == "done"
    assert "error_code: invalid_arguments" in str(returns(ran.all_messages())[0].content)
    assert owls.calls("nap") == []


async def test_a_repeat_joins_and_other_arguments_do_not(fleet: ToolFleet, ada: Caller, owls: ModuleServer) -> None:
    """A model that repeats a call's id with its arguments gets the first result; with other arguments it is another call."""
    nap = ToolCallPart("owls__nap_once", {"seconds": 0}, "c1")
    script = PydanticScript([nap], [nap], [ToolCallPart("owls__nap_once", {"seconds": 0.01}, "c1")])
    agent = Agent(script.model(), toolsets=[FleetToolset(fleet, ada)])

    ran = await agent.run("Sleep.")

    assert [part.content for part in returns(ran.all_messages())] == ["awake"] * 3
    assert [call["arguments"] for call in owls.calls("nap_once")] == [{"seconds": 0}, {"seconds": 0.01}]


async def test_two_runs_are_two_intentions(fleet: ToolFleet, ada: Caller, owls: ModuleServer) -> None:
    """A model that counts its calls anew in each run does not get the result of an earlier run."""
    for _ in range(2):
        script = PydanticScript([ToolCallPart("owls__nap_once", {"seconds": 0}, "call_0")])
        await Agent(script.model(), toolsets=[FleetToolset(fleet, ada)]).run("Sleep.")

    assert len(owls.calls("nap_once")) == 2


async def test_a_run_that_is_cancelled_takes_its_call_back(fleet: ToolFleet, ada: Caller, owls: ModuleServer) -> None:
    """The worker hangs up on the module."""
    script = PydanticScript([ToolCallPart("owls__nap", {"seconds": 60}, "c1")])
    running = asyncio.create_task(Agent(script.model(), toolsets=[FleetToolset(fleet, ada)]).run("Sleep."))
    await wait_until(lambda: owls.running == 1, "the call runs")

    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    await wait_until(lambda: owls.interrupted, "the module was hung up on")


async def test_a_call_ends_by_its_runs_deadline(fleet: ToolFleet, ada: Caller, owls: ModuleServer) -> None:
    """The model hears of it while the run has time left; a run whose own time is over takes the call back."""
    toolset = FleetToolset[object](fleet, ada)
    agent = Agent(PydanticScript([ToolCallPart("hurry", {}, "c1")]).model())

    @agent.tool
    async def hurry(ctx: RunContext[object]) -> str:
        hurried = replace(ctx, deadline=fleet_clock.utc_now() + timedelta(seconds=3))
        tool = (await toolset.get_tools(hurried))["owls__nap"]
        with pytest.raises(ToolFailed) as failed:
            await toolset.call_tool("owls__nap", {"seconds": 60}, hurried, tool)
        return failed.value.message

    assert "error_code: timed_out" in str(returns((await agent.run("Sleep.")).all_messages())[0].content)
    slow = Agent(PydanticScript([ToolCallPart("owls__nap", {"seconds": 61}, "c1")]).model(), toolsets=[toolset])
    with pytest.raises(RunTimedOut):
        await slow.run("Sleep.", timeout=3)
    await wait_until(lambda: len(owls.interrupted) == 2, "the module was hung up on twice")


async def test_progress_is_an_event_of_the_run(fleet: ToolFleet, ada: Caller, talker: Talker) -> None:
    """Whoever follows the run's events sees how far its calls are, and of which call it is."""
    talker.forget()
    script = PydanticScript([ToolCallPart("owls__talk", {}, "c1")])
    heard: list[ToolProgress] = []
    agent = Agent(script.model(), toolsets=[FleetToolset(fleet, ada)])
    async with agent.run_stream_events("Talk.") as events:
        async for event in events:
            if isinstance(event, ToolProgress):
                heard.append(event)
                talker.go_on(1)

    assert (heard[-1].fraction, heard[-1].message, heard[-1].tool_call_id) == (None, "thinking", "c1")


async def test_a_long_call_is_deferred_and_its_result_comes_in_another_process(
    fleet: ToolFleet, ada: Caller, bed: TestBed, owls: ModuleServer, talker: Talker
) -> None:
    """The run ends with its deferred requests; a fleet that has never heard of the call brings its end, and it ran once."""
    talker.forget()
    script = PydanticScript([ToolCallPart("owls__talk", {}, "c1")])
    toolset = FleetToolset[object](fleet, ada, defer_after=0.1)
    agent = Agent(script.model(), toolsets=[toolset], output_type=[str, DeferredToolRequests])

    ran = await agent.run("Talk.")

    assert isinstance(ran.output, DeferredToolRequests)
    talker.go_on(3)
    async with ToolFleet(settings=bed.settings) as other:
        elsewhere = FleetToolset[object](other, ada, defer_after=0.1)
        results = await elsewhere.deferred_results(ran.output, ada)
        again = await Agent(script.model(), toolsets=[elsewhere]).run(
            message_history=ran.all_messages(), deferred_tool_results=results
        )
    assert again.output == "done"
    assert [part.content for part in returns(again.all_messages())] == ["done"]
    assert len(owls.calls("talk")) == 1


async def test_a_deferred_call_that_nobody_knows_has_an_unknown_outcome(fleet: ToolFleet, ada: Caller) -> None:
    """It is not made anew, nor shown to another user."""
    known = {"toolfleet_call_id": "00000000-0000-4000-8000-000000000000", "toolfleet_tool": "owls.talk"}
    requests = DeferredToolRequests(calls=[ToolCallPart("owls__talk", {}, "c1")], metadata={"c1": known})

    results = await FleetToolset[object](fleet, ada).deferred_results(requests, ada)

    assert "error_code: outcome_unknown" in str(results.calls["c1"])


async def test_tools_that_come_meanwhile_are_offered_at_the_next_step(
    fleet: ToolFleet, ada: Caller, add_tool: Callable[[], Awaitable[None]], owls: ModuleServer
) -> None:
    """A run's next step sees them; while nothing changes its tools are the same objects, made once."""
    script = PydanticScript(
        [ToolCallPart("owls__echo", {}, "c1")],
        [ToolCallPart("grow", {}, "c2")],
        [ToolCallPart("owls__late", {}, "c3")],
    )
    toolset = FleetToolset[object](fleet, ada)
    agent = Agent(script.model(), toolsets=[toolset])

    @agent.tool_plain
    async def grow() -> str:
        await add_tool()
        return "grown"

    ran = await agent.run("Grow.")

    assert ["owls__late" in names for names in script.seen] == [False, False, True, True]
    assert returns(ran.all_messages())[-1].content == {}
    assert len(owls.calls("late")) == 1


async def test_a_run_ends_where_its_profile_says_so(fleet: ToolFleet, spent: Caller, owls: ModuleServer) -> None:
    """Its second call is one too many: the framework's own error ends it. Another run has a call of its own."""
    calls = [ToolCallPart("owls__echo", {"n": number}, f"c{number}") for number in range(2)]
    for _ in range(2):
        agent = Agent(PydanticScript(*([call] for call in calls)).model(), toolsets=[FleetToolset(fleet, spent)])
        with pytest.raises(UsageLimitExceeded, match="1 call of this kind in a run"):
            await agent.run("Ask the owl twice.")
    assert len(owls.calls("echo")) == 2
