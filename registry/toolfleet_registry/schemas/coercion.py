"""Reads numbers that a model has written as text: "5" for 5. Only for modules whose operator wants it; others get an error."""

import json
import math
import re
from collections.abc import Iterable
from itertools import islice
from typing import Any

from toolfleet_registry.schemas.outline import Outline, values_in, with_changes
from toolfleet_registry.schemas.subschemas import Schema

_MOST_VALUES = 10_000  # which takes some 15 ms
_LONGEST = 40  # characters: more is no number that somebody means


def coerced(outline: Outline, arguments: dict[str, Any]) -> dict[str, Any] | None:
    """A copy with numbers for texts that are clearly numbers, where a number is wanted and no text is allowed.

    `None` if there are none, or more than 10,000 values to look at. "5", "-0.5" and "1e3" are clearly numbers; " 5", "05", "1,000", "+1" and "0x10" are not.
    """
    places = list(islice(values_in(outline, arguments, leaves=True), _MOST_VALUES + 1))
    if len(places) > _MOST_VALUES:
        return None
    changes = [
        (path, number)
        for path, inner, value in places
        if isinstance(value, str) and path and (number := _number(value, _wanted(inner.schemas))) is not None
    ]
    return with_changes(arguments, changes) if changes else None


def _number(text: str, wanted: frozenset[str]) -> int | float | None:
    if len(text) > _LONGEST or not wanted:
        return None
    if _INTEGER.fullmatch(text):
        return int(text)
    if "number" in wanted and _NUMBER.fullmatch(text):
        number = json.loads(text)
        return number if math.isfinite(number) else None
    return None


def _wanted(schemas: Iterable[Schema]) -> frozenset[str]:
    """The kinds of number that all of them take; none where one of them takes a text."""
    wanted = _NUMBERS
    has_types = False
    for schema in schemas:
        for keyword in ("anyOf", "oneOf"):
            if isinstance(branches := schema.get(keyword), list):
                alternatives = [_types(branch) for branch in branches]
                if all(alternatives):
                    wanted, has_types = _narrowed(wanted, frozenset[str]().union(*alternatives)), True
        if types := _types(schema):
            wanted, has_types = _narrowed(wanted, types), True
    return wanted if has_types else frozenset()


def _narrowed(wanted: frozenset[str], types: frozenset[str]) -> frozenset[str]:
    if "string" in types:
        return frozenset()
    return wanted & (types | {"integer"} if "number" in types else types)


def _types(schema: Any) -> frozenset[str]:
    types = schema.get("type") if isinstance(schema, dict) else None
    if isinstance(types, str):
        return frozenset({types})
    return frozenset(map(str, types)) if isinstance(types, list) else frozenset()


_NUMBERS = frozenset({"integer", "number"})
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
