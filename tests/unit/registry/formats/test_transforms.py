"""A call that was valid before is valid after: for any schema, in every format."""

import json
from typing import Any

from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from support.schemas.examples import examples
from support.schemas.json_schemas import (
    ARGUMENTS,
    from_gemini,
    input_schemas,
    is_valid,
    plain_objects,
    strict_values,
    tool_values,
)
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.formats import Format, convert, to_call
from toolfleet_registry.formats.dialects import DIALECTS, legal_property
from toolfleet_registry.schemas.definition import input_schema

ROUNDS = settings(
    max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


def shown(tool: ToolDefinition, provider: Format, **how: bool) -> dict[str, Any]:
    """The schema that a provider is given, as JSON Schema."""
    (offer,) = convert([tool], provider, **how)
    if provider == "gemini":
        return from_gemini(offer["functionDeclarations"][0].get("parameters", {"type": "OBJECT"}))
    if provider == "openai_chat":
        offer = offer["function"]
    return next(offer[key] for key in ("parameters", "input_schema", "inputSchema") if key in offer)


def spoken(value: Any, provider: Format, schema: dict[str, Any]) -> Any:
    """Arguments as the model would write them, under the names that it is shown."""
    legal = DIALECTS[provider].property_name
    if isinstance(value, dict):
        shown_as = {name: legal_property(name, legal) if legal else name for name in value}
        text = json.dumps(schema)
        return {
            shown_as[name] if f'"{shown_as[name]}"' in text else name: spoken(inner, provider, schema)
            for name, inner in value.items()
        }
    return [spoken(inner, provider, schema) for inner in value] if isinstance(value, list) else value


def answer(tool: ToolDefinition, provider: Format, arguments: Any) -> dict[str, Any]:
    key = {"anthropic": "input", "gemini": "args"}.get(provider, "arguments")
    call = {"name": tool.name, key: arguments}
    return {"function": call} if provider == "openai_chat" else call


@given(schema=input_schemas(), arguments=ARGUMENTS)
@ROUNDS
@example(schema={"anyOf": [{"properties": {"a": {"type": "string"}}, "required": ["a"]}, {}]}, arguments={"a": 1})
@example(schema={"not": {"properties": {"a": {"$ref": "#/$defs/one"}}}, "$defs": {"one": {"enum": []}}}, arguments={})
@example(schema={"properties": {"a": {"prefixItems": [{"type": "string"}], "items": False}}}, arguments={"a": ["x"]})
@example(schema={"$ref": "#/$defs/one", "$defs": {"one": {"required": ["c d"]}}}, arguments={"c d": 1})
def test_a_valid_call_stays_valid(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    """Whatever the schema is made of: each provider's may allow more, never less."""
    stays_valid(ToolDefinition(name="m.t", input_schema=schema), arguments)


def stays_valid(tool: ToolDefinition, arguments: dict[str, Any]) -> None:
    assume(is_valid(arguments, input_schema(tool)))
    for provider in DIALECTS:
        schema = shown(tool, provider)
        assert is_valid(spoken(arguments, provider, schema), schema), provider


@given(schema=plain_objects(), one=plain_objects(), arguments=ARGUMENTS)
@ROUNDS
def test_a_valid_call_of_an_ordinary_tool_stays_valid(
    schema: dict[str, Any], one: dict[str, Any], arguments: dict[str, Any]
) -> None:
    """The same for schemas as tools mostly have them."""
    stays_valid(ToolDefinition(name="m.t", input_schema={**schema, "$defs": {"one": one}}), arguments)


@given(schema=input_schemas(), arguments=ARGUMENTS)
@ROUNDS
def test_a_call_comes_back_as_it_was_meant(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    """Under the names that the tool gives its properties, from every provider. Valid arguments are given on as they are."""
    tool = ToolDefinition(name="m.t", input_schema=schema)
    assume(is_valid(arguments, input_schema(tool)))
    for provider in DIALECTS:
        call = to_call(answer(tool, provider, spoken(arguments, provider, shown(tool, provider))), provider, [tool])
        assert call.tool_name == "m.t", provider
        assert call.arguments == arguments, provider


def loosened(schema: Any) -> Any:
    """Without what a strict schema only describes."""
    if isinstance(schema, list):
        return [loosened(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    return {"anyOf" if key == "oneOf" else key: loosened(inner) for key, inner in schema.items() if key != "minLength"}


@given(schema=plain_objects(), one=plain_objects(), data=st.data())
@ROUNDS
def test_what_a_strict_schema_allows_the_tool_allows(
    schema: dict[str, Any], one: dict[str, Any], data: st.DataObject
) -> None:
    """Without the nulls that stand for what is left out; limits that are only described are the catalog's."""
    tool = ToolDefinition(name="m.t", input_schema={**schema, "$defs": {"one": one}})
    (offer,) = convert([tool], "openai_chat", strict=True)
    assume(offer["function"].get("strict"))
    strict = offer["function"]["parameters"]
    full = data.draw(strict_values(strict, strict.get("$defs", {})))
    assert is_valid(full, strict)
    call = to_call(answer(tool, "openai_chat", full), "openai_chat", [tool])
    assert is_valid(call.arguments, loosened(input_schema(tool)))


def filled(value: Any, schema: dict[str, Any]) -> Any:
    """Arguments as a strict schema wants them: null for what is left out."""
    if isinstance(value, list):
        return [filled(inner, schema["items"]) for inner in value]
    if not isinstance(value, dict):
        return value
    return {name: filled(value.get(name), inner) for name, inner in schema["properties"].items()}


def same(back: Any, value: Any) -> bool:
    """Equal, but for nulls where null and nothing are one to the tool."""
    if isinstance(back, dict) and isinstance(value, dict):
        return value.keys() <= back.keys() and all(
            same(inner, value[name]) if name in value else inner is None for name, inner in back.items()
        )
    if isinstance(back, list) and isinstance(value, list):
        return len(back) == len(value) and all(map(same, back, value))
    return bool(back == value)


@given(schema=plain_objects(only=("string", "integer", "enum", "nullable", "object", "array")), data=st.data())
@ROUNDS
def test_what_the_tool_allows_a_strict_schema_can_say(schema: dict[str, Any], data: st.DataObject) -> None:
    """Every call that names only what the schema names, and it comes back the same."""
    tool = ToolDefinition(name="m.t", input_schema=schema)
    arguments = data.draw(tool_values(schema))
    assert is_valid(arguments, schema)
    (offer,) = convert([tool], "openai_chat", strict=True)
    assert offer["function"]["strict"]
    full = filled(arguments, schema)
    assert is_valid(full, offer["function"]["parameters"])
    assert same(to_call(answer(tool, "openai_chat", full), "openai_chat", [tool]).arguments, arguments)
