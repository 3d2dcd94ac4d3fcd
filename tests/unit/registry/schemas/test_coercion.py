"""Numbers that were written as text, in modules whose operator takes them."""

from typing import Any

import pytest

from toolfleet_registry.contracts import ToolDefinition, ToolParameter
from toolfleet_registry.schemas.validation import checked


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
