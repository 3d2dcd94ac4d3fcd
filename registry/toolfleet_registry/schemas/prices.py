"""Prices one schema's own keywords for a value of the weight 1, in units of 10 ns, as they were measured.

The validator compares numbers as fractions of any size: one that is no plain integer costs up to thousands of times as
much as a text. That is in a value's weight; here is for how many comparisons a schema asks.
"""

import math
from collections.abc import Mapping
from typing import Any

from toolfleet_registry.schemas.patterns import ENDLESS

COMPARED = 80
"""Units for each value within one that is compared: of an array up to 15 items are compared each with each."""


def price_of(schema: Mapping[str, Any], root: Mapping[str, Any]) -> int:
    """The price of a schema without those inside it, in a document with that root."""
    units = 1 + isinstance(schema.get("type"), list)
    if not _PRICED & schema.keys():
        return units
    units += _NUMBER * len(_BOUNDS & schema.keys()) + _of_options(_options(schema))
    for keyword in _BY_NAME & schema.keys():
        units += _LOOKUP * _names_in(schema[keyword])
    if "multipleOf" in schema:
        units += _of_divisor(schema["multipleOf"])
    if "propertyNames" in schema:
        units += _NAMES
    if _CONTENT & schema.keys() and str(root.get("$schema")).rstrip("#") in _READS_CONTENT:
        units += _CONTENT_READ
    return units


def compared_options(schema: Mapping[str, Any]) -> int:
    """Return the number of objects and arrays that a value is compared with, at all depths."""
    return sum(isinstance(option, dict | list) for option in _options(schema))


def compares_items(schema: Mapping[str, Any]) -> bool:
    """Return whether the items of an array are compared with each other."""
    return bool(schema.get("uniqueItems"))


def weight_of(number: float) -> int:
    """Return how many plain integers take as long as this number."""
    bits = number.bit_length() if isinstance(number, int) else abs(math.frexp(number)[1])
    return _FRACTION + bits * bits // _SQUARE_BITS


def _options(schema: Mapping[str, Any]) -> list[Any]:
    values = schema.get("enum")
    return [*(values if isinstance(values, list) else ()), *((schema["const"],) if "const" in schema else ())]


def _of_options(options: list[Any]) -> int:
    """Texts are looked up, if there is nothing else among them."""
    if all(isinstance(option, str) for option in options):
        return _LOOKUP * min(len(options), 2)
    return sum(map(_of_option, options))


def _of_option(option: Any) -> int:
    if isinstance(option, dict | list):
        return COMPARED
    if isinstance(option, int | float) and not isinstance(option, bool):
        return _NUMBER * _size_of(option)
    return _LOOKUP


def _of_divisor(divisor: Any) -> int:
    if isinstance(divisor, int) and not isinstance(divisor, bool):
        return _NUMBER * _size_of(divisor)
    if isinstance(divisor, float) and divisor:
        return _DIVISION * _size_of(divisor)
    return ENDLESS


def _size_of(number: float) -> int:
    """As many plain numbers of a schema as this one takes the time of."""
    if isinstance(number, int):
        return 1 + number.bit_length() // _WIDE_BITS
    if number and not _SMALLEST <= abs(number) < _LARGEST:
        return _EXTREME
    return 1


def _names_in(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(len(each) for each in value.values() if isinstance(each, list))
    return len(value) if isinstance(value, list) else 0


_NUMBER = 16  # to compare with a number
_DIVISION = 250  # to divide by a fraction
_LOOKUP = 3  # of a name or text
_NAMES = 15  # for the characters of a name that is none of ASCII
_CONTENT_READ = 1_700  # to read a text as JSON, 130 ns a character
_FRACTION = 10
_SQUARE_BITS = 4_000
_WIDE_BITS = 8
_EXTREME = 12
_SMALLEST, _LARGEST = 1e-6, 1e15
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_BY_NAME = frozenset({"required", "dependentRequired", "dependentSchemas", "dependencies"})
_CONTENT = frozenset({"contentMediaType", "contentEncoding"})
_READS_CONTENT = frozenset({"http://json-schema.org/draft-06/schema", "http://json-schema.org/draft-07/schema"})
_PRICED = _BOUNDS | _BY_NAME | _CONTENT | {"enum", "const", "multipleOf", "propertyNames"}
