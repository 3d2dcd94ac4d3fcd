"""Arguments and results are held against the tool's schemas."""

import copy
import gc
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, assume, given, reject, settings
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

from support.schemas.examples import examples
from support.schemas.json_schemas import ARGUMENTS, input_schemas
from support.there import there
from toolfleet_registry.contracts import ToolDefinition, ToolParameter
from toolfleet_registry.schemas import validation
from toolfleet_registry.schemas.definition import input_schema
from toolfleet_registry.schemas.validation import checked, result_fault, schema_fault


def tool(schema: dict[str, Any] | None = None, **fields: Any) -> ToolDefinition:
    return ToolDefinition(name="owls.count", input_schema=schema, **fields)


def of(**properties: Any) -> ToolDefinition:
    return tool({"type": "object", "properties": properties})


def fits(schema: dict[str, Any], arguments: dict[str, Any]) -> bool:
    definition = tool(schema)
    assert schema_fault(definition) is None
    return checked(definition, arguments).fault is None


SEARCH = {
    "type": "object",
    "properties": {"query": {"type": "string", "minLength": 1}, "limit": {"type": "integer", "minimum": 1}},
    "required": ["query"],
    "additionalProperties": False,
}


def test_arguments_that_fit_come_back_as_they_are() -> None:
    """Not copied, where there is nothing to fill in."""
    arguments = {"query": "owls", "limit": 3}

    assert checked(tool(SEARCH), arguments).arguments is arguments


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({}, "arguments.query is missing."),
        ({"query": 7}, "arguments.query must be a string, not an integer."),
        ({"query": ""}, "arguments.query must have at least 1 character."),
        ({"query": "owls", "limit": 0}, "arguments.limit must be at least 1."),
        ({"query": "owls", "limit": "3"}, "arguments.limit must be an integer, not a string."),
        ({"query": "owls", "limit": 1.5}, "arguments.limit must be an integer, not a number."),
        ({"query": "owls", "limit": True}, "arguments.limit must be an integer, not a boolean."),
        (
            {"query": "owls", "lim": 3},
            "arguments must not have 'lim' (did you mean 'limit'?); the schema has 'query', 'limit'.",
        ),
        (
            {"query": "owls", "colour": 3, "day": 1, "lim": 2, "week": 1},
            "arguments must not have 'colour', 'day', 'lim' (did you mean 'limit'?) and 1 more; the schema has 'query', 'limit'.",
        ),
        (
            {"query": "owls", "no name at all": 3},  # what a model writes there may be anything
            "arguments must not have a name that the schema does not have; the schema has 'query', 'limit'.",
        ),
    ],
)
def test_a_fault_says_where_and_why(arguments: dict[str, Any], fault: str) -> None:
    """In words that a model can use."""
    found = checked(tool(SEARCH), arguments)

    assert found.arguments is None
    assert found.fault == fault


def test_flat_parameters_are_a_schema_as_well() -> None:
    """Types and enums hold; a type that nobody knows constrains nothing; other names are let through."""
    flat = tool(
        parameters=[
            ToolParameter(name="query", type="str"),
            ToolParameter(name="mode", type="string", enum=["day", "night"], required=False),
            ToolParameter(name="place", type="geo:point", required=False),
        ]
    )

    assert checked(flat, {"query": "owls", "mode": "day", "place": [1, 2], "more": 1}).fault is None
    assert checked(flat, {"mode": "day"}).fault == "arguments.query is missing."
    assert checked(flat, {"query": "", "mode": "dusk"}).fault == 'arguments.mode must be one of "day", "night".'
    assert checked(tool(), {"x": [1]}).fault is None  # what a module does not say is not forbidden


