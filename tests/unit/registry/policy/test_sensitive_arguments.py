"""Which arguments must not be kept, arguments without them, and results that must not be kept."""

import gc
import json
from collections.abc import Callable
from typing import Any

import pytest

from support.programs.counted_calls import counted
from toolfleet_registry.contracts import ToolDefinition, ToolParameter
from toolfleet_registry.policy import redaction
from toolfleet_registry.policy.redaction import EVERYTHING, has_sensitive_results, redacted, scrubbed, sensitive_paths

MARK: dict[str, Any] = {"type": "string", "sensitive": True}


def paths(schema: dict[str, Any], **fields: Any) -> tuple[str, ...]:
    return sensitive_paths(ToolDefinition(name="a.b", input_schema=schema, **fields))


def properties(**schemas: Any) -> dict[str, Any]:
    return {"type": "object", "properties": schemas}


def test_flat_parameters_say_it_themselves() -> None:
    """Those that are marked, sorted; a tool without any has none."""
    tool = ToolDefinition(
        name="a.b",
        parameters=[
            ToolParameter(name="token", type="string", sensitive=True),
            ToolParameter(name="to", type="string"),
            ToolParameter(name="a/b~c", type="string", sensitive=True),
        ],
    )
    assert sensitive_paths(tool) == ("/a~1b~0c", "/token")
    assert sensitive_paths(ToolDefinition(name="a.b", parameters=[ToolParameter(name="to", type="string")])) == ()


def test_flat_marks_count_beside_a_schema() -> None:
    """A module that sends both forms may have marked either."""
    assert paths(properties(pin=MARK), parameters=[ToolParameter(name="token", type="string", sensitive=True)]) == (
        "/pin",
        "/token",
    )


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        # Each mark, and a clear no.
        (properties(a={"sensitive": True}, b={"x-sensitive": True}, c={"writeOnly": True}), ("/a", "/b", "/c")),
        (properties(a={"sensitive": False}, b={"x-sensitive": None}, c={"writeOnly": False}), ()),
        (properties(a={"sensitive": "no, or is it?"}), ("/a",)),
        # A property of that name is no mark; nor is an example.
        (properties(sensitive={"type": "boolean"}, writeOnly=True), ()),
        (properties(a={"default": {"sensitive": True}, "enum": [{"sensitive": True}]}), ()),
        # At any depth.
        (properties(card=properties(number=MARK, name={})), ("/card/number",)),
        (properties(cards={"items": properties(number=MARK)}), ("/cards/*/number",)),
        (properties(pair={"prefixItems": [{}, MARK], "items": {}}), ("/pair/1",)),
        (properties(pair={"items": [{}, MARK]}), ("/pair/*",)),
        (properties(headers={"additionalProperties": MARK}), ("/headers/*",)),
        (properties(headers={"patternProperties": {"^x-": MARK}}), ("/headers/*",)),
        ({"patternProperties": {"^x-": MARK}}, ("/*",)),
        # Wherever a schema applies to the same place.
        (properties(a={"anyOf": [{"type": "null"}, MARK]}), ("/a",)),
        (properties(a={"oneOf": [properties(b=MARK)]}), ("/a/b",)),
        ({"allOf": [properties(a=MARK), properties(b=MARK)]}, ("/a", "/b")),
        ({"if": properties(a={}), "then": properties(b=MARK), "else": properties(c=MARK)}, ("/b", "/c")),
        ({"dependentSchemas": {"a": properties(b=MARK)}}, ("/b",)),
        (properties(a={"propertyNames": MARK}), ("/a",)),
        # By reference.
        ({**properties(a={"$ref": "#/$defs/s"}), "$defs": {"s": MARK}}, ("/a",)),
        ({**properties(a={"$ref": "#/$defs/s%20~1t"}), "$defs": {"s /t": properties(b=MARK)}}, ("/a/b",)),
        ({**properties(a={"$ref": "#/properties/b"}, b=MARK)}, ("/a", "/b")),
        ({**properties(a={"$ref": "#/$defs/s/prefixItems/1"}), "$defs": {"s": {"prefixItems": [1, MARK]}}}, ("/a",)),
        ({**properties(a={}), "$defs": {"unused": MARK}}, ()),
        # What lies in a marked place is not listed beside it.
        (properties(a={**MARK, "properties": {"b": MARK}}, b=properties(a=MARK)), ("/a", "/b/a")),
        ({"writeOnly": True, **properties(a=MARK)}, (EVERYTHING,)),
    ],
)
def test_a_schemas_marks_are_found(schema: dict[str, Any], found: tuple[str, ...]) -> None:
    """Each at its place, wherever a schema can apply to one."""
    assert paths(schema) == found


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        # Another document, or nothing.
        (properties(a={"$ref": "https://example.org/card.json"}, b={}), ("/a",)),
        (properties(a={"$ref": "#/$defs/nowhere"}), ("/a",)),
        (properties(a={"$ref": "#anchor"}, b={"$ref": 7}, c={"$dynamicRef": "#node"}), ("/a", "/b", "/c")),
        (properties(a={"$ref": "#/properties/b/enum/7"}, b={"enum": []}), ("/a",)),
        # No schema, but with a mark somewhere in it.
        ({"properties": [{"name": "a", "sensitive": True}]}, (EVERYTHING,)),
        (properties(a=["string", MARK], b=["string"]), ("/a",)),
        (properties(a={"prefixItems": {"0": MARK}}), ("/a/*",)),
        (properties(a={"patternProperties": [MARK]}), ("/a/*",)),
        (properties(a={"allOf": {"0": MARK}}), ("/a",)),
        (properties(a={"dependencies": {"b": ["c"]}}, b=MARK), ("/b",)),
    ],
)
def test_what_cannot_be_followed_is_sensitive(schema: dict[str, Any], found: tuple[str, ...]) -> None:
    """As a whole; what says nothing of the kind is not."""
    assert paths(schema) == found


