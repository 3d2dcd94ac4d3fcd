"""Models that search for their tools, through each adapter: the real packages, and models that follow a script."""

import functools
import json
from collections.abc import Awaitable, Callable
from typing import Any, Literal
from uuid import uuid4

import pytest
from agents import FunctionTool, Runner, ToolSearchTool
from agents.models.openai_responses import Converter
from agents.testing import ScriptedModel, assistant_message, function_call
from langchain.agents import create_agent
from langchain.agents.middleware import ProviderToolSearchMiddleware
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from mcp import Client
from mcp_types import CallToolResult, TextContent
from openai.types.responses import ToolParam
from pydantic import TypeAdapter
from pydantic_ai import (
    Agent,
    DeferredToolRequests,
    DeferredToolResults,
    FunctionToolset,
    ToolApproved,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.capabilities import ToolSearch

from fleet.adapters.conftest import Redefine
from support.frameworks.chat_script import ChatScript, script
from support.frameworks.claude_use import use_of
from support.frameworks.deferred_runs import RUNS, DeferredRun, GraphRun, OpenAIRun, PydanticRun
from support.frameworks.pydantic_script import PydanticScript
from support.local_tools.talkers import Talker
from support.module_server import ModuleServer
from toolfleet import Approver, Caller, ToolDefinition, ToolFleet
from toolfleet.adapters.claude import FleetSession, fleet_server
from toolfleet.adapters.langchain import FleetMiddleware
from toolfleet.adapters.openai_agents import FleetAgent, FleetTools
from toolfleet.adapters.pydantic_ai import FleetToolset
from toolfleet_tasks.adapters import calling, openai_agents

OWN = ["search_tools", "call_tool"]
MOST_SHOWN = "anthropic/maxResultSizeChars"
SPEAK: dict[str, Any] = {"name": "owls.speak", "former_names": ["owls.talk"]}
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
    """Check the answers to a search, a call and a mistake, alike in every adapter.

    The search's order is kept, a tool that the caller may not use is not found, and the call is one of the tool itself.
    """
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


async def test_pydantic_ai_finds_tools_behind_a_prefix(fleet: ToolFleet, ada: Caller, owls: ModuleServer) -> None:
    model = PydanticScript(
        [ToolCallPart("search_tools", {"queries": ["echo"]}, "c1")],
        [ToolCallPart("f_owls__echo", {"text": "hoo"}, "c2")],
    )
    toolset = FleetToolset[object](fleet, ada, load="native")
    agent = Agent(
        model.model(),
        deps_type=object,
        toolsets=[toolset.prefixed("f")],
        capabilities=[ToolSearch(strategy=toolset.search)],
    )
    await agent.run("Ask the owl.", deps=None)
    assert "f_owls__echo" in model.seen[1]
    assert [call["arguments"] for call in owls.calls("echo")] == [{"text": "hoo"}]


@pytest.mark.parametrize("load", ["all", "search"])
async def test_what_people_edit_where_another_toolset_asks_them_is_what_runs(
    fleet: ToolFleet, ada: Caller, owls: ModuleServer, load: Literal["all", "search"]
) -> None:
    """`approval_required` of the framework asks before the fleet knows of the call."""
    name = "owls__echo"
    arguments: dict[str, Any] = {"text": "hoo"}
    edited: dict[str, Any] = {"text": "hoot"}
    if load == "search":
        arguments, edited = ({"name": name, "arguments": each} for each in (arguments, edited))
        name = "call_tool"
    toolset = FleetToolset[object](fleet, ada, load=load).approval_required()
    model = PydanticScript([ToolCallPart(name, arguments, "c1")]).model()
    agent = Agent(model, toolsets=[toolset], output_type=[str, DeferredToolRequests])
    ran = await agent.run("Ask the owl.")
    results = DeferredToolResults(approvals={"c1": ToolApproved(override_args=edited)})
    assert (await agent.run(message_history=ran.all_messages(), deferred_tool_results=results)).output == "done"
    assert [call["arguments"] for call in owls.calls("echo")] == [{"text": "hoot"}]


async def test_pydantic_ai_calls_what_a_search_has_found(fleet: ToolFleet, ada: Caller, owls: ModuleServer) -> None:
    asked = [("find_tools", SEARCH), *ASKED[1:]]
    model = PydanticScript(*[[ToolCallPart(name, args, f"c{n}")] for n, (name, args) in enumerate(asked)])
    agent = Agent(model.model(), toolsets=[FleetToolset(fleet, ada, load="search", always=is_nap)])

    ran = await agent.run("Ask the owl.")

    assert model.seen[0] == ["find_tools", "call_tool", "owls__nap"]
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


def scripted(*steps: tuple[str, dict[str, Any]]) -> ScriptedModel:
    made = [[function_call(name, json.dumps(args), call_id=f"c{n}")] for n, (name, args) in enumerate(steps)]
    return ScriptedModel([*made, [assistant_message("done")]])


async def test_the_openai_sdk_defers_tools_in_a_namespace_for_each_module(fleet: ToolFleet, ada: Caller) -> None:
    """OpenAI's own package takes the request that the SDK sends."""
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
    server = fleet_server(fleet, ada, load="search", always=is_nap, most_characters=200_000)
    async with Client(server["instance"]) as client:
        listed = {tool.name: tool.meta for tool in (await client.list_tools()).tools}
        answers = [text(await client.call_tool(name, args)) for name, args in ASKED]

    assert list(listed) == [*OWN, "owls__nap"]
    assert all(meta == {"anthropic/alwaysLoad": True, MOST_SHOWN: 200_000} for meta in listed.values())
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
    assert model.seen[0] == ["find_tools", "call_tool"]


async def test_a_search_finds_only_what_is_offered(fleet: ToolFleet, ada: Caller, owls: ModuleServer) -> None:
    """The tools that the adapter's `where` leaves out are neither found nor called, and take no place among those found."""
    model = script(("search_tools", {"query": "nap once echo", "limit": 1}, "c1"), ("call_tool", CALL, "c2"))
    ours = FleetMiddleware(fleet, ada, load="search", where=lambda tool: tool.name == "owls.brief_nap")

    state = await create_agent(model, [], middleware=[ours]).ainvoke(ASK)

    found, result = (str(each.content) for each in state["messages"] if isinstance(each, ToolMessage))
    assert names_in(found) == ["owls__brief_nap"]
    assert "No tool owls__echo" in result
    assert owls.calls("echo") == []


async def test_pydantic_ai_may_search_other_tools_itself(fleet: ToolFleet, ada: Caller) -> None:
    """The framework keeps the name of its own search for itself; of two toolsets one has a prefix."""
    model = PydanticScript()
    others = FunctionToolset[object]()
    others.add_function(lambda: "later", name="later", takes_ctx=False, defer_loading=True)
    ours = [FleetToolset[object](fleet, ada, load="search", id=name) for name in "ab"]
    await Agent(model.model(), toolsets=[ours[0], ours[1].prefixed("b"), others]).run("Hi.")
    assert sorted(model.seen[0]) == ["b_call_tool", "b_find_tools", "call_tool", "find_tools"]


async def test_the_openai_sdk_is_made_no_tools_that_it_does_not_need(
    fleet: ToolFleet, ada: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fleet may have thousands: a run makes those that are always shown, and the one that it calls."""
    made, make = list[str](), openai_agents.function_tool_of

    def noted(tool: ToolDefinition, name: str) -> FunctionTool:
        made.append(name)
        return make(tool, name)

    monkeypatch.setattr(openai_agents, "function_tool_of", noted)
    tools = FleetTools(fleet, ada, load="search", always=is_nap, defer_approvals=True, run_id=lambda _: "r1")

    await Runner.run(FleetAgent[None](name="a", model=scripted(*ASKED), fleet_tools=tools), "Ask the owl.")

    assert made == ["owls__nap", "owls__echo"]


class PrefixedRun(PydanticRun):
    prefix = "f"


class NamespacedRun(OpenAIRun):
    """Its model calls a tool that OpenAI's own search has found, which has the module's namespace."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.call = self.call.model_copy(update={"namespace": "owls"})


each_way_to_say = pytest.mark.parametrize(
    "said", [{"arguments": {"text": "hoo"}}, {}, {"arguments": '{"text": "hoo"}'}], ids=["object", "left out", "text"]
)


@each_way_to_say
@pytest.mark.parametrize("framework", [*RUNS, "prefixed"])
async def test_a_call_through_call_tool_is_deferred_and_resumed(
    fleet: ToolFleet, ada: Caller, talker: Talker, framework: str, said: dict[str, Any]
) -> None:
    made = PrefixedRun if framework == "prefixed" else RUNS[framework]
    name = "f_call_tool" if framework == "prefixed" else "call_tool"
    run = made(ada, name, {"name": "owls__talk", **said}, uuid4().hex, load="search", defer_after=0.1)
    await is_resumed(fleet, run, talker)


async def test_a_call_of_a_namespace_is_deferred_and_resumed(fleet: ToolFleet, ada: Caller, talker: Talker) -> None:
    await is_resumed(fleet, NamespacedRun(ada, "owls__talk", {}, uuid4().hex, load="native", defer_after=0.1), talker)


class FindingRun(PydanticRun):
    """Its model calls a tool that the framework's search has found."""

    async def begin(self, fleet: ToolFleet) -> tuple[dict[str, Any], Any]:
        agent, _ = self._agent(fleet, [ToolCallPart("search_tools", {"queries": ["talk"]}, "c0")], [self.call])
        ran = await agent.run("Go.", run_id=self.run_id)
        return ran.output.metadata["c1"], self._kept(ran)


@pytest.mark.parametrize("few_at_first", [True, False])
@pytest.mark.parametrize("framework", ["pydantic-ai", "langgraph", "openai-agents"])
async def test_a_call_is_continued_though_its_tool_is_shown_otherwise_by_then(
    fleet: ToolFleet,
    ada: Caller,
    talker: Talker,
    monkeypatch: pytest.MonkeyPatch,
    framework: str,
    few_at_first: bool,
) -> None:
    """There are too many tools for the framework's own way as the call is made, or only as the run is resumed."""
    made: type[DeferredRun] = RUNS[framework]
    if few_at_first:
        made = {"pydantic-ai": FindingRun, "openai-agents": NamespacedRun}.get(framework, made)
    name, arguments = ("owls__talk", {}) if few_at_first else ("call_tool", {"name": "owls__talk", "arguments": {}})
    run = made(ada, name, arguments, uuid4().hex, load="native", defer_after=0.1)

    def change() -> None:
        monkeypatch.setattr(calling, "MOST_TOOLS", 2 if few_at_first else 10_000)

    monkeypatch.setattr(calling, "MOST_TOOLS", 10_000 if few_at_first else 2)
    await is_resumed(fleet, run, talker, change)


@pytest.mark.parametrize("few_at_first", [True, False])
async def test_claudes_hook_continues_a_call_though_its_tool_is_shown_otherwise_by_then(
    fleet: ToolFleet, asking: Caller, owls: ModuleServer, monkeypatch: pytest.MonkeyPatch, few_at_first: bool
) -> None:
    """People have approved it meanwhile."""
    monkeypatch.setattr(calling, "MOST_TOOLS", 10_000 if few_at_first else 2)
    use = use_of("owls.echo", {"text": "hoo"}) if few_at_first else use_of("call_tool", CALL)
    before = FleetSession(fleet, asking, load="native", defer_approvals=True)
    assert await use.asked_before(before)
    waiting = await before.deferred(use)
    assert waiting is not None
    monkeypatch.setattr(calling, "MOST_TOOLS", 2 if few_at_first else 10_000)
    after = FleetSession(fleet, asking, load="native", defer_approvals=True)

    assert await use.asked_before(after)
    assert await after.deferred(use) == waiting
    await fleet.approvals.approve(waiting["toolfleet_call_id"], BOB)
    assert await use.asked_before(after) == {}
    assert json.loads(await use.made(after)) == {"text": "hoo"}
    assert len(owls.calls("echo")) == 1


@pytest.mark.parametrize("is_direct", [True, False])
async def test_claudes_hook_finds_its_call_though_the_tool_was_renamed(
    fleet: ToolFleet, ada: Caller, owls: ModuleServer, talker: Talker, redefine: Redefine, is_direct: bool
) -> None:
    """The model has asked for it by the former name, and it is begun once."""
    talker.forget()
    use = use_of("owls.talk", {}) if is_direct else use_of("call_tool", {"name": "owls__talk", "arguments": {}})
    session = FleetSession(fleet, ada, load="native" if is_direct else "search", defer_after=0.1)
    assert await use.asked_before(session)
    known = await session.deferred(use)
    await redefine("talk", **SPEAK)

    assert await use.asked_before(session)
    assert await session.deferred(use) == known
    talker.go_on(3)
    assert await session.is_over(use)
    assert await use.asked_before(session) == {}
    assert await use.made(session) == "done"
    assert (talker.calls, owls.calls("speak")) == (1, [])


@pytest.mark.parametrize("framework", ["pydantic-ai", "langgraph", "openai-agents"])
async def test_a_call_through_call_tool_is_resumed_though_the_tool_was_renamed(
    fleet: ToolFleet, ada: Caller, talker: Talker, redefine: Redefine, framework: str
) -> None:
    said = {"name": "owls__talk", "arguments": {}}
    run = RUNS[framework](ada, "call_tool", said, uuid4().hex, load="search", defer_after=0.1)
    await is_resumed(fleet, run, talker, functools.partial(redefine, "talk", **SPEAK))


@pytest.mark.parametrize("is_direct", [True, False])
async def test_langgraph_is_shown_the_end_of_a_call_though_its_tool_is_no_longer_offered(
    fleet: ToolFleet, ada: Caller, talker: Talker, redefine: Redefine, is_direct: bool
) -> None:
    """The model is not told that there is no such tool: the call runs."""
    name, said = ("owls__talk", {}) if is_direct else ("call_tool", {"name": "owls__talk", "arguments": {}})
    run = GraphRun(ada, name, said, uuid4().hex, load="all" if is_direct else "search", defer_after=0.1)
    talker.forget()
    _, kept = await run.begin(fleet)
    await redefine("talk")
    talker.go_on(3)
    assert "done" in str((await run.go_on(fleet, kept))[0])
    assert talker.calls == 1


@pytest.mark.parametrize("is_direct", [True, False])
async def test_claude_is_shown_the_end_of_a_call_though_its_tool_is_no_longer_offered(
    fleet: ToolFleet, ada: Caller, talker: Talker, redefine: Redefine, is_direct: bool
) -> None:
    """A call that was not made before has no such tool."""
    talker.forget()
    said = {} if is_direct else {"name": "owls__talk", "arguments": {}}
    use, other = (use_of("owls.talk" if is_direct else "call_tool", said) for _ in range(2))
    session = FleetSession(fleet, ada, load="native" if is_direct else "search", defer_after=0.1)
    assert await use.asked_before(session)
    await redefine("talk")

    assert await use.asked_before(session)
    talker.go_on(3)
    assert await session.is_over(use)
    assert await use.asked_before(session) == {}
    assert await use.made(session) == "done"
    assert await other.asked_before(session) == {}
    assert "No tool owls__talk" in await other.made(session)
    assert talker.calls == 1


async def is_resumed(
    fleet: ToolFleet, run: DeferredRun, talker: Talker, meanwhile: Callable[[], Awaitable[None] | None] = lambda: None
) -> None:
    """Check that the run ends with the result of the call that it was deferred for."""
    talker.forget()
    known, kept = await run.begin(fleet)
    assert known["toolfleet_tool"] == "owls.talk"
    if (change := meanwhile()) is not None:
        await change
    early, kept = await run.go_on(fleet, kept, wait=0)
    assert early is None
    talker.go_on(3)
    shown, _ = await run.go_on(fleet, kept)
    assert "done" in str(shown)
    assert talker.calls == 1


BOB = Approver("web", "bob", "admin")
Said = dict[str, Any]
EDITS: list[Said] = [
    {"name": "owls__echo"},
    {"name": "owls__nap", "arguments": {"text": "hoo"}},
    {"name": "owls__echo", "arguments": 7},
    {"text": "hoot"},
]
each_wrong_edit = pytest.mark.parametrize("edited", EDITS, ids=["left out", "another tool", "no object", "inner ones"])
EDIT = "An edited call of call_tool has the same 'name', and an object as 'arguments'."


async def test_a_search_that_people_have_edited_is_made_as_edited(fleet: ToolFleet, ada: Caller) -> None:
    toolset = FleetToolset[object](fleet, ada, load="search").approval_required()
    model = PydanticScript([ToolCallPart("find_tools", {"query": "nap"}, "c1")]).model()
    agent = Agent(model, toolsets=[toolset], output_type=[str, DeferredToolRequests])
    ran = await agent.run("Ask the owl.")
    results = DeferredToolResults(approvals={"c1": ToolApproved(override_args={"query": "echo"})})
    again = await agent.run(message_history=ran.all_messages(), deferred_tool_results=results)
    (said,) = [str(p.content) for each in again.all_messages() for p in each.parts if isinstance(p, ToolReturnPart)]
    assert names_in(said) == ["owls__echo"]


@each_wrong_edit
async def test_an_edit_that_call_tool_cannot_have_is_no_vote(
    fleet: ToolFleet, asking: Caller, owls: ModuleServer, edited: Said
) -> None:
    """People are asked again, and read why: as the results are fetched, and in a run that is resumed without them."""
    toolset = FleetToolset[object](fleet, asking, load="search", defer_approvals=True, approver=BOB)
    model = PydanticScript([ToolCallPart("call_tool", CALL, "c1")]).model()
    agent = Agent(model, toolsets=[toolset], output_type=[str, DeferredToolRequests])
    ran = await agent.run("Ask the owl.")
    requests = ran.output
    assert isinstance(requests, DeferredToolRequests)
    decided = DeferredToolResults(approvals={"c1": ToolApproved(override_args=edited)}, metadata=requests.metadata)

    fetched = await toolset.deferred_results(requests, asking, decided, BOB)
    again = await agent.run(message_history=ran.all_messages(), deferred_tool_results=decided)

    assert fetched.metadata["c1"]["toolfleet_approval"]["refusal"] == EDIT
    assert isinstance(again.output, DeferredToolRequests)
    assert again.output.metadata["c1"]["toolfleet_approval"]["refusal"] == EDIT
    assert owls.calls("echo") == []


@each_wrong_edit
async def test_an_edit_that_call_tool_cannot_have_runs_nothing(
    fleet: ToolFleet, ada: Caller, owls: ModuleServer, edited: Said
) -> None:
    """Another toolset has asked people, and the fleet has no call yet: the model reads why."""
    toolset = FleetToolset[object](fleet, ada, load="search").approval_required()
    model = PydanticScript([ToolCallPart("call_tool", CALL, "c1")]).model()
    agent = Agent(model, toolsets=[toolset], output_type=[str, DeferredToolRequests])
    ran = await agent.run("Ask the owl.")
    results = DeferredToolResults(approvals={"c1": ToolApproved(override_args=edited)})
    again = await agent.run(message_history=ran.all_messages(), deferred_tool_results=results)
    (said,) = [str(p.content) for each in again.all_messages() for p in each.parts if isinstance(p, ToolReturnPart)]
    assert said.startswith(f"Error: {EDIT}\nerror_code: invalid_arguments\neffect_state: none")
    assert owls.requests == []


async def approved_in_pydantic_ai(fleet: ToolFleet, caller: Caller, said: Said) -> None:
    """The vote is taken as the run's results are fetched."""
    toolset = FleetToolset[object](fleet, caller, load="search", defer_approvals=True)
    model = PydanticScript([ToolCallPart("call_tool", said, "c1")]).model()
    agent = Agent(model, toolsets=[toolset], output_type=[str, DeferredToolRequests])
    ran = await agent.run("Ask the owl.")
    assert isinstance(ran.output, DeferredToolRequests)
    results = await toolset.deferred_results(ran.output, caller, DeferredToolResults(approvals={"c1": True}), BOB)
    again = await agent.run(message_history=ran.all_messages(), deferred_tool_results=results)
    assert again.output == "done"


async def approved_in_a_pydantic_ai_run(fleet: ToolFleet, caller: Caller, said: Said) -> None:
    """The vote is taken by the run that is resumed, here behind a prefix."""
    toolset = FleetToolset[object](fleet, caller, load="search", defer_approvals=True, approver=BOB).prefixed("f")
    model = PydanticScript([ToolCallPart("f_call_tool", said, "c1")]).model()
    agent = Agent(model, toolsets=[toolset], output_type=[str, DeferredToolRequests])
    ran = await agent.run("Ask the owl.")
    assert isinstance(ran.output, DeferredToolRequests)
    results = DeferredToolResults(approvals={"c1": True}, metadata=ran.output.metadata)
    again = await agent.run(message_history=ran.all_messages(), deferred_tool_results=results)
    assert again.output == "done"


async def approved_in_langgraph(fleet: ToolFleet, caller: Caller, said: Said) -> None:
    thread: Any = {"configurable": {"thread_id": uuid4().hex}}
    ours = FleetMiddleware(fleet, caller, load="search", defer_approvals=True, approver=BOB)
    model = script(("call_tool", said, "c1"))
    graph: Any = create_agent(model, middleware=[ours], checkpointer=InMemorySaver())
    asked = (await graph.ainvoke(ASK, thread))["__interrupt__"][0].value["toolfleet_approval"]
    vote = {"decision": "approve", "id": asked["id"], "digest": asked["digest"]}
    assert "__interrupt__" not in await graph.ainvoke(Command(resume=vote), thread)


async def approved_in_the_openai_sdk(fleet: ToolFleet, caller: Caller, said: Said, *, is_native: bool = False) -> None:
    call = function_call("call_tool", json.dumps(said), call_id="c1")
    if is_native:
        given = said.get("arguments", {})
        call = function_call("owls__echo", given if isinstance(given, str) else json.dumps(given), call_id="c1")
        call = call.model_copy(update={"namespace": "owls"})
    model, run_id = ScriptedModel([[call], [assistant_message("done")]]), uuid4().hex
    tools = FleetTools(
        fleet, caller, load="native" if is_native else "search", defer_approvals=True, run_id=lambda _: run_id
    )
    agent = FleetAgent[None](name="a", model=model, fleet_tools=tools)
    ran = await Runner.run(agent, "Ask the owl.")
    (item,) = ran.interruptions
    asked = await tools.question(item, ran.context_wrapper)
    assert asked is not None
    vote = {"decision": "approve", "id": asked["id"], "digest": asked["digest"]}
    await tools.decide(item, ran.context_wrapper, vote, BOB)
    state = ran.to_state()
    state.approve(item)
    assert (await Runner.run(agent, state)).final_output == "done"


async def approved_in_claude(fleet: ToolFleet, caller: Caller, said: Said) -> None:
    session, use = FleetSession(fleet, caller, load="search", defer_approvals=True), use_of("call_tool", said)
    assert await use.asked_before(session)
    waiting = await session.deferred(use)
    assert waiting is not None
    await fleet.approvals.approve(waiting["toolfleet_call_id"], BOB)
    assert await use.asked_before(session) == {}
    await use.made(session)


@each_way_to_say
@pytest.mark.parametrize(
    "approved",
    [
        approved_in_pydantic_ai,
        approved_in_a_pydantic_ai_run,
        approved_in_langgraph,
        approved_in_the_openai_sdk,
        functools.partial(approved_in_the_openai_sdk, is_native=True),
        approved_in_claude,
    ],
    ids=["pydantic-ai", "pydantic-ai prefixed", "langgraph", "openai", "openai native", "claude"],
)
async def test_a_call_through_call_tool_is_approved_and_made_once(
    fleet: ToolFleet,
    asking: Caller,
    owls: ModuleServer,
    approved: Callable[[ToolFleet, Caller, Said], Awaitable[None]],
    said: Said,
) -> None:
    await approved(fleet, asking, {"name": "owls__echo", **said})
    assert [call["arguments"] for call in owls.calls("echo")] == [{"text": "hoo"} if said else {}]


async def test_arguments_that_are_written_twice_ask_nobody(
    fleet: ToolFleet, asking: Caller, owls: ModuleServer
) -> None:
    """What people would be asked about is not what would run: the call is refused to its model, and is made by nobody."""
    twice = json.dumps(json.dumps({"text": "hoo"}))
    model = ScriptedModel([[function_call("owls__echo", twice, call_id="c1")], [assistant_message("done")]])
    tools = FleetTools(fleet, asking, defer_approvals=True, run_id=lambda _: "a run")
    ran = await Runner.run(FleetAgent[None](name="a", model=model, fleet_tools=tools), "Ask the owl.")
    assert [await tools.question(item, ran.context_wrapper) for item in ran.interruptions] == [None]
    assert owls.calls("echo") == []


async def test_call_tool_is_approved_for_no_other_call(fleet: ToolFleet, asking: Caller, owls: ModuleServer) -> None:
    """The SDK keeps by its name that it is always approved; it votes for nothing that people have not seen."""
    said = [json.dumps({"name": "owls__echo", "arguments": {"text": text}}) for text in ("seen", "not seen")]
    calls = [function_call("call_tool", each, call_id=f"c{at}") for at, each in enumerate(said)]
    model = ScriptedModel([calls, [assistant_message("done")]])
    tools = FleetTools(fleet, asking, load="search", defer_approvals=True, approver=BOB, run_id=lambda _: "a run")
    agent = FleetAgent[None](name="a", model=model, fleet_tools=tools)
    ran = await Runner.run(agent, "Ask the owl.")
    state = ran.to_state()
    state.approve(ran.interruptions[0], always_approve=True)
    assert (await Runner.run(agent, state)).final_output == "done"
    assert owls.calls("echo") == []


@pytest.mark.parametrize("adapter", [FleetToolset, FleetMiddleware, FleetTools, fleet_server])
async def test_another_way_to_load_is_refused_at_once(
    fleet: ToolFleet, ada: Caller, adapter: Callable[..., object]
) -> None:
    with pytest.raises(ValueError, match=r"There is no load 'lazy'; there are: all, native, search\."):
        adapter(fleet, ada, load="lazy")