def referring(reference: str, definitions: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A schema whose property `x` refers to one of its definitions."""
    return {"$defs": definitions, "properties": {"x": {"$ref": reference}}, **more}


INTEGER = {"type": "integer"}
NODE = {"properties": {"in": {"items": {"$ref": "#/$defs/n"}}, "name": {"$ref": "#text"}}, "required": ["name"]}
NODES = {"n": NODE, "t": {"$anchor": "text", "type": "string"}}
OLDER = {"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"x": {"$ref": "#/definitions/n"}}}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (referring("a#/$defs/n", {"n": INTEGER}, **{"$id": "https://owls.test/a"}), 1, "1"),
        (referring("urn:owls:n", {"n": {"$id": "urn:owls:n", **INTEGER}}), 1, "1"),
        (
            referring("#/$defs/n", NODES),
            {"name": "a", "in": [{"name": "b", "in": []}]},
            {"name": "a", "in": [{"name": 5}]},
        ),
        (referring("#/$defs/a~1b~0c%20%25", {"a/b~c %": INTEGER}), 1, "1"),
        ({"$defs": {"n": {"$dynamicAnchor": "n", **INTEGER}}, "properties": {"x": {"$dynamicRef": "#n"}}}, 1, "1"),
        ({**OLDER, "definitions": {"n": {"items": [INTEGER], "additionalItems": False}}}, [1], [1, 2]),
    ],
    ids=["id of the document", "id of a part", "to itself, by an anchor", "escaped signs", "dynamic", "draft 7"],
)
def test_every_kind_of_reference_in_the_document(schema: dict[str, Any], good: Any, bad: Any) -> None:
    """What it means, and nothing else."""
    assert fits(schema, {"x": good})
    assert not fits(schema, {"x": bad})


@pytest.mark.parametrize(
    "reference",
    [
        "http://127.0.0.1:1/schema.json",
        "https://json-schema.org/draft/2020-12/schema",
        "file:///etc/passwd",
        "other.json",
        "urn:owls:n",
        "#/$defs/nowhere",
        "#nowhere",
        "//127.0.0.1:1/x",
    ],
)
def test_what_is_not_in_the_document_is_refused(reference: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is fetched, neither from a server nor from a file."""

    def refuse(*_: Any) -> None:
        raise AssertionError("somebody opens a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    for keyword in ("$ref", "$dynamicRef"):
        fault = there(schema_fault(of(x={"items": {keyword: reference}})))
        assert fault.startswith(f"its input schema is wrong: it refers to {reference!r}, which is not in it")


def test_the_document_cannot_name_itself_as_another() -> None:
    """An id on the web makes no relative reference a reason to go there."""
    fault = schema_fault(tool({"$id": "http://127.0.0.1:1/a/b", "properties": {"x": {"$ref": "c"}}}))

    assert fault is not None
    assert "which is not in it" in fault


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "string"}, "its type must be 'object'"),
        ({"type": ["array", "null"]}, "its type must be 'object'"),
        ({"properties": []}, "schema.properties must be an object, not an array"),
        ({"properties": {"a": {"type": "objekt"}}}, "schema.properties.a.type must be one of"),
        ({"properties": {"a": 5}}, "schema.properties.a must be"),
        ({"required": "a"}, "schema.required must be an array, not a string"),
        ({"properties": {"a": {"minLength": -1}}}, "schema.properties.a.minLength must be at least 0"),
        ({"properties": {"a": {"pattern": "("}}}, "its pattern '(' cannot be used"),
        ({"patternProperties": {"(": {}}}, "its pattern '(' cannot be used"),
        ({"$ref": "#"}, "it refers to itself without end"),
        ({"default": {1, 2}}, "it is not JSON"),
    ],
)
def test_a_broken_schema_closes_its_tool(schema: dict[str, Any], why: str) -> None:
    """And says why, in listings and to whoever calls it all the same."""
    broken = tool(schema)

    assert why in str(schema_fault(broken))
    assert str(checked(broken, {}).fault).startswith("Tool 'owls.count' is closed: its input schema is wrong: ")
    assert len(str(schema_fault(broken))) < 400


def test_a_broken_output_schema_closes_its_tool_too() -> None:
    """The fault says which of the two it is."""
    assert str(schema_fault(tool(output_schema={"type": "nothing"}))).startswith("its output schema is wrong: ")


@pytest.mark.parametrize("broken", [{"type": "x"}, {"pattern": "("}, {"$ref": "http://x"}, {"items": []}])
def test_every_output_schema_may_be_of_any_type(broken: dict[str, Any]) -> None:
    """But must be a schema."""
    for fine in ({}, {"type": "string"}, {"type": ["array", "null"]}, {"enum": [1]}):
        assert schema_fault(tool(output_schema=fine)) is None
    assert schema_fault(tool(output_schema=broken)) is not None


def test_booleans_are_schemas() -> None:
    """True takes anything, false nothing."""
    schema = {"type": "object", "properties": {"any": True, "none": False}}

    assert checked(tool(schema), {"any": [1, {"x": None}]}).fault is None
    assert checked(tool(schema), {"none": 1}).fault == "arguments.none is not allowed."


def test_words_of_our_own_are_ignored() -> None:
    """A mark for what must not be kept, and any other keyword that JSON Schema does not have."""
    schema = {"type": "object", "properties": {"pin": {"type": "string", "sensitive": True, "x-order": {"$id": 5}}}}

    assert fits(schema, {"pin": "1234"})
    assert not fits(schema, {"pin": 1234})


