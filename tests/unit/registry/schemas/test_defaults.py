"""What a call's arguments become: defaults are filled in, and numbers that were written as text are taken where the operator says so."""

import copy
from typing import Any

import pytest

from support.there import there
from toolfleet_registry.contracts import ToolDefinition, ToolParameter
from toolfleet_registry.schemas.validation import checked


def tool(**schema: Any) -> ToolDefinition:
    return ToolDefinition(name="owls.count", input_schema=schema)


def filled(schema: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any] | None:
    """The arguments as they are published; those that were given stay as they are."""
    before = copy.deepcopy(arguments)
    found = checked(tool(**schema), arguments)
    assert arguments == before
    return found.arguments


def test_a_default_stands_where_nothing_was_said() -> None:
    """What was said stays, also if it is null."""
    schema = {"properties": {"limit": {"default": 10}, "query": {"type": "string"}}}

    assert filled(schema, {"query": "owls"}) == {"query": "owls", "limit": 10}
    assert filled(schema, {"limit": 3}) == {"limit": 3}
    assert filled(schema, {"limit": None}) == {"limit": None}


@pytest.mark.parametrize(
    ("schema", "arguments", "expected"),
    [
        # in an object and in the objects of a list, as far as they are there
        ({"properties": {"a": {"properties": {"b": {"default": 1}}}}}, {"a": {}}, {"a": {"b": 1}}),
        ({"properties": {"a": {"properties": {"b": {"default": 1}}}}}, {}, {}),
        ({"properties": {"a": {"items": {"properties": {"b": {"default": 1}}}}}}, {"a": [{}, 5, {"b": 2}]}, {"a": [{"b": 1}, 5, {"b": 2}]}),
        ({"properties": {"a": {"prefixItems": [{}, {"properties": {"b": {"default": 1}}}]}}}, {"a": [{}, {}]}, {"a": [{}, {"b": 1}]}),
        ({"additionalProperties": {"properties": {"b": {"default": 1}}}}, {"z": {}}, {"z": {"b": 1}}),
        # through what surely holds as well
        ({"$defs": {"d": {"default": 1}}, "properties": {"a": {"$ref": "#/$defs/d"}}}, {}, {"a": 1}),
        ({"$defs": {"d": {"default": 1}}, "properties": {"a": {"$ref": "#/$defs/d", "default": 2}}}, {}, {"a": 2}),
        ({"allOf": [{"properties": {"a": {"default": 1}}}, {"properties": {"b": {"default": 2}}}]}, {}, {"a": 1, "b": 2}),
        # a default of two kinds is none, and so is one that holds only perhaps
        ({"allOf": [{"properties": {"a": {"default": 1}}}, {"properties": {"a": {"default": True}}}]}, {}, {}),
        ({"anyOf": [{"properties": {"a": {"default": 1}}}, {"properties": {"a": {"default": 1}}}]}, {}, {}),
        ({"if": {"required": ["z"]}, "then": {"properties": {"a": {"default": 1}}}}, {"z": 1}, {"z": 1}),
        # an object that is itself a default is taken as it is
        ({"properties": {"a": {"default": {}, "properties": {"b": {"default": 1}}}}}, {}, {"a": {}}),
        # one that is required is there then
        ({"properties": {"a": {"default": 1}}, "required": ["a"]}, {}, {"a": 1}),
    ],
)  # fmt: skip
def test_where_defaults_are_found(schema: dict[str, Any], arguments: dict[str, Any], expected: dict[str, Any]) -> None:
    """Along members and items, references and what holds together."""
    assert filled(schema, arguments) == expected


@pytest.mark.parametrize(
    ("schema", "arguments", "expected"),
    [
        # of another type than it may be: what people write for "nothing"
        ({"properties": {"a": {"type": "string", "default": None}, "b": {"default": 2}}}, {}, {"b": 2}),
        # not beside what was said
        ({"properties": {"a": {"default": 1}, "b": {"default": 2}}, "maxProperties": 2}, {"c": 1}, {"c": 1, "a": 1}),
        ({"properties": {"a": {"default": 1}}, "not": {"required": ["a", "b"]}}, {"b": 1}, {"b": 1}),
        # beside one that is required and right
        ({"properties": {"a": {"default": 1}, "b": {"type": "string", "default": 5}}, "required": ["a"]}, {}, {"a": 1}),
    ],
)
def test_a_default_that_does_not_fit_is_left_out(
    schema: dict[str, Any], arguments: dict[str, Any], expected: dict[str, Any]
) -> None:
    """A call that is right stays right."""
    assert filled(schema, arguments) == expected


def test_no_default_helps_a_call_that_is_wrong() -> None:
    """The fault is about what was said."""
    found = checked(tool(properties={"a": {"default": 1}, "b": {"type": "string"}}), {"b": 5})

    assert found.fault == "arguments.b must be a string, not an integer."