NODE = {**properties(secret=MARK, children={"items": {"$ref": "#/$defs/node"}}), "$defs": {}}


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        # What holds itself is followed once, and then hidden as a whole if a mark is in it.
        (
            {**properties(tree={"$ref": "#/$defs/node"}), "$defs": {"node": NODE}},
            ("/tree/children/*", "/tree/secret"),
        ),
        (properties(pin=MARK, next={"$ref": "#"}), ("/next", "/pin")),
        # Without a mark in it, it does not matter.
        (
            {
                **properties(pin=MARK, tree={"$ref": "#/$defs/node"}),
                "$defs": {"node": properties(next={"$ref": "#/$defs/node"})},
            },
            ("/pin",),
        ),
        # Definitions that are nothing but each other.
        ({**properties(a={"$ref": "#/$defs/a"}, b=MARK), "$defs": {"a": {"$ref": "#/$defs/a"}}}, ("/b",)),
    ],
)
def test_a_schema_that_holds_itself_has_an_end(schema: dict[str, Any], found: tuple[str, ...]) -> None:
    """Its places are finitely many, and none is forgotten."""
    assert paths(schema) == found


def doubling(levels: int) -> dict[str, Any]:
    """Definitions with 2**levels places."""
    steps = {
        f"d{n}": properties(x={"$ref": f"#/$defs/d{n + 1}"}, y={"$ref": f"#/$defs/d{n + 1}"}) for n in range(levels)
    }
    return {**properties(a={"$ref": "#/$defs/d0"}), "$defs": {**steps, f"d{levels}": MARK}}


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = MARK
    for _ in range(levels):
        schema = properties(a=schema)
    return schema


def chain(length: int) -> dict[str, Any]:
    steps = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(length)}
    return {**properties(a={"$ref": "#/$defs/d0"}, b={}), "$defs": {**steps, f"d{length}": MARK}}


