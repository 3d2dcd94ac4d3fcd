"""Keeps a run that waits for a job as text, and goes on with it in any process."""

from pydantic import TypeAdapter
from pydantic_ai import Agent, DeferredToolRequests, ModelMessagesTypeAdapter
from pydantic_ai.models import Model
from pydantic_ai.run import AgentRunResult

from toolfleet import Caller, Poll, ToolFleet
from toolfleet.adapters.pydantic_ai import FleetToolset

CALLER = Caller(user_id="ada", permission="user")
BUILD = Poll(tool_name="builds.state", arguments={"id": {"$from": "task.id"}}, interval_seconds=5)
REQUESTS = TypeAdapter(DeferredToolRequests)
Output = str | DeferredToolRequests


def make_agent(fleet: ToolFleet, model: Model | str) -> tuple[Agent[object, Output], FleetToolset[object]]:
    toolset = FleetToolset[object](fleet, CALLER, jobs={"builds.start": BUILD}, defer_after=20)
    return Agent(model, toolsets=[toolset], output_type=[str, DeferredToolRequests], deps_type=object), toolset


async def begin(fleet: ToolFleet, model: Model | str, question: str) -> dict[str, str]:
    agent, _ = make_agent(fleet, model)
    ran = await agent.run(question)
    return kept(ran)


async def go_on(fleet: ToolFleet, model: Model | str, run: dict[str, str]) -> dict[str, str]:
    agent, toolset = make_agent(fleet, model)
    requests = REQUESTS.validate_json(run["requests"])
    results = await toolset.deferred_results(requests, CALLER, wait=60)
    messages = ModelMessagesTypeAdapter.validate_json(run["messages"])
    return kept(await agent.run(message_history=messages, deferred_tool_results=results))


def kept(ran: AgentRunResult[Output]) -> dict[str, str]:
    """A row of your database: what to say, or what to go on with."""
    if isinstance(ran.output, str):
        return {"answer": ran.output}
    return {"messages": ran.all_messages_json().decode(), "requests": REQUESTS.dump_json(ran.output).decode()}
