"""Interrupts a run at a call that people have to approve, and goes on with their decision."""

from collections.abc import Awaitable, Callable
from typing import Any

from agents import Model, Runner

from toolfleet import Approver, Caller, ToolFleet
from toolfleet.adapters.openai_agents import FleetAgent, FleetTools

Decide = Callable[[dict[str, Any]], Awaitable[tuple[dict[str, Any], Approver]]]


async def ask(fleet: ToolFleet, model: Model | str, question: str, decide: Decide) -> str:
    caller = Caller(user_id="ada", permission="user", agent="production")
    tools = FleetTools(fleet, caller, run_id=lambda run: run.context, defer_approvals=True)
    agent = FleetAgent[str](name="keeper", model=model, fleet_tools=tools)
    ran = await Runner.run(agent, question, context="turn-17")
    while ran.interruptions:
        state = ran.to_state()
        for item in ran.interruptions:
            asked = await tools.question(item, ran.context_wrapper)
            if asked is not None:
                decision, approver = await decide(asked)
                await tools.decide(item, ran.context_wrapper, decision, approver)
            state.approve(item)
        ran = await Runner.run(agent, state)
    return str(ran.final_output)
