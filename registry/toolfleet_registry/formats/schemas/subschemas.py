"""Finds the schemas inside a JSON Schema, and knows what its keywords must look like."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]

ONE = frozenset(
    [
        "items",
        "contains",
        "additionalProperties",
        "unevaluatedItems",
        "unevaluatedProperties",
        "propertyNames",
        "not",
        "if",
        "then",
        "else",
    ]
)
LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
MAPS = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
# They decide nothing about a value. Their own keywords, not added ones.
ANNOTATIONS = frozenset(
    [
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "format",
        "contentEncoding",
        "contentMediaType",
    ]
)


def children(schema: JsonObject) -> Iterator[tuple[str, Any]]:
    """Yield each direct subschema, with the pointer to it."""
    for keyword, value in schema.items():
        if keyword in ONE and isinstance(value, dict | bool):
            yield f"/{keyword}", value
        elif keyword in LISTS and isinstance(value, list):
            yield from ((f"/{keyword}/{index}", child) for index, child in enumerate(value))
        elif keyword in MAPS and isinstance(value, dict):
            yield from ((f"/{keyword}/{escaped(str(name))}", child) for name, child in value.items())


def rebuilt(schema: JsonObject, change: Callable[[Any, str], Any]) -> JsonObject:
    """A copy in which each schema directly inside is what `change(child, pointer)` makes of it."""
    copy: JsonObject = {}
    for keyword, value in schema.items():
        if keyword in ONE and isinstance(value, dict | bool):
            copy[keyword] = change(value, f"/{keyword}")
        elif keyword in LISTS and isinstance(value, list):
            copy[keyword] = [change(child, f"/{keyword}/{index}") for index, child in enumerate(value)]
        elif keyword in MAPS and isinstance(value, dict):
            copy[keyword] = {name: change(child, f"/{keyword}/{escaped(name)}") for name, child in value.items()}
        else:
            copy[keyword] = value
    return copy


def escaped(name: str) -> str:
    """One step of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def types_of(schema: JsonObject) -> list[str]:
    """The types that `type` names, in its order; empty if it names none."""
    spoken = schema.get("type")
    return [spoken] if isinstance(spoken, str) else list(spoken) if isinstance(spoken, list) else []


def is_keyword(keyword: str) -> bool:
    """Return whether the standard has this keyword, as one that constrains or describes a value."""
    return keyword in _SHAPES


def is_well_formed(keyword: str, value: Any) -> bool:
    """Return whether a keyword's value is valid by the standard; `False` for an unknown keyword."""
    check = _SHAPES.get(keyword)
    return check is not None and check(value)


def add_to_description(schema: JsonObject, limits: Mapping[str, Any]) -> None:
    """Say in the description what the schema can no longer say, if it is short."""
    text = ", ".join(f"{keyword}: {_json(value)}" for keyword, value in limits.items())
    if text and len(text) <= _LONGEST_ADDITION:
        description = schema.get("description")
        schema["description"] = f"{description} ({text})" if description else f"({text})"


def compiles(pattern: str) -> bool:
    """Return whether an ordinary validator can read this regular expression."""
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_anything(_: Any) -> bool:
    return True


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_type(value: Any) -> bool:
    spoken = [value] if isinstance(value, str) else value
    return isinstance(spoken, list) and bool(spoken) and all(isinstance(a, str) and a in TYPES for a in spoken)


def _is_schemas(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_schema, value))


def _is_map(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_schema, value.values()))


def _is_pattern_map(value: Any) -> bool:
    return _is_map(value) and all(map(compiles, value))


def _is_pattern(value: Any) -> bool:
    return isinstance(value, str) and compiles(value)


def _is_names_map(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_names, value.values()))


def _is_step(value: Any) -> bool:
    return _is_number(value) and value > 0


def _is_full_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


_LONGEST_ADDITION = 400
_SHAPES: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(ONE, _is_schema),
    **dict.fromkeys(LISTS, _is_schemas),
    **dict.fromkeys(MAPS, _is_map),
    **dict.fromkeys(("maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum"), _is_number),
    **dict.fromkeys(("maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"), _is_count),
    **dict.fromkeys(("maxContains", "minContains"), _is_count),
    **dict.fromkeys(("title", "description", "format", "$ref", "contentEncoding", "contentMediaType"), _is_text),
    **dict.fromkeys(("deprecated", "readOnly", "writeOnly", "uniqueItems"), _is_flag),
    **dict.fromkeys(("const", "default"), _is_anything),
    "type": _is_type,
    "enum": _is_full_list,
    "examples": _is_full_list,
    "multipleOf": _is_step,
    "pattern": _is_pattern,
    "patternProperties": _is_pattern_map,
    "required": _is_names,
    "dependentRequired": _is_names_map,
}
