"""Runs of each framework's agents that are deferred: what the framework keeps of one is text, and any process goes on with it."""

import json
import pickle
from collections.abc import Mapping
from typing import Any, Protocol

from agents import RunContextWrapper, Runner, RunState
from agents.testing import ScriptedModel, assistant_message, function_call
from langchain.agents import create_agent
from langchain_core.messages import ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from mcp import Client
from mcp_types import CallToolResult, TextContent
from pydantic import TypeAdapter
from pydantic_ai import Agent, ModelMessagesTypeAdapter, ToolCallPart, ToolReturnPart
from pydantic_ai.tools import DeferredToolRequests

from support.frameworks.chat_script import script
from support.frameworks.pydantic_script import PydanticScript
from toolfleet import Caller, ToolFleet
from toolfleet.adapters.claude import fleet_server
from toolfleet.adapters.langchain import FleetMiddleware
from toolfleet.adapters.openai_agents import FleetAgent, FleetTools
from toolfleet.adapters.pydantic_ai import FleetToolset

Kept = Any
"""What a process keeps of a run, as JSON has it, or bytes."""
LONG = 30.0


class DeferredRun(Protocol):
    """A run whose model makes one call, `name` with `arguments`, under the id "c1"."""

    caller: Caller

    def __init__(
        self, caller: Caller, name: str, arguments: Mapping[str, Any], run_id: str, **options: Any
    ) -> None: ...

    async def begin(self, fleet: ToolFleet) -> tuple[dict[str, Any], Kept]:
        """Run it until it is deferred: what the fleet says of the call, and what is kept."""
        ...

    async def go_on(self, fleet: ToolFleet, kept: Kept, *, wait: float = LONG) -> tuple[str | None, Kept]:
        """Go on with it for at most so long: what its model was shown of the call, or `None` and what is kept now."""
        ...


class PydanticRun:
    prefix = ""
    """What the application puts before the names of the toolset's tools."""

    def __init__(self, caller: Caller, name: str, arguments: Mapping[str, Any], run_id: str, **options: Any) -> None:
        self.caller, self.call, self.run_id, self.options = (
            caller,
            ToolCallPart(name, {**arguments}, "c1"),
            run_id,
            options,
        )

    async def begin(self, fleet: ToolFleet) -> tuple[dict[str, Any], Kept]:
        agent, _ = self._agent(fleet, [self.call])
        ran = await agent.run("Go.", run_id=self.run_id)
        assert isinstance(ran.output, DeferredToolRequests)
        return ran.output.metadata["c1"], self._kept(ran)

    async def go_on(self, fleet: ToolFleet, kept: Kept, *, wait: float = LONG) -> tuple[str | None, Kept]:
        agent, toolset = self._agent(fleet)
        messages = ModelMessagesTypeAdapter.validate_json(kept["messages"])
        requests = TypeAdapter(DeferredToolRequests).validate_json(kept["requests"])
        results = await toolset.deferred_results(requests, self.caller, wait=wait)
        ran = await agent.run(message_history=messages, deferred_tool_results=results)
        if isinstance(ran.output, DeferredToolRequests):
            return None, self._kept(ran)
        parts = [part for message in ran.all_messages() for part in message.parts]
        returned = [part for part in parts if isinstance(part, ToolReturnPart)]
        (shown,) = [str(part.content) for part in returned if part.tool_call_id == "c1"]
        return shown, kept

    def _agent(self, fleet: ToolFleet, *steps: Any) -> tuple[Agent[object, Any], FleetToolset[object]]:
        toolset = FleetToolset[object](fleet, self.caller, **self.options)
        model = PydanticScript(*steps).model()
        offered = toolset.prefixed(self.prefix) if self.prefix else toolset
        return Agent(model, toolsets=[offered], output_type=[str, DeferredToolRequests]), toolset

    def _kept(self, ran: Any) -> Kept:
        requests = TypeAdapter(DeferredToolRequests).dump_json(ran.output).decode()
        return {"messages": ran.all_messages_json().decode(), "requests": requests}


class GraphRun:
    def __init__(self, caller: Caller, name: str, arguments: Mapping[str, Any], run_id: str, **options: Any) -> None:
        self.caller, self.call, self.options = caller, (name, {**arguments}, "c1"), options
        self.thread: Any = {"configurable": {"thread_id": run_id}}

    async def begin(self, fleet: ToolFleet) -> tuple[dict[str, Any], Kept]:
        saver = InMemorySaver()
        graph = self.graph(fleet, saver, self.call)
        state = await graph.ainvoke({"messages": [("user", "Go.")]}, self.thread)
        (interrupted,) = state["__interrupt__"]
        return interrupted.value, _saved(saver)

    async def go_on(self, fleet: ToolFleet, kept: Kept, *, wait: float = LONG) -> tuple[str | None, Kept]:
        saver = _restored(kept)
        options = {**self.options, "defer_after": wait}
        state = await self.graph(fleet, saver, **options).ainvoke(Command(resume=True), self.thread)
        if "__interrupt__" in state:
            return None, _saved(saver)
        (shown,) = [str(each.content) for each in state["messages"] if isinstance(each, ToolMessage)]
        return shown, kept

    def graph(self, fleet: ToolFleet, saver: InMemorySaver, *calls: Any, **options: Any) -> Any:
        middleware = FleetMiddleware(fleet, self.caller, **(options or self.options))
        return create_agent(script(*calls), middleware=[middleware], checkpointer=saver)


