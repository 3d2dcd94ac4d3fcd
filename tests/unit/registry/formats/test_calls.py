"""What a model answers with, as a call; and a model is answered in the names that its provider has."""

import json
from typing import Any

import pytest

from support.schemas.provider_judges import made_call
from support.there import there
from toolfleet_registry.contracts import ToolCall, ToolDefinition, ToolResult
from toolfleet_registry.formats import Format, as_spoken, call_from_openai, convert, to_call
from toolfleet_registry.formats.dialects import DIALECTS
from toolfleet_registry.schemas.validation import checked

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
    """Under either name, and in JSON, as who speaks to a provider without its package has it."""
    expected = ToolCall(tool_name="research.web_search", arguments=OWLS)
    assert to_call(made_call(provider, name, OWLS, json.dumps(OWLS)), provider, [SEARCH]) == expected
    assert to_call(DICTS[provider], provider, [SEARCH]) == expected


@pytest.mark.parametrize("provider", DIALECTS)
@pytest.mark.parametrize("name", ["research__find", "research.find"])
def test_a_call_by_a_former_name_is_one_of_the_tool(provider: Format, name: str) -> None:
    """A conversation may hold one; its result goes back under the name that the model spoke."""
    renamed = SEARCH.model_copy(update={"former_names": ["research.find"]})
    call = to_call(made_call(provider, name, OWLS, json.dumps(OWLS)), provider, [renamed])

    assert (call.tool_name, call.spoken.name) == ("research.web_search", name)


def test_inner_forms_are_taken_too() -> None:
    """Gemini's call without its part, by its Python name, and the parameters of MCP's request."""
    expected = ToolCall(tool_name="research.web_search", arguments=OWLS)
    assert to_call({"name": NAME, "args": OWLS}, "gemini", [SEARCH]) == expected
    assert to_call({"function_call": {"name": NAME, "args": OWLS}}, "gemini", [SEARCH]) == expected
    assert to_call({"name": NAME, "arguments": OWLS}, "mcp", [SEARCH]) == expected


def test_a_custom_tools_call_goes_on_as_text() -> None:
    """Nobody offered one; the catalog refuses it."""
    from openai.types.chat import ChatCompletionMessageCustomToolCall  # as `provider_judges`

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
@pytest.mark.parametrize(
    "nonsense",
    [{}, None, 5, "x", [], {"function": 1, "name": 7, "params": "x"}, {"function": {"name": None}, "name": ""}],
)
def test_nonsense_is_a_call_to_nothing(provider: Format, nonsense: Any) -> None:
    """It gets a result like every other call."""
    call = to_call(nonsense, provider, [SEARCH])
    assert call.tool_name == ""


@pytest.mark.parametrize(
    ("spoken", "arguments"),
    [
        ("{}", {}),
        ("", {}),  # what some models write for a tool that needs nothing
        (None, {}),
        (OWLS, OWLS),  # some servers parse it themselves
        ('{"query": null}', {}),
        ('{"query": "ow', '{"query": "ow'),
        ('{"query": NaN}', '{"query": NaN}'),
        ("[1]", [1]),
        ('"text"', "text"),
        ("null", None),
        (7, 7),
        ("\ud800", "\ud800"),
        ('{"a": "\\ud83d"}', {"a": "\ufffd"}),
    ],
)
def test_any_arguments_make_a_call(spoken: Any, arguments: Any) -> None:
    """What is no object goes on as it is, for the catalog to refuse."""
    call = {"name": NAME, "arguments": spoken}
    expected = ToolCall(tool_name="research.web_search", arguments=arguments)
    assert call_from_openai({"function": call}, [SEARCH]) == expected
    assert to_call(call, "openai_responses", [SEARCH]) == expected


def test_a_name_that_was_not_offered_goes_on() -> None:
    """The refusal names it."""
    assert to_call({"name": "research__fly", "input": {}}, "anthropic", [SEARCH]).tool_name == "research__fly"


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


GREET = ToolDefinition(
    name="owls.greet",
    input_schema={"properties": {"name": {}, "filter[kind]": {"type": "integer"}}, "additionalProperties": False},
)
TOOLS = [GREET, ToolDefinition(name="owls.count"), ToolDefinition(name="research.web_search")]


def asked(name: str, format: Format = "anthropic", *, dotted: bool = False) -> ToolCall:
    return to_call({"name": name, "input": {}, "args": {}, "arguments": {}}, format, TOOLS, dotted=dotted)


