"""What a model answers with, as a call."""

import json
from typing import Any

import pytest

from support.schemas.provider_judges import made_call
from toolfleet_registry.contracts import ToolCall, ToolDefinition
from toolfleet_registry.formats import Format, convert, to_call
from toolfleet_registry.formats.providers.dialects import DIALECTS

SEARCH = ToolDefinition(name="research.web_search", input_schema={"properties": {"query": {"type": "string"}}})
ODD = ToolDefinition(
    name="odd.tool",
    input_schema={
        "properties": {
            "filter[name]": {"type": "string"},
            "in": {"type": "array", "items": {"type": "object", "properties": {"größe": {"type": "integer"}}}},
        },
        "required": ["filter[name]"],
    },
)
OWLS = {"query": "owls"}
NAME = "research__web_search"
DICTS: dict[Format, dict[str, Any]] = {
    "openai_chat": {"id": "1", "type": "function", "function": {"name": NAME, "arguments": '{"query": "owls"}'}},
    "openai_responses": {"type": "function_call", "call_id": "1", "name": NAME, "arguments": '{"query": "owls"}'},
    "anthropic": {"type": "tool_use", "id": "1", "name": NAME, "input": OWLS},
    "gemini": {"functionCall": {"name": NAME, "args": OWLS}},
    "mcp": {"method": "tools/call", "params": {"name": NAME, "arguments": OWLS}},
}


@pytest.mark.parametrize("provider", DIALECTS)
@pytest.mark.parametrize("name", ["research__web_search", "research.web_search"])
def test_a_call_of_each_package_becomes_one_of_ours(provider: Format, name: str) -> None:
    """Under either name."""
    call = made_call(provider, name, OWLS, json.dumps(OWLS))
    assert to_call(call, provider, [SEARCH]) == ToolCall(tool_name="research.web_search", arguments=OWLS)


@pytest.mark.parametrize("provider", DIALECTS)
@pytest.mark.parametrize("name", ["research__find", "research.find"])
def test_a_call_by_a_former_name_is_one_of_the_tool(provider: Format, name: str) -> None:
    """A conversation may hold one; its result goes back under the name that the model spoke."""
    renamed = SEARCH.model_copy(update={"former_names": ["research.find"]})
    call = to_call(made_call(provider, name, OWLS, json.dumps(OWLS)), provider, [renamed])

    assert (call.tool_name, call.spoken.name) == ("research.web_search", name)


@pytest.mark.parametrize("provider", DIALECTS)
def test_a_call_in_json_becomes_one_of_ours(provider: Format) -> None:
    """As who speaks to a provider without its package has it."""
    assert to_call(DICTS[provider], provider, [SEARCH]) == ToolCall(tool_name="research.web_search", arguments=OWLS)


def test_inner_forms_are_taken_too() -> None:
    """Gemini's call without its part, by its Python name, and the parameters of MCP's request."""
    expected = ToolCall(tool_name="research.web_search", arguments=OWLS)
    assert to_call({"name": NAME, "args": OWLS}, "gemini", [SEARCH]) == expected
    assert to_call({"function_call": {"name": NAME, "args": OWLS}}, "gemini", [SEARCH]) == expected
    assert to_call({"name": NAME, "arguments": OWLS}, "mcp", [SEARCH]) == expected


def test_a_custom_tools_call_goes_on_as_text() -> None:
    """Nobody offered one; the catalog refuses it."""
    from openai.types.chat import ChatCompletionMessageCustomToolCall  # noqa: PLC0415 - as `provider_judges`

    call = ChatCompletionMessageCustomToolCall.model_validate(
        {"id": "1", "type": "custom", "custom": {"name": "x", "input": "words"}}
    )
    assert to_call(call, "openai_chat", [SEARCH]) == ToolCall(tool_name="x", arguments="words")


@pytest.mark.parametrize("provider", ["anthropic", "gemini"])
def test_renamed_properties_get_their_names_back(provider: Format) -> None:
    """Those that these providers refuse, at any depth."""
    shown = convert([ODD], provider)[0]
    declared = shown["functionDeclarations"][0]["parameters"] if provider == "gemini" else shown["input_schema"]
    named, inner = declared["properties"]
    deep = next(iter(declared["properties"][inner]["items"]["properties"]))
    assert (named, deep) != ("filter[name]", "größe")
    assert declared["required"] == [named]
    call = made_call(provider, "odd__tool", {named: "x", "in": [{deep: 5}, {"other": 1}]}, "")
    assert to_call(call, provider, [ODD]).arguments == {"filter[name]": "x", "in": [{"größe": 5}, {"other": 1}]}


@pytest.mark.parametrize("provider", DIALECTS)
@pytest.mark.parametrize("nonsense", [{}, None, 5, "x", [], {"function": 1, "name": 7, "params": "x"}])
def test_nonsense_is_a_call_to_nothing(provider: Format, nonsense: Any) -> None:
    """It gets a result like every other call."""
    call = to_call(nonsense, provider, [SEARCH])
    assert call.tool_name == ""


@pytest.mark.parametrize(
    ("spoken", "arguments"),
    [("", {}), (None, {}), ('{"a": ', '{"a": '), ("[1]", [1]), ('{"query": null}', {})],
)
def test_any_arguments_make_a_call(spoken: Any, arguments: Any) -> None:
    """What is no object goes on as it is, for the catalog to refuse."""
    for provider in ("openai_chat", "openai_responses"):
        call = {"name": NAME, "arguments": spoken}
        obj = {"function": call} if provider == "openai_chat" else call
        assert to_call(obj, provider, [SEARCH]) == ToolCall(tool_name="research.web_search", arguments=arguments)


def test_a_name_that_was_not_offered_goes_on() -> None:
    """The refusal names it."""
    assert to_call({"name": "research__fly", "input": {}}, "anthropic", [SEARCH]).tool_name == "research__fly"


def test_an_unknown_format_is_one_clear_error() -> None:
    """Like everywhere."""
    with pytest.raises(ValueError, match="There is no format 'x'"):
        to_call({}, "x", [])  # type: ignore[arg-type] # what somebody may write


def test_arguments_that_contain_themselves_do_not_hang() -> None:
    """The catalog refuses them; here they only have to pass."""
    endless: dict[str, Any] = {"filter[name]": "x"}
    endless["in"] = [endless]
    for provider in ("anthropic", "gemini", "openai_chat"):
        obj = {
            "name": "odd.tool",
            "input": endless,
            "args": endless,
            "function": {"name": "odd.tool", "arguments": endless},
        }
        assert to_call(obj, provider, [ODD]).tool_name == "odd.tool"
