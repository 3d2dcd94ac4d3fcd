"""Tools that a provider enforces to the letter, and the way back from their nulls."""

import json
from typing import Any

import pytest

from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.formats import convert, to_call
from toolfleet_registry.formats.dialects import DIALECTS

NODE = {"type": "object", "properties": {"value": {"type": "string"}, "next": {"$ref": "#/$defs/node"}}}
PLAIN = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "minLength": 1, "pattern": "^a"},
        "limit": {"type": "integer", "default": 10, "maximum": 50},
        "order": {"enum": ["date", "rank"]},
        "only": {"const": "x"},
        "maybe": {"type": ["string", "null"]},
        "where": {"anyOf": [{"$ref": "#/$defs/place"}, {"type": "string"}]},
        "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        "place": {"$ref": "#/$defs/place", "description": "lost beside a reference"},
    },
    "required": ["query", "where"],
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "zip": {"type": "string"}},
            "required": ["city"],
        }
    },
}


def tool(schema: dict[str, Any], name: str = "m.t") -> ToolDefinition:
    return ToolDefinition(name=name, input_schema=schema)


def called(arguments: dict[str, Any], schema: dict[str, Any]) -> Any:
    call = {"function": {"name": "m__t", "arguments": json.dumps(arguments)}}
    return to_call(call, "openai_chat", [tool(schema)]).arguments


def test_openai_wants_every_property_and_null_for_nothing() -> None:
    """Closed objects; limits that are not taken are described."""
    (offer,) = convert([tool(PLAIN)], "openai_chat", strict=True)
    assert offer["function"]["strict"] is True
    schema = offer["function"]["parameters"]
    assert schema["required"] == list(PLAIN["properties"])
    assert schema["additionalProperties"] is False
    assert schema["properties"] == {
        "query": {"type": "string", "pattern": "^a", "description": "(minLength: 1)"},
        "limit": {"type": ["integer", "null"], "maximum": 50, "description": "(default: 10)"},
        "order": {"type": ["string", "null"], "enum": ["date", "rank", None]},
        "only": {"type": ["string", "null"], "enum": ["x", None]},
        "maybe": {"type": ["string", "null"]},
        "where": {"anyOf": [{"$ref": "#/$defs/place"}, {"type": "string"}]},
        "tags": {"type": ["array", "null"], "items": {"type": "string"}, "description": "(uniqueItems: true)"},
        "place": {"anyOf": [{"$ref": "#/$defs/place"}, {"type": "null"}]},
    }
    assert schema["$defs"]["place"]["required"] == ["city", "zip"]
    assert schema["$defs"]["place"]["properties"]["zip"] == {"type": ["string", "null"]}


def test_the_nulls_do_not_come_back() -> None:
    """Only where null is a value itself: an argument that is left out stays out, at any depth."""
    nothing = dict.fromkeys(("limit", "order", "only", "tags", "place"))
    spoken = {"query": "a", "where": {"city": "x", "zip": None}, "maybe": None, **nothing}
    assert called(spoken, PLAIN) == {"query": "a", "where": {"city": "x"}, "maybe": None}
    full = {"query": "a", "where": "there", "maybe": "b", "limit": 1, "place": {"city": "y", "zip": "z"}}
    assert called(full, PLAIN) == full


def test_a_null_that_is_wrong_stays_for_the_judge() -> None:
    """Of a required argument, in a list, of one that nobody named, and of a tool that cannot be strict."""
    wrong = {"query": None, "where": "x", "tags": [None], "other": None}
    assert called(wrong, PLAIN) == wrong
    assert called({"a": None}, {"properties": {"a": {"type": "string"}}, "additionalProperties": {}}) == {"a": None}


def test_the_right_alternative_is_found() -> None:
    """The first one that takes the value without its nulls."""
    cat = {"type": "object", "properties": {"kind": {"const": "cat"}, "name": {"type": ["string", "null"]}}}
    dog = {"type": "object", "properties": {"kind": {"const": "dog"}, "name": {"type": "string"}}, "required": ["kind"]}
    schema = {"properties": {"pet": {"anyOf": [{**cat, "required": ["kind"]}, dog]}}, "required": ["pet"]}
    assert called({"pet": {"kind": "cat", "name": None}}, schema) == {"pet": {"kind": "cat", "name": None}}
    assert called({"pet": {"kind": "dog", "name": None}}, schema) == {"pet": {"kind": "dog"}}
    assert called({"pet": {"kind": "owl", "name": None}}, schema) == {"pet": {"kind": "owl", "name": None}}


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"properties": {"a": {}}}, "/properties/a does not say of what type it is"),
        ({"properties": {"a": {"type": "object"}}}, "/properties/a takes properties that it does not name"),
        ({"additionalProperties": {"type": "string"}}, "the top takes properties that it does not name"),
        ({"patternProperties": {"a": {}}}, "the top has 'patternProperties'"),
        ({"properties": {"a": {"type": "array"}}}, "/properties/a/items does not say of what type it is"),
        ({"properties": {"a": {"allOf": [{"type": "string"}, {"enum": ["x"]}]}}}, "/properties/a has 'allOf'"),
        ({"properties": {"a": {"enum": [[1]]}}}, "/properties/a lists values that are no plain ones"),
        ({"properties": {}, "required": ["a"]}, "the top requires properties that it does not name"),
        ({"if": {}, "then": {}}, "the top has 'if'"),
        (
            {"properties": {"a": {"type": ["string", "null"], "default": "x"}}},
            "/properties/a means another thing by null than by nothing",
        ),
        ({"properties": {"a": {"enum": list(range(1001))}}}, "the top lists 1001 values"),
        ({"properties": {str(n): {"type": "null"} for n in range(5001)}}, "the top has 5001 properties"),
    ],
)
def test_what_cannot_be_strict_is_offered_as_it_is(schema: dict[str, Any], why: str) -> None:
    """And a note says why."""
    converted = convert([tool(schema)], "openai_responses", strict=True)
    assert converted[0]["strict"] is False
    assert converted[0]["parameters"] == convert([tool(schema)], "openai_responses")[0]["parameters"]
    assert [note.why for note in converted.notes if note.path == "strict"] == [f"cannot be strict: {why}"]


