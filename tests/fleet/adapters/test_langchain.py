"""LangChain's agents call the fleet through `FleetMiddleware`: the real packages, and a model that follows a script."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware.tool_call_limit import ToolCallLimitExceededError
from langchain_core.messages import AIMessage, ToolCall, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command

from support.frameworks.chat_script import ChatScript, script
from support.local_tools.talkers import Talker
from support.module_server import ModuleServer
from support.waiting import wait_until
from toolfleet import Caller, ToolFleet
from toolfleet.adapters.langchain import FleetMiddleware

ASK = {"messages": [("user", "Ask the owl.")]}


def agent(model: ChatScript, middleware: FleetMiddleware, *own: Any, **options: Any) -> Any:
    return create_agent(model, list(own), middleware=[middleware], **options)


def shown(state: dict[str, Any]) -> list[ToolMessage]:
    """What the model was shown of its calls."""
    return [message for message in state["messages"] if isinstance(message, ToolMessage)]


def thread(name: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": name}}


async def test_an_agent_sees_its_callers_tools_and_calls_one(fleet: ToolFleet, ada: Caller, owls: ModuleServer) -> None:
    """The tools are those of the caller; the result is what the tool has answered."""
    model = script(("owls__echo", {"text": "hoo"}, "c1"))

    state = await agent(model, FleetMiddleware(fleet, ada)).ainvoke(ASK)

    assert [(each.content, each.status) for each in shown(state)] == [('{"text":"hoo"}', "success")]
    assert "owls__echo" in model.offered[0]
    assert "owls__admin_only" not in model.offered[0]
    assert [call["arguments"] for call in owls.calls("echo")] == [{"text": "hoo"}]


async def test_the_caller_may_follow_from_the_run(fleet: ToolFleet) -> None:
    """One agent serves many users: a function of the run's context says whose run it is."""

    def whose(user: str) -> Caller:
        return Caller(user_id=user, permission="admin" if user == "eve" else "user", allowed_modules="*")

    seen: list[bool] = []
    for user in ("ada", "eve"):
        model = script()
        await agent(model, FleetMiddleware(fleet, whose), context_schema=str).ainvoke(ASK, context=user)
        seen.append("owls__admin_only" in model.offered[0])

    assert seen == [False, True]


async def test_a_failure_is_worded_and_not_repeated(fleet: ToolFleet, ada: Caller, owls: ModuleServer) -> None:
    """The model reads the code, what has become of the effect and the hint; nothing is called a second time."""
    state = await agent(script(("owls__garble", {}, "c1")), FleetMiddleware(fleet, ada)).ainvoke(ASK)

    (message,) = shown(state)
    assert message.status == "error"
    assert "error_code: invalid_response\neffect_state: unknown\nretryable: false\nhint: " in str(message.content)
    assert message.artifact["effect_state"] == "unknown"
    assert len(owls.calls("garble")) == 1


async def test_a_name_that_was_not_offered_is_answered_with_one_that_was(fleet: ToolFleet, ada: Caller) -> None:
    """Nothing is called, and the run goes on."""
    state = await agent(script(("owls__ecko", {}, "c1")), FleetMiddleware(fleet, ada)).ainvoke(ASK)

    said = str(shown(state)[0].content)
    assert said.startswith("Error: No tool owls__ecko; did you mean owls__echo")
    assert "\nerror_code: unknown_tool\neffect_state: none\n" in said


async def test_arguments_are_judged_by_the_fleet(fleet: ToolFleet, ada: Caller, owls: ModuleServer) -> None:
    """What is no number in JSON is refused in one sentence, and nothing is called."""
    model = script(("owls__nap", {"seconds": float("nan")}, "c1"))

    state = await agent(model, FleetMiddleware(fleet, ada)).ainvoke(ASK)

    assert "error_code: invalid_arguments" in str(shown(state)[0].content)
    assert owls.calls("nap") == []


async def test_a_step_that_runs_again_joins_its_call(fleet: ToolFleet, ada: Caller, owls: ModuleServer) -> None:
    """Whoever goes back to the checkpoint before a call gets the first result; a later step with the call's id is its own."""
    nap = ("owls__nap_once", {"seconds": 0}, "call_0")
    graph = agent(
        script(nap, nap), FleetMiddleware(fleet, ada), checkpointer=InMemorySaver(), interrupt_before=["tools"]
    )
    await graph.ainvoke(ASK, thread("t1"))
    before = (await graph.aget_state(thread("t1"))).config

    first = shown(await graph.ainvoke(None, before))
    assert len(owls.calls("nap_once")) == 1
    await graph.ainvoke(None, thread("t1"))
    assert len(owls.calls("nap_once")) == 2
    again = shown(await graph.ainvoke(None, before))

    assert [each.content for each in (*first, *again)] == ["awake", "awake"]
    assert len(owls.calls("nap_once")) == 2


