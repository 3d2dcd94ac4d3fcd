"""What a provider is offered, shape by shape; the providers' own packages are the judges."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from support.schemas.provider_judges import accepts_tools
from toolfleet_registry.contracts import ToolAnnotations, ToolDefinition, ToolParameter, ToolResult
from toolfleet_registry.formats import (
    Converted,
    Format,
    Note,
    as_spoken,
    call_from_openai,
    convert,
    from_result,
    to_call,
    tools_to_openai_format,
)
from toolfleet_registry.formats.dialects import DIALECTS

SEARCH = ToolDefinition(
    name="research.web_search",
    description="Search the web and return results",
    parameters=[
        ToolParameter(name="query", type="string", description="Search query"),
        ToolParameter(name="max_results", type="integer", description="Max results", required=False),
    ],
)
SCHEMA = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": "Search query"},
        "max_results": {"type": "integer", "description": "Max results"},
    },
    "required": ["query"],
}
NAMED = {"name": "research__web_search", "description": "Search the web and return results"}
TROUBLE = {  # each of these has made a provider refuse a whole request
    "$schema": "http://json-schema.org/draft-07/schema#",
    "$id": "https://example.com/tool",
    "type": "object",
    "x-order": 1,
    "properties": {
        "list": {"type": "array"},
        "maybe": {"type": ["string", "null"]},
        "several": {"type": ["integer", "boolean"]},
        "number": {"enum": [1, 2]},
        "nothing": {"enum": []},
        "blank": {"type": "string", "enum": ["", "x"]},
        "true": True,
        "false": False,
        "address": {"type": "string", "format": "uri"},
        "letters": {"type": "string", "pattern": r"^\p{L}+$"},
        "filter[name]": {"type": "string"},
        "tuple": {"type": "array", "prefixItems": [{"type": "string"}], "items": False},
        "self": {"$ref": "#/$defs/node"},
        "away": {"$ref": "https://example.com/other.json"},
        "map": {"type": "object", "additionalProperties": {"type": "string"}},
        "one": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
    },
    "required": ["list", "list", "unknown"],
    "oneOf": [{"required": ["maybe"]}, {"required": ["number"]}],
    "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}, "unused": {}},
}


def tool(schema: dict[str, Any], name: str = "m.t", **more: Any) -> ToolDefinition:
    return ToolDefinition(name=name, input_schema=schema, **more)


def parameters(schema: dict[str, Any], provider: Format = "openai_chat", **how: bool) -> Any:
    offer = convert([tool(schema)], provider, **how)[0]
    if provider == "gemini":
        return offer["functionDeclarations"][0].get("parameters")
    return offer["function"]["parameters"] if provider == "openai_chat" else offer.get("input_schema")


GEMINI = {
    "type": "OBJECT",
    "properties": {
        "query": {"type": "STRING", "description": "Search query"},
        "max_results": {"type": "INTEGER", "description": "Max results"},
    },
    "required": ["query"],
}


@pytest.mark.parametrize(
    ("provider", "offer"),
    [
        ("openai_chat", {"type": "function", "function": {**NAMED, "parameters": SCHEMA}}),
        ("openai_responses", {"type": "function", **NAMED, "parameters": SCHEMA, "strict": False}),
        ("anthropic", {**NAMED, "input_schema": SCHEMA}),
        ("mcp", {**NAMED, "inputSchema": SCHEMA}),
        ("gemini", {"functionDeclarations": [{**NAMED, "parameters": GEMINI}]}),
    ],
)
def test_a_tool_in_each_format(provider: Format, offer: dict[str, Any]) -> None:
    """The list goes into a request's `tools` as it is, and there is nothing to note."""
    converted = convert([SEARCH], provider)
    assert isinstance(converted, Converted)
    assert list(converted) == [offer]
    assert converted.notes == ()
    accepts_tools(provider, converted)


def test_the_openai_function_gives_the_same() -> None:
    """A list that is sent as it is."""
    assert tools_to_openai_format([SEARCH]) == list(convert([SEARCH], "openai_chat"))


def test_the_openai_function_keeps_dots_for_servers_that_take_them() -> None:
    """Nothing else differs; a note says that OpenAI itself does not. The answer finds its tool, and is told its name."""
    converted = tools_to_openai_format([SEARCH, tool({}, name="git.issue.create")], dotted=True)
    named = {"name": "research.web_search", "description": "Search the web and return results", "parameters": SCHEMA}

    assert converted[1] == {"type": "function", "function": named}
    assert converted[0]["function"]["name"] == "git.issue.create"
    assert [(note.path, note.kind) for note in converted.notes] == [("name", "refused")]
    assert tools_to_openai_format([], dotted=True).notes == ()

    call = call_from_openai({"function": {"name": "research.web_search", "arguments": '{"query": 1}'}}, [SEARCH])
    refused = ToolResult.refused(SEARCH.name, "permission_denied", "Tool 'research.web_search' needs 'admin'.")
    assert as_spoken(refused, call.spoken).error == refused.error