class OpenAIRun:
    def __init__(self, caller: Caller, name: str, arguments: Mapping[str, Any], run_id: str, **options: Any) -> None:
        self.caller, self.run_id, self.options = caller, run_id, options
        self.call = function_call(name, json.dumps(arguments), call_id="c1")

    async def begin(self, fleet: ToolFleet) -> tuple[dict[str, Any], Kept]:
        agent, tools = self._agent(fleet, [self.call])
        ran = await Runner.run(agent, "Go.", context=self.run_id)
        (item,) = ran.interruptions
        known = await tools.deferred(item, ran.context_wrapper)
        assert known is not None
        return known, self._kept(ran)

    async def go_on(self, fleet: ToolFleet, kept: Kept, *, wait: float = LONG) -> tuple[str | None, Kept]:
        agent, tools = self._agent(fleet)
        wrapper = RunContextWrapper(self.run_id)
        state = await RunState.from_json(agent, json.loads(kept), context_override=wrapper)
        (item,) = state.get_interruptions()
        if await tools.is_over(item, wrapper, wait=wait):
            state.approve(item)
        ran: Any = await Runner.run(agent, state)
        if ran.interruptions:
            return None, self._kept(ran)
        (shown,) = [each.output for each in ran.new_items if each.type == "tool_call_output_item"]
        return shown, kept

    def _agent(self, fleet: ToolFleet, *steps: Any) -> tuple[FleetAgent[str], FleetTools]:
        tools = FleetTools(fleet, self.caller, run_id=lambda run: run.context, **self.options)
        model = ScriptedModel([*steps, [assistant_message("done")]])
        return FleetAgent[str](name="agent", model=model, fleet_tools=tools), tools

    def _kept(self, ran: Any) -> Kept:
        return json.dumps(ran.to_state().to_json(context_serializer=lambda context: {"run": context}))


class ClaudeRun:
    """Its session keeps the text that names the call, with which the model asks for it."""

    def __init__(self, caller: Caller, name: str, arguments: Mapping[str, Any], run_id: str, **options: Any) -> None:
        self.caller, self.name, self.arguments, self.options = caller, name, {**arguments}, options
        self.meta: Any = {"claudecode/toolUseId": f"toolu_{run_id}"}

    async def begin(self, fleet: ToolFleet) -> tuple[dict[str, Any], Kept]:
        async with Client(fleet_server(fleet, self.caller, **self.options)["instance"]) as client:
            result = await client.call_tool(self.name, self.arguments, meta=self.meta)
        known: dict[str, Any] = dict(result.meta or {})
        assert known.pop("toolfleet/running")
        assert known["toolfleet_call_id"] in _text(result)
        return known, json.dumps({"call_id": known["toolfleet_call_id"]})

    async def go_on(self, fleet: ToolFleet, kept: Kept, *, wait: float = LONG) -> tuple[str | None, Kept]:
        options: dict[str, Any] = {**self.options, "defer_after": max(wait, 0.01)}
        async with Client(fleet_server(fleet, self.caller, **options)["instance"]) as client:
            result = await client.call_tool("call_wait", json.loads(kept) | {"seconds": wait})
        return None if (result.meta or {}).get("toolfleet/running") else _text(result), kept


RUNS: dict[str, type[DeferredRun]] = {
    "pydantic-ai": PydanticRun,
    "langgraph": GraphRun,
    "openai-agents": OpenAIRun,
    "claude": ClaudeRun,
}


def _text(result: CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


def _saved(saver: InMemorySaver) -> bytes:
    """What a database would have of it."""
    storage = {thread: {ns: dict(each) for ns, each in spaces.items()} for thread, spaces in saver.storage.items()}
    return pickle.dumps((storage, dict(saver.writes), dict(saver.blobs)))


def _restored(kept: bytes) -> InMemorySaver:
    saver = InMemorySaver()
    storage, writes, blobs = pickle.loads(kept)  # noqa: S301 - this test's own
    for thread, spaces in storage.items():
        for ns, each in spaces.items():
            saver.storage[thread][ns].update(each)
    saver.writes.update(writes)
    saver.blobs.update(blobs)
    return saver
