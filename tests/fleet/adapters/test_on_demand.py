"""Models that search for their tools, through each adapter: the real packages, and models that follow a script."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from agents import FunctionTool, Runner, ToolSearchTool, set_tracing_disabled
from agents.models.openai_responses import Converter
from agents.testing import ScriptedModel, assistant_message, function_call
from langchain.agents import create_agent
from langchain.agents.middleware import ProviderToolSearchMiddleware
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from mcp import Client
from mcp_types import CallToolResult, TextContent
from openai.types.responses import ToolParam
from pydantic import TypeAdapter
from pydantic_ai import Agent, ToolCallPart, ToolReturnPart
from pydantic_ai.capabilities import ToolSearch

from support.frameworks.chat_script import ChatScript, script
from support.frameworks.pydantic_script import PydanticScript
from support.module_server import ModuleServer
from toolfleet import Caller, ToolDefinition, ToolFleet
from toolfleet.adapters.claude import fleet_server
from toolfleet.adapters.langchain import FleetMiddleware
from toolfleet.adapters.openai_agents import FleetAgent, FleetTools
from toolfleet.adapters.pydantic_ai import FleetToolset
from toolfleet_tasks.adapters import calling

OWN = ["search_tools", "call_tool"]
SEARCH = {"query": "nap once echo admin only", "limit": 20}
CALL = {"name": "owls__echo", "arguments": {"text": "hoo"}}
MISTAKE = {"name": "owls__ecko", "arguments": {}}
ASKED: list[tuple[str, dict[str, Any]]] = [("search_tools", SEARCH), ("call_tool", CALL), ("call_tool", MISTAKE)]
ASK: Any = {"messages": [("user", "Ask the owl.")]}


def is_nap(tool: ToolDefinition) -> bool:
    return tool.name == "owls.nap"


def names_in(answer: str) -> list[str]:
    """The tools that a search has found."""
    return [tool["name"] for tool in json.loads(answer)["tools"]]


def check_answers(owls: ModuleServer, *answers: str) -> None:
    """Check the answers to a search, a call and a mistake, alike in every adapter: what the caller may not use is not found, and the call is one of the tool itself."""
    found, result, mistake = answers
    assert names_in(found).index("owls__nap_once") < names_in(found).index("owls__brief_nap")
    assert "owls__echo" in names_in(found)
    assert "owls__admin_only" not in names_in(found)
    assert json.loads(result) == {"text": "hoo"}
    assert "No tool owls__ecko; did you mean owls__echo" in mistake
    assert [call["arguments"] for call in owls.calls("echo")] == [{"text": "hoo"}]


async def test_pydantic_ai_shows_what_the_fleets_search_has_found(
    fleet: ToolFleet, ada: Caller, owls: ModuleServer
) -> None:
    """The framework's own way: its capability asks the fleet, and what is found is called by its name."""
    search = ToolCallPart("search_tools", {"queries": ["echo", "admin only"]}, "c1")
    model = PydanticScript([search], [ToolCallPart("owls__echo", {"text": "hoo"}, "c2")])
    toolset = FleetToolset[object](fleet, ada, load="native", always=is_nap)
    agent = Agent(
        model.model(), deps_type=object, toolsets=[toolset], capabilities=[ToolSearch(strategy=toolset.search)]
    )

    ran = await agent.run("Ask the owl.", deps=None)

    assert sorted(model.seen[0]) == ["owls__nap", "search_tools"]
    assert "owls__echo" in model.seen[1]
    assert "owls__admin_only" not in model.seen[1]
    returned = [part.content for each in ran.all_messages() for part in each.parts if isinstance(part, ToolReturnPart)]
    assert returned[-1] == {"text": "hoo"}
    assert len(owls.calls("echo")) == 1


async def test_pydantic_ai_calls_what_a_search_has_found(fleet: ToolFleet, ada: Caller, owls: ModuleServer) -> None:
    model = PydanticScript(*[[ToolCallPart(name, args, f"c{n}")] for n, (name, args) in enumerate(ASKED)])
    agent = Agent(model.model(), toolsets=[FleetToolset(fleet, ada, load="search", always=is_nap)])

    ran = await agent.run("Ask the owl.")

    assert model.seen[0] == [*OWN, "owls__nap"]
    found, result, mistake = [
        part.content for each in ran.all_messages() for part in each.parts if isinstance(part, ToolReturnPart)
    ]
    check_answers(owls, str(found), json.dumps(result), str(mistake))


class Claude(ChatScript):
    """One that LangChain takes for a provider's; `bound` has what it was given, step by step."""

    bound: list[Any]

    def _get_ls_params(self, stop: list[str] | None = None, **_: Any) -> Any:
        return {"ls_provider": "anthropic"}

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        self.bound.append(tools)
        return self


async def test_langchain_defers_tools_for_its_own_search(fleet: ToolFleet, ada: Caller, owls: ModuleServer) -> None:
    """Its middleware adds the provider's search; a tool that this has found is called by its name."""
    asked = script(("owls__echo", {"text": "hoo"}, "c1"))
    model = Claude(messages=asked.messages, offered=[], bound=[])
    ours = FleetMiddleware(fleet, ada, load="native", always=is_nap)

    await create_agent(model, [], middleware=[ours, ProviderToolSearchMiddleware()]).ainvoke(ASK)

    deferred = {tool.name: tool.extras for tool in model.bound[0] if isinstance(tool, BaseTool)}
    assert deferred["owls__echo"] == {"defer_loading": True}
    assert "owls__admin_only" not in deferred
    assert "owls__nap" not in deferred
    assert model.bound[0][-1]["type"] == "tool_search_tool_bm25_20251119"
    assert [call["arguments"] for call in owls.calls("echo")] == [{"text": "hoo"}]


