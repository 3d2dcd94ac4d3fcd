"""Agents of the OpenAI Agents SDK call the fleet through `FleetAgent`, and people approve calls of their runs: the real package, a scripted model."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from agents import FunctionTool, RunConfig, RunContextWrapper, Runner, RunState, ToolApprovalItem, function_tool
from agents.exceptions import AgentsException, ModelBehaviorError
from agents.testing import ScriptedModel, assistant_message, function_call

from support.module_server import ModuleServer
from support.waiting import wait_until
from toolfleet import Approver, Caller, ToolFleet
from toolfleet.adapters.openai_agents import FleetAgent, FleetTools, WaitsForApproval


def calls(*steps: tuple[str, str, str]) -> ScriptedModel:
    """A model that makes one call a turn, `(name, arguments, id)`, and then says "done"."""
    made = [[function_call(name, arguments, call_id=call_id)] for name, arguments, call_id in steps]
    return ScriptedModel([*made, [assistant_message("done")]])


def keeper(model: ScriptedModel, tools: FleetTools, *own: FunctionTool) -> FleetAgent[Any]:
    return FleetAgent(name="keeper", model=model, tools=list(own), fleet_tools=tools)


def names(model: ScriptedModel) -> list[set[str]]:
    """The tools that each turn was offered."""
    return [{tool.name for tool in call.tools} for call in model.calls]


def outputs(result: Any) -> list[str]:
    """What the model was shown of its calls."""
    return [item.output for item in result.new_items if item.type == "tool_call_output_item"]


async def test_an_agent_sees_its_callers_tools_and_calls_one(fleet: ToolFleet, ada: Caller, owls: ModuleServer) -> None:
    """The tools are those of the caller, with their schemas as they are; the result is what the tool has answered."""
    model = calls(("owls__echo", '{"text": "hoo"}', "c1"))
    agent = keeper(model, FleetTools(fleet, ada))

    ran = await Runner.run(agent, "Ask the owl.")

    assert (ran.final_output, outputs(ran)) == ("done", ['{"text":"hoo"}'])
    assert "owls__admin_only" not in names(model)[0]
    offered = next(
        tool for tool in model.calls[0].tools if isinstance(tool, FunctionTool) and tool.name == "owls__echo"
    )
    assert offered.params_json_schema == {"type": "object", "properties": {}, "required": []}
    assert [call["arguments"] for call in owls.calls("echo")] == [{"text": "hoo"}]


async def test_the_caller_may_follow_from_the_run(fleet: ToolFleet) -> None:
    """One agent serves many users: a function of the run's context says whose run it is."""

    def whose(run: RunContextWrapper[str]) -> Caller:
        return Caller(user_id=run.context, permission="admin" if run.context == "eve" else "user", allowed_modules="*")

    seen = []
    for user in ("ada", "eve"):
        model = calls()
        await Runner.run(keeper(model, FleetTools(fleet, whose)), "Hi", context=user)
        seen.append("owls__admin_only" in names(model)[0])

    assert seen == [False, True]


async def test_a_failure_is_worded_and_not_repeated(fleet: ToolFleet, ada: Caller, owls: ModuleServer) -> None:
    """The model reads the code, what has become of the effect and the hint; nothing is called a second time."""
    agent = keeper(calls(("owls__garble", "{}", "c1")), FleetTools(fleet, ada))

    (shown,) = outputs(await Runner.run(agent, "Try."))

    assert shown.startswith("Error: ")
    assert "error_code: invalid_response\neffect_state: unknown\nretryable: false\nhint: " in shown
    assert len(owls.calls("garble")) == 1


@pytest.mark.parametrize("arguments", ["no JSON", "[1]", '{"seconds": NaN}'])
async def test_arguments_that_are_none_are_refused_with_one_sentence(
    fleet: ToolFleet, ada: Caller, owls: ModuleServer, arguments: str
) -> None:
    """They reach the fleet as the model wrote them, which refuses them: the run goes on, and nothing is called."""
    agent = keeper(calls(("owls__nap", arguments, "c1")), FleetTools(fleet, ada))

    (shown,) = outputs(await Runner.run(agent, "Try."))

    assert "error_code: invalid_arguments" in shown
    assert owls.calls("nap") == []


