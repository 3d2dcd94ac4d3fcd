"""What a provider is shown of a schema's references and patterns."""

import json
from typing import Any
from urllib.parse import quote

import pytest

from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.formats import Format, convert, to_call
from toolfleet_registry.formats.references import NOWHERE, TOO_MUCH, JsonObject, localized
from toolfleet_registry.schemas.validation import schema_fault


def spellings(pointer: str, count: int) -> list[str]:
    """The same reference, with each sign of it written out or not."""
    found = [""]
    for sign in pointer:
        written = [sign] if sign in "#/" else [sign, f"%{ord(sign):02X}", f"%{ord(sign):02x}"]
        found = list(dict.fromkeys(start + each for start in found for each in written))[:count]
    return found


def values_in(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 1
    return 1 + sum(map(values_in, value.values() if isinstance(value, dict) else value))


LARGE: JsonObject = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(200)}}


def test_a_definition_is_copied_once_however_it_is_spelled() -> None:
    """With escapes of a URL, of a pointer, or with none."""
    references = [*spellings("#/$defs/large", 500), f"#/{quote('$defs')}/large"]
    schema = {"properties": {f"r{n}": {"$ref": each} for n, each in enumerate(references)}, "$defs": {"large": LARGE}}
    shown = localized(schema)

    assert shown["$defs"] == {"large": LARGE}
    assert {each["$ref"] for each in shown["properties"].values()} == {"#/$defs/large"}


def test_two_definitions_of_one_name_have_two() -> None:
    """In the order in which they are met."""
    schema = {
        "properties": {"a": {"$ref": "#/$defs/x"}, "b": {"$ref": "#/$defs/y/$defs/x"}, "c": {"$ref": "#/nothing"}},
        "$defs": {"x": {"type": "string"}, "y": {"$defs": {"x": {"type": "null"}}}, "x_2": {}},
    }
    shown = localized(schema)

    assert [each["$ref"] for each in shown["properties"].values()] == ["#/$defs/x", "#/$defs/x_2", NOWHERE]
    assert shown["$defs"] == {"x": {"type": "string"}, "x_2": {"type": "null"}}


def nested(levels: int) -> JsonObject:
    """Each level of which is referred to: with what is in it, it would be copied again and again."""
    inner: JsonObject = LARGE
    for _ in range(levels):
        inner = {"type": "object", "properties": {"x": inner}}
    pointers = ["#/$defs/top" + "/properties/x" * level for level in range(levels)]
    return {"properties": {f"r{n}": {"$ref": each} for n, each in enumerate(pointers)}, "$defs": {"top": inner}}


@pytest.mark.parametrize("provider", ["openai_chat", "anthropic"])
def test_only_so_much_is_copied(provider: Any) -> None:
    """The rest is relaxed, with a note that says where; calls come back as they are."""
    tool = ToolDefinition(name="owls.count", input_schema=nested(90))
    assert schema_fault(tool) is None
    offers = convert([tool], provider)

    assert values_in(offers) < 60_000
    assert len(json.dumps(offers)) < 10 * len(json.dumps(tool.input_schema)) + 1_000_000
    left_out = [note for note in offers.notes if "too much to be shown" in note.why]
    assert {note.kind for note in left_out} == {"relaxed"}
    assert 0 < len(left_out) < 90
    assert {note.path for note in left_out} <= {f"/properties/r{n}/$ref" for n in range(90)}
    function = {"name": "owls__count", "arguments": '{"r89": {"p0": "x"}}'}
    if provider == "openai_chat":
        call = to_call({"type": "function", "id": "1", "function": function}, provider, [tool])
        assert call.arguments == {"r89": {"p0": "x"}}


def test_what_is_not_denied_is_not_denied_by_what_is_left_out() -> None:
    """A reference that is not shown under a `not` takes it with it."""
    large = {"enum": [f"{n}" for n in range(30_000)]}
    schema = {"properties": {"a": {"not": {"$ref": "#/$defs/large"}}}, "$defs": {"large": large}}

    assert localized(schema)["properties"]["a"] == {"not": {"$ref": TOO_MUCH}}
    (offer,) = convert([ToolDefinition(name="owls.count", input_schema=schema)], "anthropic")
    assert offer["input_schema"]["properties"]["a"] == {}


def test_very_many_definitions_have_a_name_each() -> None:
    """In no more time than it takes to write them down."""
    definitions = {f"d{n}": {"$defs": {"x": {"const": n}}} for n in range(4_000)}
    references = {f"r{n}": {"$ref": f"#/$defs/d{n}/$defs/x"} for n in range(4_000)}
    shown = localized({"properties": references, "$defs": definitions})

    assert len(shown["$defs"]) == 4_000
    assert shown["properties"]["r3999"]["$ref"] == "#/$defs/x_4000"


SHOWN = [
    r"^[a-z]+$",
    r"^\d{3}-\d{4}$",
    r"^(?:a|b)*c?$",
    r"^[A-Za-z0-9_.-]{1,64}$",
    r"^https\:\/\/",
    r"[\[\]]",
    r"^.{1,255}$",
    r"^\+[1-9]\d{1,14}$",
    r"^[\w.+-]+@[\w-]+\.[a-z]{2,}?$",
    r"\$\{x\}|ü",
]
NOT_SHOWN = [
    r"^[a-zA-Z0-9@#%^&*()_+\-=[\]{}|;:,.<>?~`]*$",
    r"^(?!.*\.\.)[a-z.]+$",
    r"(?=a)b",
    r"(?<=a)b",
    r"(?<!a)b",
    r"(?P<n>x)",
    r"(a)\1",
    r"(?i)a",
    r"^{a}$",
    r"[\u00e9]",
    r"^.{1,10000}$",
    r"a\Z",
]
FORMATS: list[Format] = ["openai_chat", "openai_responses", "anthropic", "gemini"]


@pytest.mark.parametrize("provider", FORMATS)
@pytest.mark.parametrize(("patterns", "is_shown"), [(SHOWN, True), (NOT_SHOWN, False)], ids=["shown", "not shown"])
@pytest.mark.parametrize("is_strict", [False, True])
def test_a_pattern_that_some_engines_refuse_is_not_shown(
    provider: Format, patterns: list[str], *, is_shown: bool, is_strict: bool
) -> None:
    """With a note, in a property and deeper; any other pattern stays."""
    properties = {f"p{number}": {"type": "string", "pattern": each} for number, each in enumerate(patterns)}
    schema = {
        "type": "object",
        "properties": {**properties, "deep": {"type": "array", "items": {"type": "string", "pattern": patterns[0]}}},
    }
    offer = convert([ToolDefinition(name="m.t", description="t", input_schema=schema)], provider, strict=is_strict)
    written = json.dumps(list(offer))

    if is_shown and provider != "gemini" and not is_strict:
        assert [each for each in patterns if json.dumps(each)[1:-1] not in written] == []
    if not is_shown:
        assert [each for each in patterns if json.dumps(each)[1:-1] in written] == []
        noted = {note.path for note in offer.notes if note.kind == "relaxed"}
        assert {f"/properties/p{number}/pattern" for number in range(len(patterns))} <= noted