@pytest.mark.parametrize("provider", DIALECTS)
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("dotted", [False, True])
def test_trouble_is_taken_by_every_provider(provider: Format, strict: bool, dotted: bool) -> None:
    """Everything at once that somebody refuses: their packages take what is made of it."""
    converted = convert([tool(TROUBLE), SEARCH, tool({}, name="m.empty")], provider, strict=strict, dotted=dotted)
    accepts_tools(provider, converted)
    assert json.loads(json.dumps(converted)) == converted
    assert {note.tool for note in converted.notes} <= {"m.t", "", "research.web_search", "m.empty"}


def test_trouble_is_transformed_or_noted() -> None:
    """What is left of it for OpenAI."""
    shown = parameters(TROUBLE)
    assert shown.keys() == {"type", "properties", "required", "$defs"}
    assert shown["required"] == ["list", "unknown"]
    assert shown["$defs"].keys() == {"node"}
    properties = shown["properties"]
    assert properties["list"] == {"type": "array", "items": {}}
    assert properties["nothing"] == properties["true"] == properties["away"] == {}
    assert properties["false"] == {"not": {}}
    assert properties["address"] == {"type": "string", "description": '(format: "uri")'}
    assert properties["letters"] == {"type": "string"}
    assert properties["tuple"]["items"] == {"not": {}}
    notes = {note.path: note.kind for note in convert([tool(TROUBLE)], "openai_chat").notes}
    assert notes == {
        "": "relaxed",  # the alternatives at the top
        "/x-order": "dropped",
        "/properties/nothing/enum": "relaxed",
        "/properties/address/format": "relaxed",
        "/properties/letters/pattern": "relaxed",
        "/properties/away/$ref": "relaxed",
    }


def test_geminis_dialect() -> None:
    """No type lists, no other values than strings, no references; null is a mark."""
    shown = parameters(TROUBLE, "gemini")
    properties = shown["properties"]
    assert shown["required"] == ["list"]
    assert "false" not in properties
    assert properties["maybe"] == {"type": "STRING", "nullable": True}
    assert properties["several"] == {"anyOf": [{"type": "INTEGER"}, {"type": "BOOLEAN"}]}
    assert properties["number"] == {"description": "(enum: [1, 2])"}
    assert properties["blank"] == {"type": "STRING", "description": '(enum: ["", "x"])'}
    assert properties["list"] == {"type": "ARRAY", "items": {}}
    assert properties["map"] == {"type": "OBJECT"}
    assert properties["one"] == {"anyOf": [{"type": "STRING"}, {"type": "INTEGER"}]}
    assert properties["self"]["properties"]["next"]["type"] == "OBJECT"
    assert any(re.fullmatch(r"p_filter_name__x[0-9a-f]{10}", name) for name in properties)
    assert "$ref" not in json.dumps(shown)


def test_a_tool_without_arguments_has_no_parameters_for_gemini() -> None:
    """An object without properties is refused there."""
    assert parameters({}, "gemini") is None
    assert convert([], "gemini") == []


def test_mcp_takes_the_schema_as_it_is() -> None:
    """With what the tool says of its output and of a repeat."""
    (offer,) = convert([tool(TROUBLE, output_schema={"type": "object"}, effect="read")], "mcp")
    assert offer["inputSchema"] == TROUBLE
    assert offer["outputSchema"] == {"type": "object"}
    assert offer["annotations"] == {"readOnlyHint": True, "idempotentHint": True}
    hints = ToolAnnotations(destructiveHint=True)
    (offer,) = convert([tool({}, annotations=hints)], "mcp")
    assert offer["annotations"] == {"readOnlyHint": False, "idempotentHint": False, "destructiveHint": True}
    converted = convert([tool({}, output_schema={"type": "array"})], "mcp")
    assert "outputSchema" not in converted[0]
    assert [note.path for note in converted.notes] == ["output_schema"]