def refused(call: ToolCall, code: str, error: str, hint: str | None = None) -> ToolResult:
    result = ToolResult.refused(call.tool_name, code, error, hint=hint)  # type: ignore[arg-type] # one of them
    return as_spoken(result, call.spoken)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("owls__nothing", "No tool owls__nothing; did you mean owls__count?"),
        ("owls_greet", "No tool owls_greet; did you mean owls__greet?"),
        ("Owls__Greet", "No tool Owls__Greet; did you mean owls__greet?"),
        ("owls.great", "No tool owls.great; did you mean owls__greet or owls__count?"),
        ("websearch", "No tool websearch; did you mean research__web_search?"),
        ("xyz", "No tool xyz."),
        ("", "The call names no tool."),
        ("\ud800", "No tool ?."),
        ("x" * 5_000, f"No tool {'x' * 256}…."),
    ],
)
def test_a_name_that_was_not_offered_is_answered_with_those_that_were(name: str, error: str) -> None:
    """And never with a form of name that the provider forbids."""
    call = asked(name)
    for code in ("invalid_tool_name", "unknown_module", "unknown_tool"):
        result = refused(call, code, f"Invalid tool name format: {name[:9]}. Expected 'module.tool_name'.")
        assert (result.error, result.error_code) == (error, code)
        assert result.tool_name == name


@pytest.mark.parametrize(
    ("format", "dotted", "name"),
    [("openai_chat", False, "owls__greet"), ("gemini", True, "owls.greet"), ("mcp", True, "owls.greet")],
)
def test_a_tool_is_called_what_the_provider_calls_it(format: Format, dotted: bool, name: str) -> None:
    """In errors and hints of the fleet and of the module; another tool's name stays as it is."""
    offer = json.dumps(convert([GREET], format, dotted=dotted))
    assert f'"{name}"' in offer
    spoken = {"function": {"name": name, "arguments": "{}"}, "name": name}
    call = to_call(spoken, format, TOOLS, dotted=dotted)
    text = "owls.greet failed, not owls.greet_all nor my-owls.greet: 'owls.greet' needs 'admin'. See owls.greet."
    said = f"{name} failed, not owls.greet_all nor my-owls.greet: '{name}' needs 'admin'. See {name}."

    result = refused(call, "permission_denied", text, hint="Use owls.greet.")
    assert (result.error, result.hint, result.tool_name) == (said, f"Use {name}.", "owls.greet")


def test_a_tool_that_has_gone_is_answered_with_those_that_are_there() -> None:
    """In the catalog's hint as well."""
    result = refused(
        asked("owls__greet"), "unknown_tool", "Unknown tool: owls.greet", hint="Did you mean owls.great or owls.meet?"
    )
    assert (result.error, result.hint) == ("Unknown tool: owls__greet", "Did you mean owls__great or owls__meet?")


def test_an_argument_is_called_what_the_provider_calls_it() -> None:
    """Anthropic takes no brackets in a property's name, so the model knows it by another."""
    (offer,) = convert([GREET], "anthropic")
    (shown,) = offer["input_schema"]["properties"].keys() - {"name"}
    call = to_call({"name": "owls__greet", "input": {shown: "x", "nam": "Ada"}}, "anthropic", TOOLS)
    fault = there(checked(GREET, call.arguments).fault)
    error = refused(call, "invalid_arguments", fault).error or ""

    assert shown in error
    assert "filter[kind]" not in error
    assert "'nam' (did you mean 'name'?)" in error


def test_what_a_program_asks_for_is_answered_as_ever() -> None:
    """Names without a model have dots, and a success is nobody's to change."""
    call = ToolCall(tool_name="owls.greet")
    assert refused(call, "unknown_tool", "Unknown tool: owls.greet").error == "Unknown tool: owls.greet"
    done = ToolResult.ok("owls.greet", "owls.greet")
    assert as_spoken(done, asked("owls__greet").spoken) is done


def test_how_a_call_was_spoken_changes_no_call_and_goes_nowhere() -> None:
    """It is equal to the same call of a program, and written as that one."""
    call, same = asked("owls__greet"), ToolCall(tool_name="owls.greet")
    assert call == same
    assert call.model_dump_json() == same.model_dump_json()
    assert "spoken" not in json.dumps(ToolCall.model_json_schema())
