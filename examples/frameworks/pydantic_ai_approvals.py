"""Ends a run at a call that people have to approve, and goes on with their decision."""

from collections.abc import Awaitable, Callable

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ModelMessage
from pydantic_ai.models import Model

from toolfleet import Approver, Caller, ToolFleet
from toolfleet.adapters.pydantic_ai import FleetToolset

Decide = Callable[[DeferredToolRequests], Awaitable[tuple[DeferredToolResults, Approver]]]


async def ask(fleet: ToolFleet, model: Model | str, question: str, decide: Decide) -> str:
    caller = Caller(user_id="ada", permission="user", agent="production")
    toolset = FleetToolset[object](fleet, caller, defer_approvals=True)
    agent = Agent(model, toolsets=[toolset], output_type=[str, DeferredToolRequests])
    ran = await agent.run(question)
    while isinstance(ran.output, DeferredToolRequests):
        messages: list[ModelMessage] = ran.all_messages()
        decided, approver = await decide(ran.output)
        results = await toolset.deferred_results(ran.output, caller, decided, approver)
        ran = await agent.run(message_history=messages, deferred_tool_results=results)
    return ran.output
