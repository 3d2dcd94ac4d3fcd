"""Tools that a model searches for; the providers' own packages judge requests, answers to searches and results."""

import json
from typing import Any

import pytest
from anthropic.types import ToolUseBlock
from openai.types.responses import ResponseFunctionToolCall, ResponseToolSearchCall

from support.schemas.provider_judges import accepts_result, accepts_tools, made_call
from toolfleet_registry.contracts import ToolDefinition, ToolParameter, ToolResult
from toolfleet_registry.formats import Format, SearchRequest, ToolsOnDemand, convert, from_result, on_demand
from toolfleet_registry.formats.dialects import DIALECTS

OUTPUT = {"type": "object", "properties": {"owls": {"type": "integer"}}}
COUNT = ToolDefinition(
    name="owls.count",
    description="Counts owls.",
    parameters=[ToolParameter(name="wood", type="string")],
    effect="read",
    output_schema=OUTPUT,
)
RELEASE = ToolDefinition(name="owls.release", description="Releases an owl.", effect="once", output_schema=OUTPUT)
PRICE = ToolDefinition(name="shop.price", description="Says a price.", effect="read")
TOOLS = [COUNT, RELEASE, PRICE]
SEARCH = {"query": "count owls", "limit": 3}


def search_call(provider: Format) -> Any:
    if provider == "openai_responses":
        return ResponseToolSearchCall(
            id="1", arguments=SEARCH, call_id="call_1", execution="client", status="completed", type="tool_search_call"
        )
    return made_call(provider, "search_tools", SEARCH, json.dumps(SEARCH))


@pytest.mark.parametrize("provider", DIALECTS)
def test_a_search_is_read_and_answered_in_each_format(provider: Format) -> None:
    offered = ToolsOnDemand(TOOLS, provider, always=lambda tool: tool.name == "shop.price", programmatic=True)
    accepts_tools(provider, offered.offers)
    call = search_call(provider)
    assert offered.search(call) == SearchRequest("count owls", 3)
    answer = offered.answer(call, [COUNT, RELEASE])
    accepts_result(provider, answer)
    accepts_result(provider, offered.answer(call, []))
    text = json.dumps(answer)
    assert "owls__count" in text
    assert "owls__release" in text
    assert "shop__price" in json.dumps(offered.offers)


@pytest.mark.parametrize("provider", DIALECTS)
def test_a_found_tool_is_called_and_its_result_answered(provider: Format) -> None:
    """By its own name where the provider loads it, and through `call_tool` elsewhere."""
    offered = ToolsOnDemand(TOOLS, provider)
    inner = {"wood": "oaks"}
    outer: dict[str, Any] = {"name": "owls__count", "arguments": inner}
    name, arguments = ("owls__count", inner) if offered.is_native else ("call_tool", outer)
    call = made_call(provider, name, arguments, json.dumps(arguments))
    assert offered.search(call) is None
    asked = offered.call(call)
    assert (asked.tool_name, asked.arguments) == ("owls.count", inner)
    answer = offered.answer(call, ToolResult.ok("owls.count", {"owls": 3}))
    accepts_result(provider, answer)
    if provider == "gemini":
        assert answer["functionResponse"]["name"] == "call_tool"


def test_anthropic_reads_no_definition_before_a_search_refers_to_it() -> None:
    offered = ToolsOnDemand(TOOLS, "anthropic", always=lambda tool: tool.name == "shop.price")
    assert [(offer["name"], offer.get("defer_loading", False)) for offer in offered.offers] == [
        ("search_tools", False),
        ("shop__price", False),
        ("owls__count", True),
        ("owls__release", True),
    ]
    answer = offered.answer(search_call("anthropic"), [RELEASE, COUNT])
    assert [each["tool_name"] for each in answer["content"]] == ["owls__release", "owls__count"]


def test_openai_is_sent_the_definitions_with_the_answer_in_a_namespace_for_each_module() -> None:
    offered = ToolsOnDemand(TOOLS, "openai_responses")
    assert [(offer["type"], offer["execution"]) for offer in offered.offers] == [("tool_search", "client")]
    answer = offered.answer(search_call("openai_responses"), [RELEASE, PRICE, COUNT])
    assert (answer["call_id"], answer["execution"]) == ("call_1", "client")
    assert [(space["name"], [tool["name"] for tool in space["tools"]]) for space in answer["tools"]] == [
        ("owls", ["owls__release", "owls__count"]),
        ("shop", ["shop__price"]),
    ]
    called = ResponseFunctionToolCall(
        arguments="{}", call_id="call_2", name="shop__price", namespace="shop", type="function_call"
    )
    assert offered.call(called).tool_name == "shop.price"