def test_what_refers_to_itself_can_be_strict_for_openai_only() -> None:
    """Anthropic makes a grammar of it that has an end."""
    schema = {"properties": {"node": {"$ref": "#/$defs/node"}}, "required": ["node"], "$defs": {"node": NODE}}
    assert "strict" in convert([tool(schema)], "openai_chat", strict=True)[0]["function"]
    converted = convert([tool(schema)], "anthropic", strict=True)
    assert "strict" not in converted[0]
    assert converted.notes[-1].why == "cannot be strict: /$defs refers to itself"
    spoken = {"node": {"value": "x", "next": {"value": None, "next": None}}}
    assert called(spoken, schema) == {"node": {"value": "x", "next": {}}}


def test_anthropic_lets_arguments_be_left_out() -> None:
    """And takes defaults, but no limits."""
    (offer,) = convert([tool(PLAIN)], "anthropic", strict=True)
    assert offer["strict"] is True
    assert offer["input_schema"]["required"] == ["query", "where"]
    assert offer["input_schema"]["properties"]["limit"] == {
        "type": "integer",
        "default": 10,
        "description": "(maximum: 50)",
    }


def test_anthropics_limits_are_kept() -> None:
    """20 strict tools, 24 optional parameters, 16 of several types, in one request; first come by name."""
    empty = [tool({}, f"m.t{number:02}") for number in range(22)]
    assert sum("strict" in offer for offer in convert(empty, "anthropic", strict=True)) == 20
    optional = [tool({"properties": {str(n): {"type": "string"} for n in range(10)}}, f"m.t{n}") for n in range(3)]
    converted = convert(optional, "anthropic", strict=True)
    assert ["strict" in offer for offer in converted] == [True, True, False]
    assert [note.tool for note in converted.notes if note.path == "strict"] == ["m.t2"]
    union = {"properties": {str(n): {"type": ["string", "null"]} for n in range(17)}}
    wide = tool({**union, "required": list(union["properties"])})
    assert "strict" not in convert([wide], "anthropic", strict=True)[0]


@pytest.mark.parametrize("provider", ["gemini", "mcp"])
def test_other_providers_have_no_strict_tools(provider: Any) -> None:
    """Which is noted, once."""
    converted = convert([tool({})], provider, strict=True)
    assert [(note.path, note.kind) for note in converted.notes] == [("strict", "refused")]
    assert list(converted) == list(convert([tool({})], provider))


def test_deep_schemas_are_not_strict() -> None:
    """OpenAI takes ten levels."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(11):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    assert "strict" not in convert([tool(schema)], "openai_chat", strict=True)[0]["function"]
    assert "strict" in convert([tool(schema["properties"]["a"])], "openai_chat", strict=True)[0]["function"]


def test_hostile_schemas_and_values_do_not_hang() -> None:
    """Definitions that double at each step, and alternatives in each other as deep as a value may be."""
    doubling = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    definitions = {**doubling, "d40": {"anyOf": [{"$ref": "#"}] * 9}, "self": {"$ref": "#/$defs/self"}}
    first = {"$ref": "#/$defs/d0"}
    tops: list[dict[str, Any]] = [{"anyOf": [first] * 9}, {"properties": {"a": first, "b": {"$ref": "#/$defs/self"}}}]
    for top in tops:
        for provider in DIALECTS:
            assert len(convert([tool({**top, "$defs": definitions})], provider, strict=True)) == 1
        assert called({"a": None, "b": [None]}, {**top, "$defs": definitions}).keys() == {"a", "b"}
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/any"}, "x": {"type": "string"}}}
    tree = {"properties": {"top": {"$ref": "#/$defs/any"}}, "$defs": {"any": {"anyOf": [node] * 4}}}
    value: dict[str, Any] = {"next": {"next": 5, "x": None}, "x": None}
    for _ in range(80):
        value = {"next": value, "x": None}
    assert called({"top": value}, tree).keys() == {"top"}
