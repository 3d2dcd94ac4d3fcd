"""Pydantic AI's agents call the fleet through `FleetToolset`, and people approve their calls: the real package, a model that follows a script."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import Agent, ModelMessage, RunContext, ToolApproved, ToolCallPart, ToolDenied, ToolReturnPart
from pydantic_ai.exceptions import RunTimedOut, ToolFailed, UsageLimitExceeded
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults

from support.fleet import TestBed
from support.frameworks.pydantic_script import PydanticScript
from support.local_tools.talkers import Talker
from support.module_server import ModuleServer
from support.waiting import wait_until
from toolfleet import Approver, Caller, ToolFleet
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

    async def run() -> None:
        async with slow.iter("Sleep.", timeout=3) as steps:
            async for _ in steps:
                pass

    with pytest.raises(RunTimedOut):
        await run()
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


BOB = Approver("web", "bob", "admin")
EVE = Approver("web", "eve", "admin")
GUEST = Approver("web", "mallory", "user")
HIMSELF = Approver("web", "ada", "owner")
ECHO = ToolCallPart("owls__echo", {"text": "hoo", "n": 1}, "c1")


class Asking:
    """An agent whose model makes one call that people have to approve, and its run, which that has ended."""

    def __init__(self, fleet: ToolFleet, caller: Caller, approver: Approver | None = None) -> None:
        self.caller = caller
        self.toolset = FleetToolset[object](fleet, caller, defer_approvals=True, approver=approver)
        model = PydanticScript([ECHO]).model()
        self.agent = Agent(model, toolsets=[self.toolset], output_type=[str, DeferredToolRequests])
        self.messages: list[ModelMessage] = []

    async def asks(self) -> DeferredToolRequests:
        ran = await self.agent.run("Ask the owl.")
        self.messages = ran.all_messages()
        assert isinstance(ran.output, DeferredToolRequests)
        assert [call.tool_call_id for call in ran.output.approvals] == ["c1"]
        return ran.output

    async def goes_on(self, results: DeferredToolResults) -> Any:
        return await self.agent.run(message_history=self.messages, deferred_tool_results=results)


def shown(ran: Any) -> list[str]:
    """What the model was shown of its calls."""
    parts = [part for message in ran.all_messages() for part in message.parts]
    return [str(part.content) for part in parts if isinstance(part, ToolReturnPart)]


def approves(requests: DeferredToolRequests, said: Any = None) -> DeferredToolResults:
    """What an application resumes the run with."""
    return DeferredToolResults(approvals={"c1": said or ToolApproved()}, metadata=requests.metadata)


async def test_the_request_says_who_may_and_until_when(fleet: ToolFleet, asking: Caller, owls: ModuleServer) -> None:
    """The application has all that it needs to ask somebody; the call waits in the fleet under the same id, and nothing runs."""
    requests = await Asking(fleet, asking).asks()

    question = requests.metadata["c1"]["toolfleet_approval"]
    found = await fleet.approvals.show(question["id"])
    assert (question["tool"], question["arguments"]) == ("owls.echo", {"text": "hoo", "n": 1})
    assert [rule["permission"] for rule in question["approvers"]] == ["admin"]
    assert (question["missing"], question["expires_at"]) == (1, found.request.expires_at)
    assert found.state == "waiting"
    assert owls.calls("echo") == []


@pytest.mark.parametrize("has_metadata", [True, False])
async def test_a_resumed_approval_is_a_vote(
    fleet: ToolFleet, asking: Caller, owls: ModuleServer, has_metadata: bool
) -> None:
    """It stands in the fleet's record under the approver's name; a run that is resumed twice has one execution."""
    run = Asking(fleet, asking, BOB)
    requests = await run.asks()
    results = approves(requests) if has_metadata else DeferredToolResults(approvals={"c1": True})

    ends = [shown(await run.goes_on(results)) for _ in range(2)]

    assert ends == [["{'text': 'hoo', 'n': 1}"]] * 2
    found = await fleet.approvals.show(requests.metadata["c1"]["toolfleet_call_id"])
    assert (found.state, [line.by for line in found.journal]) == ("approved", ["user bob"])
    assert [call["arguments"] for call in owls.calls("echo")] == [{"text": "hoo", "n": 1}]


async def test_edited_arguments_run_under_the_same_id(fleet: ToolFleet, asking: Caller, owls: ModuleServer) -> None:
    """What replaces the arguments is an edit in the journal, and is what runs."""
    run = Asking(fleet, asking, BOB)
    requests = await run.asks()

    ran = await run.goes_on(approves(requests, ToolApproved(override_args={"text": "hoo", "n": 2})))

    assert shown(ran) == ["{'text': 'hoo', 'n': 2}"]
    found = await fleet.approvals.show(requests.metadata["c1"]["toolfleet_call_id"])
    assert [line.what for line in found.journal] == ["edited", "approved"]
    assert [call["arguments"]["n"] for call in owls.calls("echo")] == [2]


@pytest.mark.parametrize(
    ("approver", "said", "refusal"),
    [
        (None, True, "names no approver"),
        (GUEST, True, "user mallory is none of those"),
        (HIMSELF, True, "Nobody approves a call of their own."),
        (BOB, ToolApproved(override_args={"n": 2}), "Nothing can be left out of the arguments: text."),
    ],
    ids=["nobody", "without the right", "whoever asks", "arguments left out"],
)
async def test_resuming_approves_nothing_by_itself(
    fleet: ToolFleet, asking: Caller, owls: ModuleServer, approver: Approver | None, said: Any, refusal: str
) -> None:
    """Without an approver who has the right the run ends with the same request again, which says why; nothing runs."""
    run = Asking(fleet, asking, approver)
    requests = await run.asks()

    again = (await run.goes_on(approves(requests, said))).output

    assert isinstance(again, DeferredToolRequests)
    question = again.metadata["c1"]["toolfleet_approval"]
    assert question["id"] == requests.metadata["c1"]["toolfleet_call_id"]
    assert refusal in question["refusal"]
    assert (await fleet.approvals.show(question["id"])).state == "waiting"
    assert owls.calls("echo") == []


async def test_what_was_decided_elsewhere_counts(
    fleet: ToolFleet, asking: Caller, bed: TestBed, owls: ModuleServer
) -> None:
    """A call that others have approved, or rejected, ends so, whatever the run is resumed with; another process may bring it."""
    for decide in ("approve", "reject"):
        run = Asking(fleet, asking)
        requests = await run.asks()
        call_id = requests.metadata["c1"]["toolfleet_call_id"]
        async with ToolFleet(settings=bed.settings) as other:
            await getattr(other.approvals, decide)(call_id, EVE, reason="As I say.")
            toolset = FleetToolset[object](other, asking, defer_approvals=True)
            (brought,) = (await toolset.deferred_results(requests, asking, approves(requests), BOB)).calls.values()
        (end,) = shown(await run.goes_on(approves(requests)))
        assert ("As I say." in str(brought), "As I say." in end) == ((decide == "reject"),) * 2
    assert len(owls.calls("echo")) == 1


async def test_a_rejection_has_its_reason(fleet: ToolFleet, asking: Caller, owls: ModuleServer) -> None:
    """`deferred_results` makes a vote of it, which ends the call; the model reads the person's words."""
    run = Asking(fleet, asking)
    requests = await run.asks()

    results = await run.toolset.deferred_results(requests, asking, approves(requests, ToolDenied("Not today.")), BOB)
    (end,) = shown(await run.goes_on(results))

    assert "error_code: approval_denied" in end
    assert "Not today." in end
    assert (await fleet.approvals.show(requests.metadata["c1"]["toolfleet_call_id"])).state == "rejected"
    assert owls.calls("echo") == []