async def test_a_run_that_is_cancelled_takes_its_call_back(fleet: ToolFleet, ada: Caller, owls: ModuleServer) -> None:
    """The worker hangs up on the module."""
    graph = agent(script(("owls__nap", {"seconds": 60}, "c1")), FleetMiddleware(fleet, ada))
    running = asyncio.create_task(graph.ainvoke(ASK))
    await wait_until(lambda: owls.running == 1, "the call runs")

    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    await wait_until(lambda: owls.interrupted, "the module was hung up on")


async def test_progress_is_a_custom_event_of_the_graph(fleet: ToolFleet, ada: Caller, talker: Talker) -> None:
    """Whoever streams the graph sees how far its calls are, and of which call it is."""
    talker.forget()
    heard: list[dict[str, Any]] = []
    graph = agent(script(("owls__talk", {}, "c1")), FleetMiddleware(fleet, ada))
    async for event in graph.astream(ASK, stream_mode="custom"):
        heard.append(event)
        talker.go_on(1)

    last = {"fraction": None, "message": "thinking"}
    assert heard[-1] == {"tool_call_id": "c1", "tool_name": "owls__talk", "progress": last}


async def test_a_long_call_interrupts_the_graph_and_is_the_same_once_it_goes_on(
    fleet: ToolFleet, ada: Caller, owls: ModuleServer, talker: Talker
) -> None:
    """However often it is resumed too early, it waits for the one call."""
    talker.forget()
    model, saver = script(("owls__talk", {}, "c1")), InMemorySaver()
    graph, patient = (
        agent(model, FleetMiddleware(fleet, ada, defer_after=seconds), checkpointer=saver) for seconds in (0.1, 60)
    )

    (interrupted,) = (await graph.ainvoke(ASK, thread("t1")))["__interrupt__"]
    (still,) = (await graph.ainvoke(Command(resume=True), thread("t1")))["__interrupt__"]
    await wait_until(lambda: owls.call_ids("talk"), "the module has the call")
    (call_id,) = owls.call_ids("talk")
    talker.go_on(3)
    state = await patient.ainvoke(Command(resume=True), thread("t1"))

    known = {"kind": "call", "toolfleet_call_id": call_id, "toolfleet_tool": "owls.talk", "tool_call_id": "c1"}
    assert interrupted.value == still.value == known
    assert [each.content for each in shown(state)] == ["done"]
    assert state["messages"][-1].content == "done"
    assert len(owls.calls("talk")) == 1


async def test_tools_that_come_meanwhile_are_offered_at_the_next_step(
    fleet: ToolFleet, ada: Caller, add_tool: Callable[[], Awaitable[None]], owls: ModuleServer
) -> None:
    """A run's next step sees them, and calls them; the agent's own tools stay what they are."""

    @tool
    async def grow() -> str:
        """Grow."""
        await add_tool()
        return "grown"

    model = script(("owls__echo", {}, "c1"), ("grow", {}, "c2"), ("owls__late", {}, "c3"))

    state = await agent(model, FleetMiddleware(fleet, ada), grow).ainvoke(ASK)

    assert ["owls__late" in step for step in model.offered] == [False, False, True, True]
    assert [each.content for each in shown(state)] == ["{}", "grown", "{}"]
    assert len(owls.calls("late")) == 1


async def test_a_graph_of_ones_own_has_the_fleet_in_its_tool_node(fleet: ToolFleet, ada: Caller) -> None:
    """LangGraph's own node runs the calls, without an agent of LangChain's."""
    middleware = FleetMiddleware(fleet, ada)
    graph = StateGraph(MessagesState)
    graph.add_node("tools", ToolNode([], awrap_tool_call=middleware.awrap_tool_call))
    graph.add_edge(START, "tools")
    asked = AIMessage("", tool_calls=[ToolCall(name="owls__echo", args={"text": "hoo"}, id="c1")])

    state = await graph.compile().ainvoke({"messages": [asked]})

    assert [each.content for each in shown(state)] == ['{"text":"hoo"}']
    assert "owls__echo" in {each["function"]["name"] for each in await middleware.offers(ada)}


async def test_a_run_ends_where_its_profile_says_so(fleet: ToolFleet, spent: Caller, owls: ModuleServer) -> None:
    """Its second call is one too many: LangChain's own error ends it. A run without an id is told that it needs one."""
    for _ in range(2):
        model = script(("owls__echo", {"n": 1}, "c1"), ("owls__echo", {"n": 2}, "c2"))
        with pytest.raises(ToolCallLimitExceededError, match="1 call of this kind in a run"):
            await agent(model, FleetMiddleware(fleet, spent)).ainvoke(ASK, {"run_id": uuid4()})
    assert len(owls.calls("echo")) == 2

    state = await agent(script(("owls__echo", {"n": 1}, "c1")), FleetMiddleware(fleet, spent)).ainvoke(ASK)
    assert "has no 'run_id' to count by" in str(shown(state)[0].content)
