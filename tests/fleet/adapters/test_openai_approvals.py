"""Calls of the OpenAI Agents SDK's runs that people have to approve: the real package, a scripted model, and the fleet's own record."""

from collections.abc import Iterator
from typing import Any

import pytest
from agents import RunContextWrapper, Runner, RunState, ToolApprovalItem, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call

from support.module_server import ModuleServer
from toolfleet import Approver, Caller, ToolFleet
from toolfleet.adapters.openai_agents import FleetAgent, FleetTools, WaitsForApproval

BOB = Approver("web", "bob", "admin")
EVE = Approver("web", "eve", "admin")
GUEST = Approver("web", "mallory", "user")


@pytest.fixture(autouse=True)
def _untraced() -> Iterator[None]:
    """Traces would be sent to OpenAI."""
    set_tracing_disabled(disabled=True)
    yield
    set_tracing_disabled(disabled=False)


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