@pytest.mark.parametrize("is_listed", [True, False], ids=["listed", "deferred"])
@pytest.mark.parametrize("most", ["MOST_TOOLS", "MOST_BYTES"])
def test_what_is_too_much_for_a_request_is_answered_with_definitions(
    monkeypatch: pytest.MonkeyPatch, most: str, is_listed: bool
) -> None:
    """The search and the tools that are always listed count, too: one more than the whole request is not too much."""

    def offer() -> ToolsOnDemand:
        return ToolsOnDemand(TOOLS, "anthropic", always=lambda tool: is_listed and tool is not COUNT)

    whole = offer().offers
    size = len(whole) if most == "MOST_TOOLS" else len(json.dumps(whole))
    monkeypatch.setattr(on_demand, most, size)
    assert offer().is_native
    monkeypatch.setattr(on_demand, most, size - 1)
    assert not offer().is_native
    offered = ToolsOnDemand(TOOLS, "anthropic")
    assert [offer["name"] for offer in offered.offers] == ["search_tools", "call_tool"]
    answer = offered.answer(search_call("anthropic"), [COUNT])
    accepts_result("anthropic", answer)
    assert json.loads(answer["content"])["tools"] == list(convert([COUNT], "anthropic"))


@pytest.mark.parametrize("provider", DIALECTS)
def test_the_offered_tools_bound_what_is_found_and_called(provider: Format) -> None:
    """The answer has the best of them in the search's order, as many as were asked for."""
    others = [ToolDefinition(name=f"new.tool{number}") for number in range(5)]
    offered = ToolsOnDemand([*TOOLS, ToolDefinition(name="owls.feed")], provider)
    found = [*others, RELEASE, PRICE, COUNT, ToolDefinition(name="owls.feed")]
    text = json.dumps(offered.answer(search_call(provider), found))
    assert "new__tool" not in text
    assert "owls__feed" not in text
    assert text.index("owls__release") < text.index("owls__count")
    assert provider == "openai_responses" or text.index("owls__release") < text.index("shop__price")
    arguments: dict[str, Any] = {"name": "new__tool1", "arguments": {}}
    name = "new__tool1" if offered.is_native else "call_tool"
    asked = offered.call(made_call(provider, name, arguments, json.dumps(arguments)))
    assert (asked.tool_name, asked.spoken.tool) == ("new__tool1", None)


@pytest.mark.parametrize("said", ["owls", 7, None, {"query": 3, "limit": "x"}, {"limit": True}])
def test_a_search_with_wrong_arguments_is_a_search(said: Any) -> None:
    offered = ToolsOnDemand(TOOLS, "anthropic")
    call = {"type": "tool_use", "id": "1", "name": "search_tools", "input": said}
    assert offered.search(call) == SearchRequest("", 5)


def test_a_call_through_the_wrong_name_is_no_tool() -> None:
    offered = ToolsOnDemand(TOOLS, "openai_chat")
    call = {"id": "1", "function": {"name": "call_tool", "arguments": "[]"}}
    assert offered.call(call).tool_name == ""


def test_programs_may_call_tools_that_only_read_and_say_what_they_return() -> None:
    """Neither one with an effect, nor one whose results are unknown."""
    openai = {offer["name"]: offer for offer in convert(TOOLS, "openai_responses", programmatic=True)}
    accepts_tools("openai_responses", list(openai.values()))
    assert openai["owls__count"]["output_schema"] == OUTPUT
    assert openai["owls__count"]["allowed_callers"] == ["direct", "programmatic"]
    anthropic = {offer["name"]: offer for offer in convert(TOOLS, "anthropic", programmatic=True)}
    accepts_tools("anthropic", list(anthropic.values()))
    assert anthropic["owls__count"]["allowed_callers"] == ["direct", "code_execution_20260120"]
    assert anthropic["owls__count"]["description"] == f"Counts owls.\nReturns JSON that fits: {_compact(OUTPUT)}"
    for offers in (openai, anthropic):
        assert [name for name, offer in offers.items() if "allowed_callers" in offer] == ["owls__count"]
    strict = convert(TOOLS, "anthropic", strict=True, programmatic=True)
    assert not [offer for offer in strict if "strict" in offer and "allowed_callers" in offer]


def test_a_program_reads_a_success_as_json_alone() -> None:
    result = ToolResult.ok("owls.count", {"content": [{"type": "text", "text": "3"}], "structured": {"owls": 3}})
    result = result.model_copy(update={"hint": "Nearly used up."})
    caller = {"type": "program", "caller_id": "prog_1"}
    answer = from_result(result, "openai_responses", "1", caller=caller)
    accepts_result("openai_responses", answer)
    assert (answer["output"], answer["caller"]) == ('{"owls":3}', caller)
    block = ToolUseBlock.model_validate(
        {"id": "1", "input": {}, "name": "owls__count", "type": "tool_use", "caller": {"type": "direct"}}
    )
    assert "Nearly" in ToolsOnDemand(TOOLS, "anthropic").answer(block, result)["content"]
    coded = block.model_copy(update={"caller": {"type": "code_execution_20260120", "tool_id": "srv_1"}})
    assert ToolsOnDemand(TOOLS, "anthropic").answer(coded, result)["content"] == '{"owls":3}'


def test_the_modules_named_in_a_search_are_bounded() -> None:
    tools = [ToolDefinition(name=f"module{number:04}.work") for number in range(500)]
    about = ToolsOnDemand(tools, "openai_responses").offers[0]["description"]
    assert len(about) < 1200
    assert about.endswith(f"and {500 - about.count('module0')} more.")


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