async def test_a_repeat_joins_and_other_arguments_do_not(fleet: ToolFleet, ada: Caller, owls: ModuleServer) -> None:
    """A run that goes on elsewhere under its id gets the first results; another run's calls of the same ids are its own."""
    script = [("owls__nap_once", '{"seconds": 0}', "c1"), ("owls__nap_once", '{"seconds": 0.01}', "c2")]
    for run_id in ("r1", "r1", "r2"):
        tools = FleetTools(fleet, ada, run_id=lambda run: str(run.context))
        agent = keeper(calls(*script), tools)
        assert outputs(await Runner.run(agent, "Sleep.", context=run_id)) == ["awake", "awake"]

    assert [call["arguments"]["seconds"] for call in owls.calls("nap_once")] == [0, 0.01, 0, 0.01]


async def test_two_runs_are_two_intentions(fleet: ToolFleet, ada: Caller, owls: ModuleServer) -> None:
    """A model that counts its calls anew in each run does not get the result of an earlier run."""
    tools = FleetTools(fleet, ada)
    for _ in range(2):
        agent = keeper(calls(("owls__nap_once", '{"seconds": 0}', "call_0")), tools)
        await Runner.run(agent, "Sleep.")

    assert len(owls.calls("nap_once")) == 2


async def test_a_run_that_is_cancelled_takes_its_call_back(fleet: ToolFleet, ada: Caller, owls: ModuleServer) -> None:
    """The worker hangs up on the module."""
    model = calls(("owls__nap", '{"seconds": 60}', "c1"))
    agent = keeper(model, FleetTools(fleet, ada))
    running = asyncio.create_task(Runner.run(agent, "Sleep."))
    await wait_until(lambda: owls.running == 1, "the call runs")

    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    await wait_until(lambda: owls.interrupted, "the module was hung up on")


async def test_a_call_has_the_time_that_the_tools_have(fleet: ToolFleet, ada: Caller, owls: ModuleServer) -> None:
    """The model hears that the call's time was over."""
    tools = FleetTools(fleet, ada, timeout=3)
    agent = keeper(calls(("owls__nap", '{"seconds": 60}', "c1")), tools)

    (shown,) = outputs(await Runner.run(agent, "Sleep."))

    assert "error_code: timed_out" in shown
    await wait_until(lambda: owls.interrupted, "the module was hung up on")


async def test_tools_that_come_meanwhile_are_offered_at_the_next_turn(
    fleet: ToolFleet, ada: Caller, add_tool: Callable[[], Awaitable[None]], owls: ModuleServer
) -> None:
    """A run's next turn sees them, and calls them."""

    @function_tool
    async def grow() -> str:
        await add_tool()
        return "grown"

    model = calls(("owls__echo", "{}", "c1"), ("grow", "{}", "c2"), ("owls__late", "{}", "c3"))
    agent = keeper(model, FleetTools(fleet, ada), grow)

    ran = await Runner.run(agent, "Grow.")

    assert ["owls__late" in turn for turn in names(model)] == [False, False, True, True]
    assert outputs(ran) == ["{}", "grown", "{}"]
    assert len(owls.calls("late")) == 1


async def test_a_turn_in_which_nothing_has_changed_makes_nothing_anew(fleet: ToolFleet, ada: Caller) -> None:
    """The tools of two turns of one run are the same objects."""
    tools, run = FleetTools(fleet, ada), RunContextWrapper[None](context=None)

    first, second = await tools.of(run), await tools.of(run)

    assert first
    assert all(one is other for one, other in zip(first, second, strict=True))


async def test_a_run_ends_where_its_profile_says_so(fleet: ToolFleet, spent: Caller, owls: ModuleServer) -> None:
    """Its second call is one too many: the SDK's own error ends it. Another run has a call of its own."""
    for _ in range(2):
        model = calls(("owls__echo", '{"n": 1}', "c1"), ("owls__echo", '{"n": 2}', "c2"))
        with pytest.raises(AgentsException, match="1 call of this kind in a run"):
            await Runner.run(keeper(model, FleetTools(fleet, spent)), "Ask the owl twice.")
    assert len(owls.calls("echo")) == 2


