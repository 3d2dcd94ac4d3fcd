"""Keeps a run that waits for a job as JSON, and goes on with it in any process."""

from typing import Any

from agents import Model, RunContextWrapper, Runner, RunState

from toolfleet import Caller, Poll, ToolFleet
from toolfleet.adapters.openai_agents import FleetAgent, FleetTools

CALLER = Caller(user_id="ada", permission="user")
BUILD = Poll(tool_name="builds.state", arguments={"id": {"$from": "task.id"}}, interval_seconds=5)


def make_agent(fleet: ToolFleet, model: Model | str) -> tuple[FleetAgent[dict[str, Any]], FleetTools]:
    jobs = {"builds.start": BUILD}
    tools = FleetTools(fleet, CALLER, run_id=lambda run: run.context["turn"], jobs=jobs, defer_after=20)
    return FleetAgent[dict[str, Any]](name="keeper", model=model, fleet_tools=tools), tools


async def begin(fleet: ToolFleet, model: Model | str, question: str, turn: str) -> str | dict[str, Any]:
    agent, _ = make_agent(fleet, model)
    ran = await Runner.run(agent, question, context={"turn": turn})
    return ran.to_state().to_json() if ran.interruptions else str(ran.final_output)


async def go_on(fleet: ToolFleet, model: Model | str, kept: dict[str, Any], turn: str) -> str | dict[str, Any]:
    agent, tools = make_agent(fleet, model)
    run = RunContextWrapper({"turn": turn})
    state = await RunState.from_json(agent, kept, context_override=run)
    for item in state.get_interruptions():
        if await tools.is_over(item, run, wait=60):
            state.approve(item)
    ran = await Runner.run(agent, state)
    return ran.to_state().to_json() if ran.interruptions else str(ran.final_output)
