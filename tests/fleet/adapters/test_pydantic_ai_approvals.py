"""Calls of Pydantic AI's agents that people have to approve: the real package, a scripted model, and the fleet's own record."""

from typing import Any

import pytest
from pydantic_ai import Agent, ModelMessage, ToolApproved, ToolCallPart, ToolDenied, ToolReturnPart
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults

from support.fleet import TestBed
from support.frameworks.pydantic_script import PydanticScript
from support.module_server import ModuleServer
from toolfleet import Approver, Caller, ToolFleet
from toolfleet.adapters.pydantic_ai import FleetToolset

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