@pytest.mark.parametrize("name", ["owls__ecoh", "owls.echo", "echo", "no_such_tool_at_all"])
async def test_a_wrong_tool_name_is_answered_and_ends_no_run(fleet: ToolFleet, ada: Caller, name: str) -> None:
    """With the tools' `run_config` the model reads which tools it may have meant, and calls one; without it the SDK raises."""
    tools = FleetTools(fleet, ada)
    script = [(name, "{}", "c1"), ("owls__echo", '{"text": "hoo"}', "c2")]

    ran = await Runner.run(keeper(calls(*script), tools), "Try.", run_config=tools.run_config())

    wrong, right = outputs(ran)
    meant = "." if name == "no_such_tool_at_all" else "; did you mean owls__echo"
    assert wrong.startswith(f"Error: No tool {name}{meant}")
    assert "error_code: unknown_tool\neffect_state: none" in wrong
    assert (right, ran.final_output) == ('{"text":"hoo"}', "done")
    with pytest.raises(ModelBehaviorError):
        await Runner.run(keeper(calls(*script), tools), "Try.")


async def test_a_run_config_keeps_what_its_program_has_set(fleet: ToolFleet, ada: Caller) -> None:
    """Its own formatter has the first word, and all other fields stay."""
    own = RunConfig(
        workflow_name="keeping", tool_error_formatter=lambda error: "Mine." if error.tool_name == "mine" else None
    )
    tools = FleetTools(fleet, ada)
    config = tools.run_config(own)

    ran = await Runner.run(keeper(calls(("mine", "{}", "c1"), ("other", "{}", "c2")), tools), "Try.", run_config=config)

    assert config.workflow_name == "keeping"
    assert own.tool_not_found_behavior == "raise_error"
    assert outputs(ran)[0] == "Mine."
    assert outputs(ran)[1].startswith("Error: No tool other.")


BOB = Approver("web", "bob", "admin")
EVE = Approver("web", "eve", "admin")
GUEST = Approver("web", "mallory", "user")


class Asking:
    """An agent whose model makes one call that people have to approve, and its run, which that has interrupted."""

    def __init__(self, fleet: ToolFleet, caller: Caller, approver: Approver | None = None) -> None:
        call = function_call("owls__echo", '{"text": "hoo", "n": 1}', call_id="c1")
        model = ScriptedModel([[call], [assistant_message("done")], [assistant_message("done")]])
        options: dict[str, Any] = {"defer_approvals": True, "approver": approver, "run_id": lambda run: run.context}
        self.tools = FleetTools(fleet, caller, **options)
        self.agent = FleetAgent[str](name="keeper", model=model, fleet_tools=self.tools)

    async def asks(self, run_id: str) -> tuple[RunState[str, Any], ToolApprovalItem, RunContextWrapper[Any]]:
        ran = await Runner.run(self.agent, "Ask the owl.", context=run_id)
        (item,) = ran.interruptions
        return ran.to_state(), item, ran.context_wrapper

    async def goes_on(self, state: RunState[str, Any]) -> Any:
        return await Runner.run(self.agent, state)


def shown(ran: Any) -> list[str]:
    """What the model was shown of its calls."""
    return [item.output for item in ran.new_items if item.type == "tool_call_output_item"]


async def test_an_interruption_says_who_may_and_until_when(
    fleet: ToolFleet, asking: Caller, owls: ModuleServer
) -> None:
    """The call waits in the fleet, where others find it, and nothing runs; a call that nobody has to approve interrupts nothing."""
    run = Asking(fleet, asking)
    _, item, wrapper = await run.asks("r1")

    question = await run.tools.question(item, wrapper)
    assert question is not None
    assert (question["tool"], question["missing"]) == ("owls.echo", 1)
    assert (await fleet.approvals.show(question["id"])).state == "waiting"
    free = Asking(fleet, asking.model_copy(update={"agent": None}))
    assert shown(await Runner.run(free.agent, "Ask the owl.", context="r2")) == ['{"text":"hoo","n":1}']
    assert len(owls.calls("echo")) == 1


