"""Interrupts a graph at a job, and resumes it from its checkpoint in any process."""

from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.types import Command

from toolfleet import Caller, Poll, ToolFleet
from toolfleet.adapters.langchain import FleetMiddleware

CALLER = Caller(user_id="ada", permission="user")
BUILD = Poll(tool_name="builds.state", arguments={"id": {"$from": "task.id"}}, interval_seconds=5)


async def ask(
    fleet: ToolFleet, model: BaseChatModel | str, saver: BaseCheckpointSaver[Any], question: str | None
) -> str:
    """Without a question the graph goes on where it was interrupted. An empty answer: it still waits."""
    middleware = FleetMiddleware(fleet, CALLER, jobs={"builds.start": BUILD}, defer_after=20)
    agent: Any = create_agent(model, middleware=[middleware], checkpointer=saver)
    asked: Any = Command(resume=True) if question is None else {"messages": [{"role": "user", "content": question}]}
    state = await agent.ainvoke(asked, {"configurable": {"thread_id": "conversation-1"}}, durability="sync")
    return "" if "__interrupt__" in state else str(state["messages"][-1].text)
