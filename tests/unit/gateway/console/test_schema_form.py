"""Forms made of tools' schemas, and arguments made of forms."""

from typing import Any

import pytest

from toolfleet_gateway.console.rendering.schema_form import MOST_FIELDS, arguments_of, fields_of_schema, typed
from toolfleet_gateway.http.problems import Problem

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["name", "count"],
    "properties": {
        "name": {"type": "string", "maxLength": 50},
        "text": {"type": "string", "maxLength": 5_000},
        "count": {"type": "integer"},
        "ratio": {"type": "number", "default": 0.5},
        "is_dry": {"type": "boolean"},
        "size": {"enum": ["s", "m", 3]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "odd": True,
    },
}
ARGUMENTS: dict[str, Any] = {
    "name": 'Ada "<b>"',
    "text": "one\ntwo",
    "count": 7,
    "ratio": 0.25,
    "is_dry": False,
    "size": 3,
    "tags": ["a"],
    "odd": {"x": None},
}


def test_each_simple_type_has_a_field_of_its_own() -> None:
    """What is anything else is typed as JSON."""
    fields = fields_of_schema(SCHEMA)

    assert fields is not None
    assert {field.name: field.kind for field in fields} == {
        "name": "text",
        "text": "lines",
        "count": "integer",
        "ratio": "number",
        "is_dry": "boolean",
        "size": "choice",
        "tags": "json",
        "odd": "json",
    }
    assert [field.name for field in fields if field.is_required] == ["name", "count"]
    assert next(field.usual for field in fields if field.name == "ratio") == "0.5"


def test_what_a_form_says_are_the_arguments_again() -> None:
    """Each value comes back as it was, of each type."""
    fields = fields_of_schema(SCHEMA)

    assert arguments_of(fields, typed(ARGUMENTS, fields)) == ARGUMENTS
    assert arguments_of(None, typed(ARGUMENTS, None)) == ARGUMENTS


def test_what_is_empty_is_left_out() -> None:
    """A required text may be empty."""
    assert arguments_of(fields_of_schema(SCHEMA), {"argument.count": "1", "argument.tags": ""}) == {
        "name": "",
        "count": 1,
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [("count", "one"), ("ratio", "NaN"), ("is_dry", "maybe"), ("size", "xl"), ("tags", "[1,"), ("odd", "\ud800")],
)
def test_what_cannot_be_read_is_said_with_its_name(name: str, text: str) -> None:
    """One clear sentence, before anything is called."""
    with pytest.raises(Problem, match=name):
        arguments_of(fields_of_schema(SCHEMA), {f"argument.{name}": text})


@pytest.mark.parametrize("text", ["[]", "1", "{", '{"a": NaN}'])
def test_all_arguments_together_are_an_object(text: str) -> None:
    """Nothing else is sent."""
    with pytest.raises(Problem, match="JSON object"):
        arguments_of(None, {"arguments": text})


@pytest.mark.parametrize("properties", [None, [], {f"p{number}": {} for number in range(MOST_FIELDS + 1)}])
def test_a_schema_without_fields_is_typed_as_json(properties: object) -> None:
    """Also one with more arguments than a form should have."""
    assert fields_of_schema({"properties": properties}) is None
