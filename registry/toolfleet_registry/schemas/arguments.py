"""Judges whether a call's arguments are a JSON object that survives the way to a module, and is small enough for it."""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, TypeAlias

from pydantic_core import to_json

from toolfleet_registry.schemas.effort import is_small
from toolfleet_registry.system.http_bodies import MAX_DEPTH, loads_strict

# A small object that holds itself often can stand for more JSON than fits into any memory; and to judge, check and
# write so many values keeps a loop for some milliseconds each.
MAX_VALUES = 20_000
_MAX_BITS = 14_000  # of an integer: Python writes at most 4300 digits
_USUAL_BITS = 64
# Of all integers with more than 64 bits: to write one takes longer by the square of its digits, and several steps do.
_MOST_WIDE_BITS = 2**18
_SHOWN = 40  # characters of a key in a reason

_Place: TypeAlias = "tuple[_Place, str | int] | None"
"""The way from the arguments down to a value: parent and step; built always, spelled out for a refusal only."""


def fault_in(arguments: Any, *, most: int = MAX_VALUES) -> str | None:
    """Return why these arguments, of `most` values, cannot be sent, and where the fault is, or `None`. Never repeats a value."""
    if isinstance(arguments, str):
        return _fault_in_text(arguments)
    if not isinstance(arguments, dict):
        return f"Arguments must be a JSON object, not {_kind(arguments)}."
    return None if is_small(arguments) or _is_plain(arguments, most) else _first_fault(arguments, most)


def size_fault(arguments: dict[str, Any], *, most: int) -> str | None:
    """Return why these arguments, which have no other fault, are too large; `None` for at most `most` bytes."""
    size = size_of(arguments)
    return None if size <= most else f"Arguments have {size} bytes as JSON; at most {most} can be sent."


def size_of(arguments: dict[str, Any]) -> int:
    """Return the bytes of arguments that have no fault, as the JSON that is published: ASCII. A megabyte takes some ms."""
    try:
        data = to_json(arguments)
    except ValueError:  # of a Python type that only Python's own encoder takes for one of JSON
        return len(json.dumps(arguments, separators=(",", ":")))
    if data.isascii():
        return len(data)
    text = data.decode()
    plain = len(text.encode("ascii", "ignore"))
    pairs = len(text.encode("utf-16-le")) // 2 - len(text)  # characters that are written as two escapes
    return plain + _ESCAPE * (len(text) - plain + pairs)


def _is_plain(arguments: dict[str, Any], most: int) -> bool:
    """Return whether there is surely no fault: checked for all values of a level at once, in a tenth of the time.

    A value that has no plain type of Python's may still have none.
    """
    now: list[Any] = [arguments]
    values, wide_bits = 1, 0
    for _ in range(MAX_DEPTH):
        values += sum(map(len, now))
        objects = [each for each in now if type(each) is dict]
        if values > most or not _is_text(chain.from_iterable(objects)):
            return False
        after = list(chain.from_iterable([each.values() if type(each) is dict else each for each in now]))
        kinds = set(map(type, after))
        if not kinds <= _PLAIN or not all(_ARE_FINE[kind](after) for kind in kinds & _ARE_FINE.keys()):
            return False
        wide_bits += _wide_bits(after) if int in kinds else 0
        if wide_bits > _MOST_WIDE_BITS:
            return False
        now = [each for each in after if type(each) in _HOLDERS] if kinds & _HOLDERS else []
        if not now:
            return True
    return False


def _is_text(names: Iterable[Any]) -> bool:
    try:
        return _fault_of_text("".join(names)) is None
    except TypeError:  # a name that is no text
        return False


def _are_finite(values: list[Any]) -> bool:
    return all(map(math.isfinite, [each for each in values if type(each) is float]))


def _are_writable(values: list[Any]) -> bool:
    integers = [each for each in values if type(each) is int]
    return max(integers).bit_length() <= _MAX_BITS and min(integers).bit_length() <= _MAX_BITS


def _wide_bits(values: list[Any]) -> int:
    """Return the bits of all integers that have more than usual."""
    integers = [each for each in values if type(each) is int]
    if max(integers).bit_length() <= _USUAL_BITS and min(integers).bit_length() <= _USUAL_BITS:
        return 0
    return sum(bits for bits in map(int.bit_length, integers) if bits > _USUAL_BITS)


def _are_text(values: list[Any]) -> bool:
    return _is_text(each for each in values if type(each) is str)


def _first_fault(arguments: dict[str, Any], most: int) -> str | None:
    waiting: list[tuple[Any, _Place, int]] = [(arguments, None, 1)]
    visited = wide_bits = 0
    # Depth first, so that an object that contains itself is found before it unfolds.
    while waiting:
        value, place, depth = waiting.pop()
        visited += 1
        if fault := _fault_of(value, depth):
            return f"{_spelled(place)} {fault}."
        if visited > most:
            return f"Arguments have more than {most} values."
        wide_bits += _wide_bits([value]) if type(value) is int else 0
        if wide_bits > _MOST_WIDE_BITS:
            return "Arguments have too many digits in integers of more than 64 bits."
        waiting.extend((child, (place, step), depth + 1) for step, child in _children(value))
    return None


def _fault_in_text(text: str) -> str:
    try:
        value = loads_strict(text.encode("utf-8", "replace"))
    except ValueError as exc:
        return f"Arguments are {exc}."
    what = "the text of one" if isinstance(value, dict) else "a string"
    return f"Arguments must be a JSON object, not {what}."


def _fault_of(value: Any, depth: int) -> str | None:
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, str):
        return _fault_of_text(value)
    if isinstance(value, int):
        return "is an integer with too many digits" if value.bit_length() > _MAX_BITS else None
    if isinstance(value, float):
        return None if math.isfinite(value) else "is not a finite number"
    if isinstance(value, dict | list | tuple):
        return _fault_of_container(value, depth)
    return f"is of the Python type {type(value).__name__!r}, which JSON does not have"


def _fault_of_text(text: str) -> str | None:
    if text.isascii() or not _SURROGATE.search(text):
        return None
    return "has half of a surrogate pair, which is no character"


def _fault_of_container(value: Any, depth: int) -> str | None:
    if depth > MAX_DEPTH:
        return f"is nested deeper than {MAX_DEPTH} levels, or contains itself"
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                return f"has a key of the Python type {type(key).__name__!r}; JSON has only strings"
            if fault := _fault_of_text(key):
                return f"has a key that {fault}"
    return None


def _children(value: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list | tuple):
        yield from enumerate(value)


def _spelled(place: _Place) -> str:
    """`arguments.items[3].name`; of a long way its end."""
    steps = list[str]()
    while place is not None:
        place, step = place
        steps.append(f"[{step}]" if isinstance(step, int) else f".{_shown(step)}")
    if len(steps) > _MOST_STEPS:
        steps[_MOST_STEPS:] = ["…"]
    return "arguments" + "".join(reversed(steps))


def _shown(key: str) -> str:
    return key if len(key) <= _SHOWN and key.isprintable() else repr(key[:_SHOWN])


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), f"the Python type {type(value).__name__!r}")


_MOST_STEPS = 8
_ESCAPE = 6  # characters of `\\u00e9`
_HOLDERS = frozenset({dict, list, tuple})
_PLAIN = _HOLDERS | {str, int, float, bool, type(None)}
_ARE_FINE: Mapping[type, Callable[[list[Any]], bool]] = {str: _are_text, int: _are_writable, float: _are_finite}
_KINDS: Mapping[type, str] = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    list: "an array",
    tuple: "an array",
}
_SURROGATE = re.compile("[\ud800-\udfff]")