A_STRING, CLOSED = {"a": {"type": "string"}}, {"additionalProperties": False}
BRANCHES = [
    {"properties": {**A_STRING, "c": {}}, "required": ["a", "c"], **CLOSED},
    {"properties": {"b": {"type": "string"}, "c": {}}, "required": ["c"], **CLOSED},
]
MERGED = {"properties": {**A_STRING, "c": {}, "b": {"type": "string"}}, "required": ["c"], **CLOSED}
X = {"x": {"required": ["a"]}}


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        (
            {"anyOf": [{"properties": A_STRING, "required": ["a"]}, {"required": ["b"]}]},
            {"properties": {"a": {"anyOf": [{"type": "string"}, {}]}}},
        ),
        ({"oneOf": BRANCHES}, MERGED),
        (
            {"allOf": [{"$ref": "#/definitions/x"}, {"required": ["b"]}], "definitions": X},
            {"properties": {}, "required": ["a", "b"], "$defs": X},
        ),
        ({"anyOf": [{"type": "null"}, {"required": ["a"]}]}, {"properties": {}, "required": ["a"]}),
        ({"not": {"required": ["a"]}, "enum": [{}], "const": {}}, {"properties": {}}),
    ],
    ids=[
        "what one branch says of a property, another need not",
        "closed branches know each other's properties not to be there",
        "all of them hold",
        "null is no object",
        "what excludes is left to the fleet",
    ],
)
def test_alternatives_at_the_top_become_one_object(schema: dict[str, Any], shown: dict[str, Any]) -> None:
    """OpenAI and Anthropic refuse them; nothing that was allowed is forbidden."""
    assert parameters(schema) == {"type": "object", **shown}
    assert parameters(schema, "anthropic") == {"type": "object", **shown}


def test_a_model_reads_what_the_schema_can_no_longer_say() -> None:
    """In the tool's description, if it is short and stands for itself."""
    (offer,) = convert([tool({"oneOf": [{"required": ["a"]}]}, description="Does it.")], "anthropic")
    assert offer["description"] == 'Does it.\nThe arguments must also fit: {"oneOf": [{"required": ["a"]}]}'


def test_a_long_description_is_cut_where_there_is_a_limit() -> None:
    """And that is noted; the newer formats have none."""
    long = ToolDefinition(name="m.t", description="x" * 5000)
    converted = convert([long], "openai_chat")
    assert converted[0]["function"]["description"] == "x" * 1023 + "…"
    assert converted.notes == (Note("m.t", "description", "dropped", "has 5000 characters, of which 1024 are shown"),)
    assert convert([long], "openai_responses")[0]["description"] == "x" * 5000


def test_too_many_tools_are_noted() -> None:
    """The list stays whole: which to leave out is not for us to say."""
    many = [ToolDefinition(name=f"m.t{number}") for number in range(129)]
    for provider in DIALECTS:
        converted = convert(many, provider)
        noted = [note for note in converted.notes if note.path == "tools"]
        assert len(noted) == (0 if provider in {"anthropic", "mcp"} else 1)
        assert len(converted) == (1 if provider == "gemini" else 129)
        assert convert(many[:128], provider).notes == ()


def test_the_order_is_by_name_and_the_text_is_the_same_each_time() -> None:
    """However the tools came; and what is made of definitions is made of copies."""
    before, tools = json.dumps(TROUBLE), [tool(TROUBLE), SEARCH, tool({}, name="a.b")]
    for provider in DIALECTS:
        forwards, backwards = (convert(some, provider, strict=True) for some in (tools, reversed(tools)))
        assert json.dumps(forwards) == json.dumps(backwards)
        assert forwards.notes == backwards.notes
        forwards.clear()
    assert json.dumps(TROUBLE) == before


@pytest.mark.parametrize(
    "ask",
    [
        lambda name: convert([], name),
        lambda name: to_call({}, name, []),
        lambda name: from_result(ToolResult.ok("m.t", 1), name, "1"),
    ],
    ids=["offers", "calls", "results"],
)
def test_an_unknown_format_is_one_clear_error(ask: Callable[[Any], object]) -> None:
    """It names those that exist."""
    with pytest.raises(ValueError, match="no format 'cohere'; there are: openai_chat, openai_responses, anthropic"):
        ask("cohere")


A_LIST = {"type": "array", "items": [{"type": "string"}], "additionalItems": {"type": "null"}}
DEPENDENCIES = {"type": "object", "dependencies": {"a": ["b"], "b": {"required": ["c"]}}, "if": {}}
DEPENDENT = {"type": "object", "dependentRequired": {"a": ["b"]}, "dependentSchemas": {"b": {"required": ["c"]}}}
BESIDE = {"$ref": "#/definitions/a b", "minLength": 9, "description": "words"}


@pytest.mark.parametrize(
    ("draft", "schema", "shown"),
    [
        (7, A_LIST, {"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "null"}}),
        (7, BESIDE, {"$ref": "#/$defs/definition", "description": "words"}),
        (4, {"const": 1, "minimum": 1, "exclusiveMinimum": True}, {"exclusiveMinimum": 1}),
        (6, DEPENDENCIES, DEPENDENT),
    ],
    ids=["lists of items", "nothing beside a reference counted", "what was not yet invented", "dependencies"],
)
def test_older_drafts_are_said_in_the_present_one(draft: int, schema: dict[str, Any], shown: dict[str, Any]) -> None:
    """Our validator follows `$schema`; a provider, which does not see it, must not read another thing."""
    uri = f"http://json-schema.org/draft-0{draft}/schema#"
    whole = {"$schema": uri, "properties": {"a": schema}, "definitions": {"a b": {"type": "string"}}}
    assert parameters(whole)["properties"]["a"] == shown
