"""Calls of LangGraph's graphs that people have to approve: the real packages, a scripted model, and the fleet's own record."""

from collections.abc import Mapping
from typing import Any

import pytest
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from support.frameworks.chat_script import script
from support.module_server import ModuleServer
from toolfleet import Approver, Caller, ToolFleet
from toolfleet.adapters.langchain import FleetMiddleware

PEOPLE = {
    "bob": Approver("web", "bob", "admin"),
    "eve": Approver("web", "eve", "admin"),
    "ada": Approver("web", "ada", "owner"),
    "mallory": Approver("web", "mallory", "user"),
}
ASK = {"messages": [("user", "Ask the owl.")]}
THREAD = {"configurable": {"thread_id": "t1"}}


def whose(value: Mapping[str, Any]) -> Approver | None:
    """Who has decided: the application writes it beside the decision."""
    return PEOPLE.get(value.get("by", ""))


class Asking:
    """A graph whose model makes one call that people have to approve."""

    def __init__(self, fleet: ToolFleet, caller: Caller) -> None:
        model = script(("owls__echo", {"text": "hoo", "n": 1}, "c1"))
        middleware = FleetMiddleware(fleet, caller, defer_approvals=True, approver=whose)
        self.graph: Any = create_agent(model, middleware=[middleware], checkpointer=InMemorySaver())

    async def asks(self) -> dict[str, Any]:
        return question(await self.graph.ainvoke(ASK, THREAD))

    async def goes_on(self, value: object) -> Any:
        return await self.graph.ainvoke(Command(resume=value), THREAD)


def question(state: Any) -> dict[str, Any]:
    """What the graph that was interrupted asks."""
    (interrupt,) = state["__interrupt__"]
    value: dict[str, Any] = interrupt.value
    assert value["toolfleet_call_id"] == value["toolfleet_approval"]["id"]
    return dict(value["toolfleet_approval"])


def shown(state: Any) -> str:
    """What the model was shown of its call."""
    assert "__interrupt__" not in state
    return str(next(message.content for message in state["messages"] if message.type == "tool"))


def says(asked: Mapping[str, Any], decision: str, by: str, **more: object) -> dict[str, Any]:
    return {"decision": decision, "id": asked["id"], "digest": asked["digest"], "by": by, **more}


async def test_a_resumed_approval_is_a_vote(fleet: ToolFleet, asking: Caller, owls: ModuleServer) -> None:
    """The node runs again and joins its call, which runs once, with the arguments that the approver has written."""
    run = Asking(fleet, asking)
    asked = await run.asks()
    assert (asked["tool"], asked["arguments"], asked["missing"]) == ("owls.echo", {"text": "hoo", "n": 1}, 1)
    assert owls.calls("echo") == []

    state = await run.goes_on(says(asked, "approve", "bob", arguments={"n": 2}, reason="Twice."))

    assert shown(state) == '{"text":"hoo","n":2}'
    found = await fleet.approvals.show(asked["id"])
    assert [(line.what, line.by) for line in found.journal] == [("edited", "user bob"), ("approved", "user bob")]
    assert [call["arguments"]["n"] for call in owls.calls("echo")] == [2]


async def test_a_rejection_has_its_reason(fleet: ToolFleet, asking: Caller, owls: ModuleServer) -> None:
    """It ends the call, and the model reads the person's words."""
    run = Asking(fleet, asking)
    asked = await run.asks()

    end = shown(await run.goes_on(says(asked, "reject", "bob", reason="Not today.")))

    assert "error_code: approval_denied" in end
    assert "Not today." in end
    assert (await fleet.approvals.show(asked["id"])).state == "rejected"
    assert owls.calls("echo") == []


@pytest.mark.parametrize(
    ("value", "refusal"),
    [
        ({"decision": "approve"}, "user mallory is none of those"),
        ({"decision": "approve", "by": "ada"}, "Nobody approves a call of their own."),
        ({"decision": "approve", "by": "nobody"}, "names no approver"),
        ({"decision": "approve", "by": "bob", "digest": None}, "A decision names what was seen"),
        ({"decision": "reject", "by": "bob", "id": "another"}, "The decision is about another call."),
        ({"decision": "approve", "by": "bob", "digest": "another"}, "its arguments were changed since"),
        ({"decision": "yes", "by": "bob"}, "A decision is"),
        ({"decision": "approve", "by": "bob", "arguments": "{}"}, "A decision is"),
    ],
    ids=[
        "without the right",
        "whoever asks",
        "nobody",
        "unseen",
        "another call",
        "something else",
        "no decision",
        "no arguments",
    ],
)
async def test_what_is_not_taken_is_asked_again(
    fleet: ToolFleet, asking: Caller, owls: ModuleServer, value: dict[str, Any], refusal: str
) -> None:
    """The graph is interrupted with the same question, which says why, and goes on with the next decision that is taken."""
    run = Asking(fleet, asking)
    asked = await run.asks()

    again = question(await run.goes_on({**says(asked, "", "mallory"), **value}))

    assert refusal in again["refusal"]
    assert again["id"] == asked["id"]
    assert owls.calls("echo") == []
    assert shown(await run.goes_on(says(again, "approve", "bob"))) == '{"text":"hoo","n":1}'
    assert len(owls.calls("echo")) == 1


@pytest.mark.parametrize("decide", ["approve", "reject"])
async def test_what_was_decided_elsewhere_counts(
    fleet: ToolFleet, asking: Caller, owls: ModuleServer, decide: str
) -> None:
    """A graph that is resumed too early asks again; later it brings the call's end, whatever it is resumed with."""
    run = Asking(fleet, asking)
    asked = await run.asks()
    assert question(await run.goes_on(value=True))["id"] == asked["id"]

    await getattr(fleet.approvals, decide)(asked["id"], PEOPLE["eve"], reason="As I say.")
    end = shown(await run.goes_on(says(asked, "reject" if decide == "approve" else "approve", "bob")))

    assert ("As I say." in end) == (decide == "reject")
    assert len(owls.calls("echo")) == (decide == "approve")


async def test_a_quorum_takes_as_many_people(fleet: ToolFleet, asking_two: Caller, owls: ModuleServer) -> None:
    """What the graph was resumed with before comes again with each step, and counts once, for the one who has decided it."""
    run = Asking(fleet, asking_two)
    asked = await run.asks()
    again = question(await run.goes_on(says(asked, "approve", "bob")))
    assert again["missing"] == 1
    assert "has approved this call already" in question(await run.goes_on(says(again, "approve", "bob")))["refusal"]
    assert owls.calls("echo") == []

    assert shown(await run.goes_on(says(again, "approve", "eve"))) == '{"text":"hoo","n":1}'
    assert len(owls.calls("echo")) == 1
