"""What is said of wrong arguments: short, of use, and never what they are."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.schemas.examples import examples
from support.schemas.json_schemas import ARGUMENTS
from support.there import there
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.schemas.checker import MOST_FAULTS
from toolfleet_registry.schemas.validation import checked, result_fault, schema_fault

SECRET = "s3cret-9f"
LONGEST = 1000


def fault_of(schema: dict[str, Any], value: Any) -> str | None:
    return checked(ToolDefinition(name="owls.count", input_schema=schema), {"x": value}).fault


def about(schema: Any, value: Any) -> str:
    """The fault of a value that does not fit."""
    return there(fault_of({"properties": {"x": schema}}, value))


@pytest.mark.parametrize(
    ("schema", "value", "fault"),
    [
        ({"type": ["string", "null"]}, 1, "arguments.x must be a string or null, not an integer."),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "5", "arguments.x must be an integer or null, not a string."),
        ({"const": "yes"}, "no", 'arguments.x must be "yes".'),
        ({"exclusiveMinimum": 3}, 3, "arguments.x must be more than 3."),
        ({"multipleOf": 5}, 7, "arguments.x must be a multiple of 5."),
        ({"maxItems": 1}, [1, 2], "arguments.x must have at most 1 item."),
        ({"minProperties": 2}, {}, "arguments.x must have at least 2 members."),
        ({"uniqueItems": True}, [1, 1], "arguments.x must not have two equal items."),
        ({"contains": {"type": "string"}}, [1], "arguments.x must have items of the kind, and as many, as its schema says."),
        ({"not": {"type": "integer"}}, 1, "arguments.x must not be what its schema excludes."),
        ({"prefixItems": [{}], "items": False}, [1, 2], "arguments.x[1] is not allowed."),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, "arguments.x.b is missing."),
        ({"pattern": "^[a-z]+$"}, "A", "arguments.x must match the pattern '^[a-z]+$'."),
        ({"pattern": r"^(a|a)+\1x"}, "a" * 100, "arguments.x must match a pattern, for which it is too long or too repetitive."),
        ({"additionalProperties": False}, {"a": 1}, "arguments.x must not have a name that the schema does not allow."),
        (
            {"properties": {"a": {}}, "unevaluatedProperties": False},
            {"b": 1, "c": 2},
            "arguments.x must not have 2 names that the schema does not have; the schema has 'a'.",
        ),
        (
            {"properties": {"colour": {}}, "additionalProperties": False},
            {"color": 1, SECRET: 2},  # a slip, and what may be data
            "arguments.x must not have 'color' (did you mean 'colour'?) and 1 more; the schema has 'colour'.",
        ),
        (
            {"propertyNames": {"pattern": "^[a-z]+$"}},
            {"A": 1},
            "arguments.x must have other names: each must match the pattern '^[a-z]+$'.",
        ),
        (
            {"additionalProperties": {"type": "integer"}},
            {"first": 1, SECRET: "x"},
            "arguments.x.<name 2> must be an integer, not a string.",
        ),
        ({"oneOf": [{"minimum": 1}, {"minimum": 0}]}, 5, "arguments.x fits several of the alternatives in its schema, and must fit exactly one."),
        (
            {"anyOf": [{"type": "object", "properties": {"kind": {"const": "a"}, "n": {"type": "integer"}}, "required": ["n"]}, {"type": "string"}]},
            {"kind": "a", "n": "1"},
            "arguments.x.n must be an integer, not a string.",
        ),
        ({"enum": list(range(30))}, -1, "arguments.x must be one of 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 20 more."),
        ({"minimum": 10**400}, 1, "arguments.x must be at least 1" + "0" * 59 + "…."),
    ],
)  # fmt: skip
def test_every_kind_of_fault_has_its_words(schema: Any, value: Any, fault: str) -> None:
    """Where, and what the schema asks for there."""
    assert about(schema, value) == fault


def test_there_are_few_faults_and_the_rest_is_counted() -> None:
    """A model mends a few at a time."""
    fault = about({"items": {"type": "integer"}}, ["x"] * 10)

    assert fault.count("must be an integer") == MOST_FAULTS
    assert fault.endswith("And there are 7 more faults.")


def test_a_text_stays_short_whatever_the_schema_holds() -> None:
    """Long names, patterns, values and ways are shortened."""
    name, value = "n" * 5000, 1
    schema: dict[str, Any] = {"type": "string", "pattern": "p" * 3000, "enum": ["v" * 3000] * 20}
    for _ in range(20):
        schema = {"properties": {name: schema}, "required": [f"{name}{n}" for n in range(9)]}
        value = {name: value}  # type: ignore[assignment] # deeper each time

    assert len(about(schema, value)) <= LONGEST


def test_what_is_wrong_in_a_long_list_is_found() -> None:
    """Also behind very many items that are right, and where there are alternatives."""
    item = {"anyOf": [{"type": "integer"}, {"type": "null"}]}

    assert (
        about({"items": item}, [1] * 19_000 + [SECRET])
        == "arguments.x[19000] must be an integer or null, not a string."
    )
    tool = ToolDefinition(name="owls.count", output_schema={"items": item, "minItems": 30})
    assert result_fault(tool, [1] * 9_000 + [SECRET]) == "result[9000] must be an integer or null, not a string."


def test_a_list_that_was_cut_for_looking_is_not_said_to_be_short() -> None:
    """What is wrong is said of the arguments as they are."""
    schema = {"properties": {"x": {"items": {"anyOf": [{}, {}]}, "minItems": 30}, "y": {"type": "integer"}}}
    tool = ToolDefinition(name="owls.count", input_schema=schema)

    fault = checked(tool, {"x": [1] * 20_000, "y": SECRET}).fault

    assert fault == "arguments.y must be an integer, not a string."


def test_a_long_text_beside_a_small_fault_does_not_hide_it() -> None:
    """A file of a megabyte, and a path that is missing."""
    schema = {"properties": {"content": {"type": "string"}, "path": {"type": "string"}}, "required": ["path"]}
    tool = ToolDefinition(name="files.write", input_schema=schema)

    assert checked(tool, {"content": "x" * 2**20}).fault == "arguments.path is missing."


def marked(value: Any) -> Any:
    """The same shape with a secret in every text, number and name."""
    if isinstance(value, dict):
        return {
            f"{name}{SECRET}" if index % 2 else name: marked(child) for index, (name, child) in enumerate(value.items())
        }
    if isinstance(value, list):
        return [marked(child) for child in value]
    return f"{value}{SECRET}" if isinstance(value, str) else 918273645 if isinstance(value, int) else value


KEYWORDS: dict[str, Any] = {
    "type": ["object", "array", "string", "integer"],
    "additionalProperties": [False, {"type": "integer"}, {"additionalProperties": False}],
    "propertyNames": [
        {"maxLength": 2},
        {"enum": ["a"]},
        {"pattern": "^z"},
        {"anyOf": [{"const": "a"}, {"maxLength": 1}]},
    ],
    "patternProperties": [{"s3": {"type": "boolean"}}, {".": False}],
    "unevaluatedProperties": [False],
    "not": [{}],
    "enum": [["a", 1, {"b": 2}]],
    "const": [{"a": 1}],
    "maxLength": [1],
    "maximum": [5],
    "pattern": ["^$", "^(?=x)y"],
    "items": [False, {"type": "null"}, {"properties": {"a": False}}],
    "contains": [{"type": "null"}],
    "dependentRequired": [{"a": ["b"]}],
    "maxProperties": [0],
    "uniqueItems": [True],
    "format": ["email"],
}
PARTS = st.sampled_from([{keyword: value} for keyword, values in KEYWORDS.items() for value in values])
SCHEMAS = st.recursive(
    PARTS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"anyOf": parts}),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"oneOf": parts}),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"allOf": parts}),
        inner.map(lambda part: {"properties": {"a": part, "b": part}, "items": part}),
        inner.map(lambda part: {"additionalProperties": part, "items": part}),
    ),
    max_leaves=6,
)


@settings(max_examples=examples(400), deadline=None)
@given(schema=SCHEMAS, arguments=ARGUMENTS)
def test_no_fault_ever_repeats_a_value(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    """Neither a text, nor a number, nor a name that the schema does not have itself; and it is short."""
    tool = ToolDefinition(name="owls.count", input_schema={**schema, "type": "object"}, output_schema=schema)
    if schema_fault(tool):
        return
    value = marked(arguments)
    for fault in (checked(tool, value).fault, result_fault(tool, value), result_fault(tool, [value, SECRET])):
        assert SECRET not in str(fault)
        assert "918273645" not in str(fault)
        assert len(str(fault)) <= LONGEST


@settings(max_examples=examples(200), deadline=None)
@given(schema=SCHEMAS, arguments=ARGUMENTS)
def test_whoever_is_refused_is_told_why(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    """There is a text for every refusal, and none for what fits; the arguments stay as they were."""
    tool = ToolDefinition(name="owls.count", input_schema={**schema, "type": "object"})
    if schema_fault(tool):
        return
    before = json.dumps(arguments)
    found = checked(tool, arguments)

    assert (found.arguments is None) == bool(found.fault)
    assert json.dumps(arguments) == before