async def test_langchain_calls_what_a_search_has_found(fleet: ToolFleet, ada: Caller, owls: ModuleServer) -> None:
    model = script(*((name, args, f"c{n}") for n, (name, args) in enumerate(ASKED)))
    ours = FleetMiddleware(fleet, ada, load="search", always=is_nap)

    state = await create_agent(model, [], middleware=[ours]).ainvoke(ASK)

    assert sorted(model.offered[0]) == sorted([*OWN, "owls__nap"])
    check_answers(owls, *(str(each.content) for each in state["messages"] if isinstance(each, ToolMessage)))


@pytest.fixture
def _untraced() -> Iterator[None]:
    """Traces would be sent to OpenAI."""
    set_tracing_disabled(disabled=True)
    yield
    set_tracing_disabled(disabled=False)


def scripted(*steps: tuple[str, dict[str, Any]]) -> ScriptedModel:
    made = [[function_call(name, json.dumps(args), call_id=f"c{n}")] for n, (name, args) in enumerate(steps)]
    return ScriptedModel([*made, [assistant_message("done")]])


@pytest.mark.usefixtures("_untraced")
async def test_the_openai_sdk_defers_tools_in_a_namespace_for_each_module(fleet: ToolFleet, ada: Caller) -> None:
    """What the SDK then sends is what OpenAI's own package takes."""
    model = scripted()
    await Runner.run(
        FleetAgent(name="a", model=model, fleet_tools=FleetTools(fleet, ada, load="native", always=is_nap)), "Hi."
    )

    tools = model.calls[0].tools
    assert any(isinstance(tool, ToolSearchTool) for tool in tools)
    sent = Converter.convert_tools(tools, []).tools
    TypeAdapter(list[ToolParam]).validate_python(sent)
    (owls,) = [each for each in sent if each["type"] == "namespace" and each["name"] == "owls"]
    functions = {each["name"]: each.get("defer_loading") for each in owls["tools"]}
    assert functions["owls__echo"] is True
    assert "owls__admin_only" not in functions
    assert "owls__nap" in [each.get("name") for each in sent]


@pytest.mark.usefixtures("_untraced")
async def test_the_openai_sdk_calls_what_a_search_has_found(fleet: ToolFleet, ada: Caller, owls: ModuleServer) -> None:
    model = scripted(*ASKED)
    agent = FleetAgent[None](name="a", model=model, fleet_tools=FleetTools(fleet, ada, load="search", always=is_nap))

    ran: Any = await Runner.run(agent, "Ask the owl.")

    assert [tool.name for tool in model.calls[0].tools if isinstance(tool, FunctionTool)] == [*OWN, "owls__nap"]
    check_answers(owls, *(item.output for item in ran.new_items if item.type == "tool_call_output_item"))


async def test_claude_code_is_told_which_tools_to_defer(fleet: ToolFleet, ada: Caller) -> None:
    """By the hint that it reads; without `load` it decides by itself."""
    async with Client(fleet_server(fleet, ada, load="native", always=is_nap)["instance"]) as client:
        listed = {tool.name: tool.meta for tool in (await client.list_tools()).tools}
    assert listed["owls__nap"] == {"anthropic/alwaysLoad": True}
    assert listed["owls__echo"] == {"anthropic/alwaysLoad": False}
    assert "owls__admin_only" not in listed


async def test_claude_calls_what_a_search_has_found(fleet: ToolFleet, ada: Caller, owls: ModuleServer) -> None:
    async with Client(fleet_server(fleet, ada, load="search", always=is_nap)["instance"]) as client:
        listed = {tool.name: tool.meta for tool in (await client.list_tools()).tools}
        answers = [text(await client.call_tool(name, args)) for name, args in ASKED]

    assert list(listed) == [*OWN, "owls__nap"]
    assert all(meta == {"anthropic/alwaysLoad": True} for meta in listed.values())
    check_answers(owls, *answers)


def text(result: CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


@pytest.mark.parametrize("most", ["MOST_BYTES", "MOST_TOOLS"])
async def test_what_is_too_much_for_a_request_is_searched(
    fleet: ToolFleet, ada: Caller, monkeypatch: pytest.MonkeyPatch, most: str
) -> None:
    """The frameworks would send all definitions with each request."""
    monkeypatch.setattr(calling, most, 2)
    model = PydanticScript()
    await Agent(model.model(), toolsets=[FleetToolset(fleet, ada, load="native")]).run("Hi.")
    assert model.seen[0] == OWN


async def test_a_search_finds_only_what_is_offered(fleet: ToolFleet, ada: Caller, owls: ModuleServer) -> None:
    """What the adapter's `where` leaves out is neither found nor called."""
    model = script(("search_tools", SEARCH, "c1"), ("call_tool", CALL, "c2"))
    ours = FleetMiddleware(fleet, ada, load="search", where=lambda tool: tool.name != "owls.echo")

    state = await create_agent(model, [], middleware=[ours]).ainvoke(ASK)

    found, result = (str(each.content) for each in state["messages"] if isinstance(each, ToolMessage))
    assert "owls__echo" not in found
    assert "No tool owls__echo" in result
    assert owls.calls("echo") == []
