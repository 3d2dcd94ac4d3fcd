"""Calls tools through the adapters of agent frameworks, as agents do whose step begins anew: with the ids that its run and call had."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from agents import Runner, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolCall
from mcp import Client
from pydantic_ai import Agent, ToolCallPart
from pydantic_core import from_json, to_json

from support.frameworks.chat_script import ChatScript
from support.frameworks.pydantic_script import PydanticScript
from toolfleet.adapters.claude import fleet_server
from toolfleet.adapters.langchain import FleetMiddleware
from toolfleet.adapters.openai_agents import FleetAgent, FleetTools
from toolfleet.adapters.pydantic_ai import FleetToolset
from toolfleet_registry.contracts import Caller, ToolDefinition, ToolResult
from toolfleet_registry.contracts import ToolCall as FleetCall
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.settings import Settings
from toolfleet_tasks.adapters.calling import AdapterCalls, DeferredStep, FrameworkCall, StillRunning
from toolfleet_tasks.client.fleet import ToolFleet

Json = dict[str, Any]
Step = Callable[["HearingFleet", str, str, Json], Awaitable[object]]
"""One step of an agent: calls a tool, by its name there, under the ids that follow from a `ref`."""

AGENTS: Final = 2

_ASKER = Caller(user_id="ada", permission="user", allowed_modules="*")
_TIMEOUT_SECONDS = 40.0
_PAUSE_SECONDS = 0.5
_PATIENCE_SECONDS = 0.05  # of a run, with a call
_AWAY = "fleet_unavailable"


class HearingFleet(ToolFleet):
    """Keeps the results that it has brought, by the `ref` in their calls' arguments: frameworks show them in forms of their own."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings=settings)
        self.heard: defaultdict[str, list[ToolResult]] = defaultdict(list)

    async def call(self, call: FleetCall, caller: Caller, **options: Any) -> ToolResult:
        """As every fleet."""
        result = await super().call(call, caller, **options)
        self.heard[call.arguments["ref"]].append(result)
        return result


class Agents:
    """Agents in so many processes' stead: each has a fleet of its own, and the others' calls are known to it by their keys only."""

    def __init__(self, fleets: Sequence[HearingFleet]) -> None:
        self._fleets = fleets

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, settings: Settings) -> "AsyncGenerator[Agents]":
        """Open fleets that know the tools already."""
        set_tracing_disabled(disabled=True)  # traces would be sent to somebody
        async with contextlib.AsyncExitStack() as stack:
            fleets = [await stack.enter_async_context(HearingFleet(settings)) for _ in range(AGENTS)]
            for fleet in fleets:
                await fleet.tools(_ASKER)
            yield cls(fleets)

    async def told(self, number: int, framework: str, ref: str, tool: str, arguments: Json) -> str:
        """The result that one of the agents is told, which begins its step anew while the fleet is away."""
        fleet = self._fleets[number]
        while True:
            await STEPS[framework](fleet, ref, tool.replace(".", "__"), arguments)
            (result,) = fleet.heard.pop(ref)
            if result.error_code != _AWAY:
                return result.model_copy(update={"tool_name": tool}).model_dump_json()
            await asyncio.sleep(_PAUSE_SECONDS)


async def _pydantic_ai(fleet: HearingFleet, ref: str, name: str, arguments: Json) -> None:
    model = PydanticScript([ToolCallPart(name, arguments, ref)]).model()
    toolset = FleetToolset[object](fleet, _ASKER, timeout=_TIMEOUT_SECONDS)
    await Agent(model, toolsets=[toolset]).run("Do it.", run_id=ref)


async def _langchain(fleet: HearingFleet, ref: str, name: str, arguments: Json) -> None:
    asked = AIMessage("", id=ref, tool_calls=[ToolCall(name=name, args=arguments, id=ref)])
    model = ChatScript(messages=iter([asked, AIMessage("done")]), offered=[])
    agent: Any = create_agent(model, middleware=[FleetMiddleware(fleet, _ASKER, timeout=_TIMEOUT_SECONDS)])
    await agent.ainvoke({"messages": [("user", "Do it.")]}, {"configurable": {"thread_id": ref}})


async def _openai_agents(fleet: HearingFleet, ref: str, name: str, arguments: Json) -> None:
    call = function_call(name, to_json(arguments).decode(), call_id=ref)
    tools = FleetTools(fleet, _ASKER, run_id=lambda _: ref, timeout=_TIMEOUT_SECONDS)
    model = ScriptedModel([[call], [assistant_message("done")]])
    agent: FleetAgent[Any] = FleetAgent(name="agent", model=model, fleet_tools=tools)
    await Runner.run(agent, "Do it.")


async def _claude(fleet: HearingFleet, ref: str, name: str, arguments: Json) -> None:
    server = fleet_server(fleet, _ASKER, timeout=_TIMEOUT_SECONDS)
    meta: Any = {"claudecode/toolUseId": ref}
    async with Client(server["instance"]) as client:
        await client.call_tool(name, arguments, meta=meta)


async def _deferred(fleet: HearingFleet, ref: str, name: str, arguments: Json) -> None:
    await _go_on(fleet, ref, name, arguments, {"defer_after": _PATIENCE_SECONDS})


async def _as_job(fleet: HearingFleet, ref: str, name: str, arguments: Json) -> None:
    await _go_on(fleet, ref, name, arguments, {"jobs": {name.replace("__", "."): None}})


async def _go_on(fleet: HearingFleet, ref: str, name: str, arguments: Json, options: Json) -> None:
    """As all frameworks do whose run has ended meanwhile: with the text that they have kept, of what is deferred."""
    tool = ToolDefinition(name=name.replace("__", "."), effect="once")
    asked = FrameworkCall(tool, name, arguments, _ASKER, ref, ref)
    calls = AdapterCalls(fleet, timeout=_TIMEOUT_SECONDS, **options)
    try:
        result = await calls.call(asked)
    except StillRunning as running:
        step = DeferredStep.of(from_json(to_json(running.step.to_json())))
        assert step is not None
        result = await _end_of(calls, step, asked)
    fleet.heard[ref].append(result)


async def _end_of(calls: AdapterCalls, step: DeferredStep, asked: FrameworkCall) -> ToolResult:
    while True:
        try:
            return await calls.resumed(step, asked)
        except FleetUnavailable:
            await asyncio.sleep(_PAUSE_SECONDS)


STEPS: Final[Mapping[str, Step]] = {
    "by Pydantic AI": _pydantic_ai,
    "by LangChain": _langchain,
    "by the OpenAI Agents SDK": _openai_agents,
    "by Claude's agent SDK": _claude,
    "by an adapter, deferred": _deferred,
    "by an adapter, as a job": _as_job,
}
"""One step of each framework's agents; `clients.WAYS` has the same names."""