def test_a_default_is_new_for_each_call() -> None:
    """Whoever changes one call's arguments changes neither the tool nor another call."""
    definition = tool(properties={"a": {"default": {"list": []}}})
    first = there(checked(definition, {}).arguments)
    first["a"]["list"].append("mine")

    assert checked(definition, {}).arguments == {"a": {"list": []}}
    assert definition.input_schema == {"properties": {"a": {"default": {"list": []}}}}


def test_a_definition_that_holds_itself_is_filled_where_there_is_something() -> None:
    """Not without end."""
    node = {"properties": {"next": {"$ref": "#/$defs/node", "default": {}}, "n": {"default": 0}}}
    schema = {"$defs": {"node": node}, "properties": {"list": {"$ref": "#/$defs/node"}}}

    assert filled(schema, {"list": {"next": {}}}) == {"list": {"next": {"next": {}, "n": 0}, "n": 0}}


def test_a_small_call_does_not_become_a_huge_one() -> None:
    """Where there would be too much to fill in, nothing is."""
    item = {"properties": {f"d{n}": {"default": "y" * 1000} for n in range(100)}}
    calls: dict[str, Any] = {"l": [{}] * 1000}

    assert filled({"properties": {"l": {"items": item}}}, calls) == calls


def taken(schema: Any, value: Any, **more: Any) -> Any:
    """What is published for a value; `None` if the call is refused."""
    definition = ToolDefinition(name="owls.count", input_schema={"properties": {"x": schema}, **more})
    found = checked(definition, {"x": value}, coerces_numbers=True).arguments
    return None if found is None else found["x"]


def test_nothing_is_coerced_unless_the_module_is_named() -> None:
    """By default a text is a text."""
    tool = ToolDefinition(name="owls.count", parameters=[ToolParameter(name="n", type="integer")])

    assert checked(tool, {"n": "5"}).fault == "arguments.n must be an integer, not a string."
    assert checked(tool, {"n": "5"}, coerces_numbers=True).arguments == {"n": 5}


@pytest.mark.parametrize(
    ("kind", "text", "number"),
    [
        ("integer", "5", 5),
        ("integer", "-17", -17),
        ("integer", "9007199254740993", 9007199254740993),
        ("number", "0.5", 0.5),
        ("number", "1e3", 1000.0),
        ("number", "7", 7),
    ],
)
def test_what_is_clearly_a_number_becomes_one(kind: str, text: str, number: float) -> None:
    """An integer stays exact."""
    found = taken({"type": kind}, text)

    assert found == number
    assert type(found) is type(number)


@pytest.mark.parametrize(
    "text", ["", " 5", "5 ", "05", "+5", "5.0", "1,000", "0x10", "\u0665", "five", "1e3", "NaN", "9" * 41]
)
def test_what_is_not_clearly_an_integer_is_refused(text: str) -> None:
    """A guess could be wrong."""
    assert taken({"type": "integer"}, text) is None


@pytest.mark.parametrize("text", ["Infinity", "1e999", ".5", "5.", "--5"])
def test_what_is_not_clearly_a_number_is_refused(text: str) -> None:
    """Nor does it overflow."""
    assert taken({"type": "number"}, text) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": ["integer", "string"]},
        {"type": "string"},
        {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        {},
        {"enum": ["5", "6"]},
        {"allOf": [{"type": "string"}, {}]},
    ],
)
def test_a_text_that_is_allowed_stays_a_text(schema: Any) -> None:
    """Only where no text may stand it can be meant for a number."""
    assert taken(schema, "5") == "5"


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ({"type": ["integer", "null"]}, "5", 5),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "5", 5),
        ({"$ref": "#/$defs/n"}, "5", 5),
        ({"allOf": [{"type": "number"}, {"minimum": 1}]}, "1.5", 1.5),
        ({"items": {"type": "integer"}}, ["1", 2], [1, 2]),
        ({"properties": {"y": {"type": "integer"}}}, {"y": "1", "z": "1"}, {"y": 1, "z": "1"}),
    ],
)
def test_where_numbers_are_wanted(schema: Any, value: Any, expected: Any) -> None:
    """Along members, items and references."""
    assert taken(schema, value, **{"$defs": {"n": {"type": "integer"}}}) == expected


def test_a_number_that_does_not_fit_is_refused_without_saying_it() -> None:
    """As any other one."""
    tool = ToolDefinition(name="owls.count", input_schema={"properties": {"x": {"type": "integer", "maximum": 9}}})

    assert checked(tool, {"x": "73519"}, coerces_numbers=True).fault == "arguments.x must be at most 9."


def test_what_the_caller_gave_stays_as_it_is() -> None:
    """The number stands in a copy."""
    tool = ToolDefinition(name="owls.count", parameters=[ToolParameter(name="n", type="int")])
    arguments = {"n": "5"}
    checked(tool, arguments, coerces_numbers=True)

    assert arguments == {"n": "5"}
