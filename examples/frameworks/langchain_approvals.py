"""Interrupts a graph at a call that people have to approve, and resumes it with their decision."""

from collections.abc import Awaitable, Callable
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from toolfleet import Approver, Caller, ToolFleet
from toolfleet.adapters.langchain import FleetMiddleware

Decide = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


async def ask(fleet: ToolFleet, model: BaseChatModel | str, question: str, decide: Decide) -> str:
    caller = Caller(user_id="ada", permission="user", agent="production")
    middleware = FleetMiddleware(
        fleet, caller, defer_approvals=True, approver=lambda said: Approver("web", said["by"], "admin")
    )
    agent: Any = create_agent(model, middleware=[middleware], checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": "conversation-1"}}
    state = await agent.ainvoke({"messages": [{"role": "user", "content": question}]}, thread)
    while "__interrupt__" in state:
        asked = state["__interrupt__"][0].value["toolfleet_approval"]
        said = await decide(asked)  # the reason, other arguments and, from your own session, who it is
        decision = {"decision": "approve", "id": asked["id"], "digest": asked["digest"], **said}
        state = await agent.ainvoke(Command(resume=decision), thread)
    return str(state["messages"][-1].text)
