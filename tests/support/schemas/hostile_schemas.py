"""Schemas with values that took a validator seconds, minutes or for ever: each for a module's reply, or a model's arguments.

Each value is a JSON object below a megabyte or so, and may be refused, but never checked for long.
"""

import random
from typing import Any, TypeAlias

Hostile: TypeAlias = tuple[dict[str, Any], dict[str, Any]]
"""A schema, and a value."""

_AB = "".join(random.Random(7).choices("ab", k=200_000))
_HUGE = [10**4_200 + number for number in range(200)]


def _items(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    """For the items of the member `x`."""
    return {"type": "object", "properties": {"x": {"type": "array", "items": schema, **more}}}


def _any(schema: dict[str, Any]) -> dict[str, Any]:
    """So that no item is the first wrong one, with which the check would end."""
    return {"anyOf": [schema, {}]}


def _unevaluated(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"properties": {f"n{number}": {} for number in range(1_000)}}
    for _ in range(depth):
        schema = {"allOf": [schema], "unevaluatedProperties": False}
    return _items(schema)


def _deep(levels: int, end: Any) -> Any:
    value = end
    for _ in range(levels):
        value = {"x": [value]}
    return value


HOSTILE: dict[str, Hostile] = {
    "multiples of a tiny number": (
        _items({"allOf": [{"multipleOf": 1e-300, "minimum": number} for number in range(28)]}),
        {"x": [1e300] * 20_000},
    ),
    "one multiple of a tiny number": (_items(_any({"multipleOf": 1e-300})), {"x": [7] * 20_000}),
    "multiples of integers": (_items(_any({"multipleOf": 0.01})), {"x": [10**300 + 1] * 3_000}),
    "numbers of thousands of digits": (_items(_any({"minimum": 0.5})), {"x": _HUGE}),
    "numbers near nothing": (_items(_any({"enum": [0.1, 0.2, 0.3]})), {"x": [5e-324] * 40_000}),
    "a list of allowed numbers": (_items(_any({"enum": list(range(2_000))})), {"x": [1.5] * 20_000}),
    "a list of allowed lists": (_items(_any({"enum": [[1, 1, number] for number in range(2_000)]})), {"x": [[1, 1, -1]] * 5_000}),
    "a large allowed object": (
        _items(_any({"const": {f"n{number}": [number] for number in range(1_000)}})),
        {"x": [{f"n{number}": [number] for number in range(1_000)}] * 20},
    ),
    "no two equal of many large integers": (_items({}, uniqueItems=True), {"x": [2**64 + number for number in range(20_000)]}),
    "no two equal in many short lists": (_items({"uniqueItems": True}), {"x": [[1e-300 * number for number in range(15)]] * 3_000}),
    "no two equal of many objects": (_items({}, uniqueItems=True), {"x": [{"a": [number]} for number in range(16_000)]}),
    "a look ahead from each character": ({"properties": {"x": {"pattern": "(?=[^z]*z)q"}}}, {"x": "a" * 1_000_000}),
    "a look ahead, and back": ({"properties": {"x": {"pattern": r"(?=(.*))\1z"}}}, {"x": "a" * 100_000}),
    "a pattern with hundreds of ways": (_items({"pattern": "[^x]{1,500}x"}), {"x": [_AB]}),
    "a pattern with twenty ways": (_items(_any({"pattern": "[ab]*a[ab]{20}c"})), {"x": [_AB[:1_000]] * 200}),
    "names with thousands of ways": ({"patternProperties": {"[ab]*a[ab]{99}c": {}}}, {_AB[start:]: 1 for start in range(4)}),
    "unevaluated within unevaluated": (_unevaluated(5), {"x": [{f"n{number}": 1 for number in range(1_000)}] * 50}),
    "names that depend on each other": (
        _items({"dependentRequired": {f"n{number}": ["a"] for number in range(5_000)}}),
        {"x": [{}] * 40_000},
    ),
    "text that is JSON": (
        {"$schema": "http://json-schema.org/draft-07/schema#", **_items(_any({"contentMediaType": "application/json"}))},
        {"x": ["[" + "[1]," * 50_000 + "1]"] * 4},
    ),
    "names of other alphabets": (_items({"allOf": [{"propertyNames": {"maxLength": 9**9 + number}} for number in range(99)]}), {"x": [{"é" * 100_000: 1}]}),
    "a tree of alternatives": (
        {"anyOf": [{"properties": {"x": {"items": {"$ref": "#"}}}, "required": [name]} for name in "abcde"]},
        _deep(40, {"f": 1}),
    ),
    "alternatives that double": (
        {
            "$defs": {
                **{f"a{number}": {"anyOf": [{"$ref": f"#/$defs/a{number + 1}"}] * 2} for number in range(16)},
                "a16": {"required": ["y"]},
            },
            **_items({"$ref": "#/$defs/a0"}),
        },
        {"x": [{}] * 1_000},
    ),
    "a dynamic reference to itself": (
        {
            "$dynamicAnchor": "n",
            "properties": {"x": {"items": {"allOf": [{"$dynamicRef": "#n"}, {"$dynamicRef": "#n"}]}}},
        },
        _deep(40, 1),
    ),
    "conditions in rows": (
        _items({"allOf": [{"if": {"minLength": number}, "then": {"maxLength": 9**9}} for number in range(2_000)]}),
        {"x": ["x"] * 40_000},
    ),
    "contained in many": (
        _items({"allOf": [{"contains": {"const": number + 0.5}, "minContains": 0} for number in range(200)]}),
        {"x": [[0.1] * 100] * 200},
    ),
    "defaults that do not fit together": (
        {
            "properties": {f"d{number}": {"default": "y"} for number in range(200)},
            "maxProperties": 20,
            "patternProperties": {"^x": {"items": {"minimum": 0.5}}},
        },
        {f"x{number}": [1.5] * 200 for number in range(8)},
    ),
}  # fmt: skip