def in_itself() -> dict[str, Any]:
    schema = properties(pin=MARK)
    schema["allOf"] = [schema]
    return schema


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda: doubling(40), (EVERYTHING,)),
        (lambda: doubling(9), ("/a",)),
        (lambda: deep(90), ("/a" * 32,)),
        (lambda: chain(10_000), ("/a",)),
        (in_itself, (EVERYTHING,)),
        (lambda: properties(**{f"name-{n}": properties(a=MARK) for n in range(1000)}), (EVERYTHING,)),
        (lambda: properties(**{f"name-{n}": {} for n in range(100_000)}), ()),
        (
            lambda: properties(**{f"name-{n}": {"$ref": f"#/properties/name-{n}"} for n in range(3_000)}, pin=MARK),
            ("/pin",),
        ),
    ],
    ids=["doubling", "doubling less", "deep", "chain", "in itself", "many marks", "large", "many loops"],
)
def test_no_schema_holds_us(make: Callable[[], dict[str, Any]], found: tuple[str, ...]) -> None:
    """However it is made, its reading ends, and what stays unread is sensitive."""
    tool = ToolDefinition.model_construct(name="a.b", parameters=[], input_schema=make())
    assert sensitive_paths(tool) == found


def test_it_is_found_once_for_a_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking again costs nothing; what was found goes with the definition."""
    gc.collect()
    before = len(redaction._known)
    tool = ToolDefinition(name="a.b", input_schema=properties(a=MARK))
    first = sensitive_paths(tool)
    monkeypatch.setattr(redaction, "_in_schema", None)
    assert sensitive_paths(tool) is first
    assert len(redaction._known) == before + 1
    del tool
    gc.collect()
    assert len(redaction._known) == before


@pytest.mark.parametrize(
    ("arguments", "places", "kept"),
    [
        ({"a": 1, "b": [2]}, (), {"a": 1, "b": [2]}),
        ({"a": 1, "b": 2}, ("/a", "/c"), {"a": "[redacted]", "b": 2}),
        ({"a": {"b": {"c": 1}, "d": 2}}, ("/a/b",), {"a": {"b": "[redacted]", "d": 2}}),
        ({"a": [{"b": 1, "c": 2}, {"c": 3}]}, ("/a/*/b",), {"a": [{"b": "[redacted]", "c": 2}, {"c": 3}]}),
        ({"a": {"x": 1, "y": 2}}, ("/a/*",), {"a": {"x": "[redacted]", "y": "[redacted]"}}),
        ({"a": [1, 2, 3]}, ("/a/1",), {"a": [1, "[redacted]", 3]}),
        ({"a": [1]}, ("/a/1",), {"a": [1]}),
        ({"a/b": 1, "~": 2}, ("/a~1b", "/~0"), {"a/b": "[redacted]", "~": "[redacted]"}),
        ({"a": {"b": 1}}, ("/a/b/c", "/a/b"), {"a": {"b": "[redacted]"}}),
        (
            {"a": {"b": {"x": 1}, "c": {"x": 1}}},
            ("/a/*/x", "/a/b"),
            {"a": {"b": "[redacted]", "c": {"x": "[redacted]"}}},
        ),
        ({"a": 1}, ("/*",), {"a": "[redacted]"}),
        ({"a": 1, "b": {}}, (EVERYTHING,), {"a": "[redacted]", "b": "[redacted]"}),
        # No pointer.
        ({"a": 1}, ("a",), {"a": "[redacted]"}),
        # Of another shape than the tool said: a model wrote it.
        ({"card": "4111 1111"}, ("/card/number",), {"card": "[redacted]"}),
        ({"card": [{"number": 1}]}, ("/card/number",), {"card": "[redacted]"}),
        ({"pair": {"first": 1}}, ("/pair/0",), {"pair": "[redacted]"}),
        ({"card": None}, ("/card/number",), {"card": None}),
        ({"a": 1}, ("/0",), {"a": "[redacted]"}),
    ],
)
def test_arguments_without_what_is_sensitive(
    arguments: dict[str, Any], places: tuple[str, ...], kept: dict[str, Any]
) -> None:
    """A copy; what has another shape than the tool said is hidden from there on."""
    before = repr(arguments)
    assert redacted(arguments, places) == kept
    assert repr(arguments) == before


def test_many_places_in_many_values_take_one_walk() -> None:
    """A hundred places cost hardly more calls than one."""
    places, arguments = [f"/rows/*/secret-{n}" for n in range(100)], {"rows": [{"secret-7": n} for n in range(5_000)]}
    _, few = counted(lambda: redacted(arguments, places[:1]))
    kept, many = counted(lambda: redacted(arguments, places))

    assert many < 3 * few
    assert kept["rows"][-1] == {"secret-7": "[redacted]"}


def test_where_very_many_values_would_be_looked_into_everything_is_hidden() -> None:
    """One more than that; where nothing lies below them, they are not."""
    rows = {"rows": [{"secret": n} for n in range(5_001)], "n": 1}

    assert redacted(rows, ("/rows/*/secret",)) == {"rows": "[redacted]", "n": "[redacted]"}
    assert redacted(rows, ("/n", "/other/*/secret")) == {**rows, "n": "[redacted]"}


def test_a_deep_place_is_hidden_with_what_holds_it() -> None:
    """A message with a place of thousands of steps is no reason to fail."""
    arguments: dict[str, Any] = {"a": 1}
    for _ in range(60):
        arguments = {"a": arguments}
    assert repr(redacted(arguments, ("/a" * 5000,))).count("{") == 32


def test_a_text_loses_what_the_arguments_lost() -> None:
    """A module may repeat in its error what it was given; what was kept, and what is short, stays."""
    arguments = {"to": "ada@example.org", "pin": 12345678, "ok": True, "card": {"n": ["4111-1111", "411"]}}
    kept = redacted(arguments, ("/pin", "/card", "/ok"))
    text = "No 12345678 or 4111-1111 for ada@example.org, 411: True."

    assert scrubbed(text, arguments, kept) == "No [redacted] or [redacted] for ada@example.org, 411: True."
    assert scrubbed(text, arguments, arguments) == text


@pytest.mark.parametrize("is_ascii", [False, True], ids=["letters as they are", "letters escaped"])
def test_a_text_loses_what_stands_in_it_as_json(is_ascii: bool) -> None:
    """A module may repeat what it was sent as it was written there."""
    arguments = {"password": 'grün "7"'}
    text = f"No {json.dumps(arguments, ensure_ascii=is_ascii)}."

    assert scrubbed(text, arguments, redacted(arguments, ("/password",))) == 'No {"password": "[redacted]"}.'


def test_of_a_text_nothing_is_kept_where_very_much_would_have_to_be_looked_for() -> None:
    """It hides more rather than hold a loop."""
    arguments = {"pins": [f"pin-{number}" for number in range(2_000)], "to": "ada"}

    assert scrubbed("No pin-7 for ada.", arguments, redacted(arguments, ("/pins",))) == "[redacted]"
    assert scrubbed("No pin-7 for ada.", arguments, arguments) == "No pin-7 for ada."


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (None, False),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, False),
        ({"type": "object", "properties": {"a": {"type": "string", "sensitive": True}}}, True),
        (
            {"type": "array", "items": {"$ref": "#/$defs/x"}, "$defs": {"x": {"writeOnly": True}}},
            True,
        ),  # through a reference
        ({"$ref": "https://example.org/schema"}, True),  # nobody can look there
        ({"sensitive": False}, False),
    ],
)
def test_any_mark_counts(schema: dict[str, Any] | None, expected: bool) -> None:
    """At any depth; what cannot be followed counts as marked, and a second look says the same."""
    tool = ToolDefinition(name="bank.pay", output_schema=schema)

    assert [has_sensitive_results(tool), has_sensitive_results(tool)] == [expected, expected]