def test_formats_are_notes() -> None:
    """As draft 2020-12 has it: modules differ in what they take for a date."""
    assert fits({"type": "object", "properties": {"at": {"type": "string", "format": "date-time"}}}, {"at": "tomorrow"})


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer"}, [0, -0.0, 1.0, 10**30, 1e300], [0.5, True, "1", None]),
        ({"type": "number"}, [0.1, 10**400, -1], [False, "1"]),
        ({"minimum": 2**53 + 1}, [2**53 + 1, 2**53 + 2], [2**53, -(10**400)]),
        ({"multipleOf": 0.01}, [19.99, 1.1, 7], [0.005]),
        ({"multipleOf": 7}, [7 * 10**40], [7 * 10**40 + 1]),
        ({"const": 0}, [-0.0, 0], [False, ""]),
        ({"enum": [1, "1", None]}, [1.0, "1", None], [True, "2"]),
        (
            {"maxLength": 1},
            ["😀", "é", ""],
            ["e\u0301", "ab"],
        ),  # characters, as in the standard: not bytes, nor what one sees
        ({"pattern": "^.$"}, ["😀"], ["ab"]),
        ({"pattern": "^(?=.*[0-9]).{2,}$"}, ["a1"], ["ab", "1"]),  # looks ahead
        ({"uniqueItems": True}, [[1, "1"], [0, False]], [[1, 1.0]]),
    ],
)
def test_numbers_and_texts_are_those_of_json(schema: dict[str, Any], good: list[Any], bad: list[Any]) -> None:
    """Integers of any size, zeros with a sign, and characters outside of the first 65,536."""
    definition = of(x=schema)
    for value in good:
        assert checked(definition, {"x": value}).fault is None, value
    for value in bad:
        assert checked(definition, {"x": value}).fault is not None, value


def test_subclasses_of_json_types_are_taken_for_them() -> None:
    """As they will be when they are sent."""

    class Text(str):
        __slots__ = ()

    assert fits(SEARCH, {"query": Text("owls")})
    assert fits({"type": "object", "properties": {"x": {"items": {"type": "integer"}}}}, {"x": (1, 2)})


def test_the_schema_of_a_tool_is_not_kept_by_identity() -> None:
    """A new tool at the address of an old one has its own schema."""
    for limit in range(2000):
        assert checked(of(x={"const": limit}), {"x": limit}).fault is None
        assert checked(of(x={"const": limit}), {"x": -1}).fault is not None


def test_tools_with_the_same_schema_share_what_was_compiled() -> None:
    """Once for a content, and gone with the tools that have it but for a bounded shelf."""
    first, second = tool(copy.deepcopy(SEARCH)), tool(copy.deepcopy(SEARCH))

    assert validation._inputs.checker(first) is validation._inputs.checker(second)
    before = len(validation._inputs._digests)
    del first, second
    gc.collect()
    assert len(validation._inputs._digests) <= before - 2


def test_only_so_many_are_kept_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was not used for longest goes; it comes back when it is asked for."""
    shelf = validation._CompiledSchemas()
    monkeypatch.setattr(validation, "_compiled_schemas", shelf)
    monkeypatch.setattr(validation, "_MOST_SCHEMAS", 100)
    tools = [of(x={"const": number}) for number in range(200)]
    for number, definition in enumerate(tools):
        assert checked(definition, {"x": number}).fault is None
        assert checked(tools[0], {"x": 0}).fault is None

    assert len(shelf._checkers) <= 50
    assert shelf._schemas <= 100
    assert checked(tools[1], {"x": 2}).fault is not None


def test_threads_may_ask_at_once() -> None:
    """A catalog judges many tools aside while calls are checked."""
    numbers = [start + number for number in range(300) for start in (0, 100, 200, 300)]
    with ThreadPoolExecutor(4) as threads:
        faults = threads.map(lambda number: checked(of(x={"const": number}), {"x": number}).fault, numbers)
    assert not any(faults)


def test_a_result_is_held_against_its_schema() -> None:
    """The fault says where; without a schema anything is right."""
    listing = tool(output_schema={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})

    assert result_fault(listing, {"n": 1}) is None
    assert result_fault(listing, {"n": "marker"}) == "result.n must be an integer, not a string."
    assert result_fault(listing, None) == "result must be an object, not null."
    assert result_fault(tool(), object()) is None


@pytest.mark.parametrize("schema", [{"type": "nothing"}, {"items": {"type": "integer"}}])
def test_a_result_that_cannot_be_checked_passes(schema: dict[str, Any]) -> None:
    """With a warning: its effect has happened, and the result may well be right."""
    with structlog.testing.capture_logs() as lines:
        assert result_fault(tool(output_schema=schema), ["x"] * 300_000) is None

    assert [line["event"] for line in lines] == ["result_not_checked"]


@settings(
    max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)
@given(schema=input_schemas(), arguments=ARGUMENTS)
def test_the_reference_implementation_agrees(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    """On what is refused; and with its defaults a call is as right as without."""
    definition = tool(schema)
    assume(schema_fault(definition) is None)
    own = input_schema(definition)
    judge: Any = validator_for(own, default=Draft202012Validator)(own)
    found = checked(definition, arguments)

    try:
        is_right = judge.is_valid(arguments if found.arguments is None else found.arguments)
    except TypeError:  # it trips over schemas of older drafts, such as `items: false` with `additionalItems`
        reject()
    assert is_right == (found.arguments is not None)
    if found.arguments is not None:
        assert arguments.keys() <= found.arguments.keys()