async def test_a_quorum_takes_as_many_people(fleet: ToolFleet, asking_two: Caller, owls: ModuleServer) -> None:
    """After the first vote the run asks again, and the second counts for what both have seen."""
    run = Asking(fleet, asking_two)
    requests = await run.asks()

    results = await run.toolset.deferred_results(requests, asking_two, approves(requests), BOB)
    again = (await run.goes_on(results)).output
    assert isinstance(again, DeferredToolRequests)
    assert again.metadata["c1"]["toolfleet_approval"]["missing"] == 1
    assert owls.calls("echo") == []

    results = await run.toolset.deferred_results(again, asking_two, approves(again), EVE)
    assert shown(await run.goes_on(results)) == ["{'text': 'hoo', 'n': 1}"]
    assert len(owls.calls("echo")) == 1


async def test_an_approval_of_what_was_edited_meanwhile_is_not_taken(
    fleet: ToolFleet, asking_two: Caller, owls: ModuleServer
) -> None:
    """It names what was seen: whoever has seen other arguments is asked again, with those that it has."""
    run = Asking(fleet, asking_two)
    requests = await run.asks()
    call_id = requests.metadata["c1"]["toolfleet_call_id"]
    seen = requests.metadata["c1"]["toolfleet_approval"]["digest"]
    await fleet.approvals.approve(call_id, EVE, arguments={"n": 9}, seen=seen)

    for said in (ToolApproved(), ToolDenied("No.")):
        results = await run.toolset.deferred_results(requests, asking_two, approves(requests, said), BOB)

        question = results.metadata["c1"]["toolfleet_approval"]
        assert "its arguments were changed since (user eve replaced n)" in question["refusal"]
        assert (question["arguments"]["n"], question["missing"]) == (9, 1)
    assert owls.calls("echo") == []


async def test_a_vote_among_several_names_what_was_seen(
    fleet: ToolFleet, asking_two: Caller, owls: ModuleServer
) -> None:
    """Without the metadata of the request it does not, and is not taken: others may have edited the call."""
    run = Asking(fleet, asking_two, BOB)
    requests = await run.asks()

    again = (await run.goes_on(DeferredToolResults(approvals={"c1": True}))).output

    assert isinstance(again, DeferredToolRequests)
    question = again.metadata["c1"]["toolfleet_approval"]
    assert "send the binding that you are shown as `seen`" in question["refusal"]
    found = await fleet.approvals.show(requests.metadata["c1"]["toolfleet_call_id"])
    assert (found.state, found.votes) == ("waiting", ())
    assert owls.calls("echo") == []