async def test_an_approved_run_votes_and_runs_once(fleet: ToolFleet, asking: Caller, owls: ModuleServer) -> None:
    """The state's approval stands in the fleet's record under the approver's name, and another process may go on with the run."""
    run = Asking(fleet, asking, BOB)
    state, item, wrapper = await run.asks("r3")
    question = await run.tools.question(item, wrapper)
    assert question is not None
    state.approve(item)
    kept = state.to_json(context_serializer=lambda context: {"run": context})

    ends = []
    for _ in range(2):
        elsewhere = Asking(fleet, asking, BOB)
        elsewhere.agent.model = ScriptedModel([[assistant_message("done")]])
        again = await RunState.from_json(elsewhere.agent, kept, context_override=RunContextWrapper("r3"))
        ends.append(shown(await elsewhere.goes_on(again)))

    assert ends == [['{"text":"hoo","n":1}']] * 2
    found = await fleet.approvals.show(question["id"])
    assert (found.state, [line.by for line in found.journal]) == ("approved", ["user bob"])
    assert len(owls.calls("echo")) == 1


@pytest.mark.parametrize(
    ("approver", "refusal"), [(None, "names no approver"), (GUEST, "user mallory is none of those")]
)
async def test_a_state_approves_nothing_by_itself(
    fleet: ToolFleet, asking: Caller, owls: ModuleServer, approver: Approver | None, refusal: str
) -> None:
    """Without an approver who has the right the model reads that the call still waits, and why; nothing runs."""
    run = Asking(fleet, asking, approver)
    state, item, wrapper = await run.asks(f"r4 {refusal}")
    state.approve(item)

    (end,) = shown(await run.goes_on(state))

    assert "error_code: approval_required" in end
    assert refusal in end
    question = await run.tools.question(item, wrapper)
    assert question is not None
    assert (await fleet.approvals.show(question["id"])).state == "waiting"
    assert owls.calls("echo") == []


async def test_decide_takes_reasons_and_edited_arguments(fleet: ToolFleet, asking: Caller, owls: ModuleServer) -> None:
    """The fleet has what the framework has no field for; the run goes on with the end, whichever that is."""
    words: list[dict[str, Any]] = [{"decision": "approve", "arguments": {"n": 2}}, {"decision": "reject"}]
    for number, more in enumerate(words):
        run = Asking(fleet, asking)
        state, item, wrapper = await run.asks(f"r5 {number}")
        question = await run.tools.question(item, wrapper)
        assert question is not None
        named = {"id": question["id"], "digest": question["digest"], "reason": "As I say."}
        with pytest.raises(WaitsForApproval, match="waits for an approval") as refused:
            await run.tools.decide(item, wrapper, {**named, **more}, GUEST)
        assert "none of those" in str(refused.value.refusal)

        await run.tools.decide(item, wrapper, {**named, **more}, BOB)
        state.approve(item)
        (end,) = shown(await run.goes_on(state))
        assert ("As I say." in end, '"n":2' in end) == (number == 1, number == 0)

    assert [call["arguments"]["n"] for call in owls.calls("echo")] == [2]


async def test_what_was_decided_elsewhere_counts(fleet: ToolFleet, asking: Caller, owls: ModuleServer) -> None:
    """The framework goes on only with a word of its own, and then the run has the call's end, also where others have rejected it."""
    for decide in ("approve", "reject"):
        run = Asking(fleet, asking, BOB)
        state, item, wrapper = await run.asks(f"r6 {decide}")
        question = await run.tools.question(item, wrapper)
        assert question is not None
        await getattr(fleet.approvals, decide)(question["id"], EVE, reason="As I say.")
        assert len((await run.goes_on(state)).interruptions) == 1
        state.approve(item)
        (end,) = shown(await run.goes_on(state))
        assert ("As I say." in end) == (decide == "reject")
    assert len(owls.calls("echo")) == 1


def test_a_run_has_to_be_found_again(fleet: ToolFleet, asking: Caller) -> None:
    """Without a run's id the tools are not made: the run that goes on could not find its call."""
    with pytest.raises(ValueError, match="needs a run_id"):
        FleetTools(fleet, asking, defer_approvals=True)
