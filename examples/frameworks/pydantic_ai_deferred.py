"""Ends a run at a long call, and goes on with its result."""

from pydantic_ai import Agent, DeferredToolRequests, ModelMessage
from pydantic_ai.models import Model

from toolfleet import Caller, ToolFleet
from toolfleet.adapters.pydantic_ai import FleetToolset


async def ask(fleet: ToolFleet, model: Model | str, question: str) -> str:
    caller = Caller(user_id="ada", permission="user")
    toolset = FleetToolset[object](fleet, caller, defer_after=20)
    agent = Agent(model, toolsets=[toolset], output_type=[str, DeferredToolRequests])
    ran = await agent.run(question)
    while isinstance(ran.output, DeferredToolRequests):
        messages: list[ModelMessage] = ran.all_messages()
        results = await toolset.deferred_results(ran.output, caller)
        ran = await agent.run(message_history=messages, deferred_tool_results=results)
    return ran.output
