"""What can be sent as a call's arguments, and what is said about the rest."""

import json
from collections import OrderedDict
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from toolfleet_registry.permissions import Permission
from toolfleet_registry.schemas.arguments import MAX_VALUES, fault_in
from toolfleet_registry.system.http_bodies import MAX_DEPTH


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


def circular() -> dict[str, Any]:
    value: dict[str, Any] = {"list": []}
    value["list"] += [value, value]
    return value


def laughing() -> dict[str, Any]:
    value: list[Any] = []
    for _ in range(50):
        value = [value] * 10
    return {"lol": value}


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"a": [1, 2.5, "x", True, None, {"b": []}]},
        {"": "", "__type__": "x", "ключ": "значение", "smile": "😀"},
        {"tuple": (1, 2)},  # programs write them for lists, and they become one
        OrderedDict(a=1),
        {"level": Permission.ADMIN},
        {"n": 10**4000, "m": -(2**64)},
        nested(MAX_DEPTH),
        {"wide": list(range(19_000))},
    ],
)
def test_json_objects_have_no_fault(arguments: dict[str, Any]) -> None:
    """And what has no fault can be written as JSON, in UTF-8."""
    assert fault_in(arguments) is None
    json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (None, "Arguments must be a JSON object, not null."),
        ([1], "Arguments must be a JSON object, not an array."),
        (5, "Arguments must be a JSON object, not a number."),
        (True, "Arguments must be a JSON object, not a boolean."),
        (b"{}", "Arguments must be a JSON object, not the Python type 'bytes'."),
        # A model's own text, that did not become an object.
        ('{"query": "ow', "Arguments are not JSON (Unterminated string starting at, line 1 column 11)."),
        ("", "Arguments are not JSON (Expecting value, line 1 column 1)."),
        ('{"a": NaN}', "Arguments are not JSON (NaN is no JSON number)."),
        ("[" * 5000 + "]" * 5000, "Arguments are not usable JSON (nested deeper than 100 levels)."),
        ('"text"', "Arguments must be a JSON object, not a string."),
        ("[]", "Arguments must be a JSON object, not a string."),
        ('{"a": 1}', "Arguments must be a JSON object, not the text of one."),
        ("\ud800", "Arguments are not JSON (Expecting value, line 1 column 1)."),
        # Places.
        ({"a": float("nan")}, "arguments.a is not a finite number."),
        ({"a": [0, {"b c": float("inf")}]}, "arguments.a[1].b c is not a finite number."),
        ({"a": b"secret"}, "arguments.a is of the Python type 'bytes', which JSON does not have."),
        ({"a": {1, 2}}, "arguments.a is of the Python type 'set', which JSON does not have."),
        ({"a": Decimal(1)}, "arguments.a is of the Python type 'Decimal', which JSON does not have."),
        ({"a": datetime.now(UTC)}, "arguments.a is of the Python type 'datetime', which JSON does not have."),
        ({"a": {1: 2}}, "arguments.a has a key of the Python type 'int'; JSON has only strings."),
        ({None: 2}, "arguments has a key of the Python type 'NoneType'; JSON has only strings."),
        ({"a": 10**5000}, "arguments.a is an integer with too many digits."),
        ({"a": [10**4000] * 20}, "Arguments have too many digits in integers of more than 64 bits."),
        ({"a": [2**70] * 5000}, "Arguments have too many digits in integers of more than 64 bits."),
        ({"a": "x\ud800"}, "arguments.a has half of a surrogate pair, which is no character."),
        ({"a": {"\udfff": 1}}, "arguments.a has a key that has half of a surrogate pair, which is no character."),
        ({"a\n\x1b": object()}, "arguments.'a\\n\\x1b' is of the Python type 'object', which JSON does not have."),
    ],
)
def test_a_fault_says_where_and_never_what(arguments: Any, fault: str) -> None:
    """A secret in an argument is in no error text."""
    assert fault_in(arguments) == fault


@pytest.mark.parametrize("make", [lambda: nested(MAX_DEPTH + 1), lambda: nested(100_000), circular])
def test_too_deep_and_circular_arguments_end(make: Any) -> None:
    """The place is shown by its end only."""
    fault = fault_in(make()) or ""
    assert fault.startswith("arguments…")
    assert fault.endswith("is nested deeper than 100 levels, or contains itself.")
    assert len(fault) < 200


def test_what_unfolds_without_end_is_refused() -> None:
    """Fifty lists that hold each other ten times over are more JSON than there are atoms."""
    assert fault_in(laughing()) == f"Arguments have more than {MAX_VALUES} values."


def test_a_long_key_is_shown_in_part() -> None:
    """A place stays readable."""
    assert len(fault_in({"x" * 1_000_000: object()}) or "") < 200
