"""Whether a call's arguments are a JSON object that survives the way to a module."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from toolfleet_registry.bodies import MAX_DEPTH, loads_strict

# A small object that holds itself often can stand for more JSON than fits into any memory; and looking at so many
# values keeps an agent's loop for about a tenth of a second.
MAX_VALUES = 100_000
_MAX_BITS = 14_000  # of an integer: Python writes at most 4300 digits
_SHOWN = 40  # characters of a key in a reason

_Place: TypeAlias = "tuple[_Place, str | int] | None"
"""The way from the arguments down to a value: parent and step; built always, spelled out for a refusal only."""


def fault_in(arguments: Any) -> str | None:
    """Why these arguments cannot be sent, and where the fault lies, or `None`. Never repeats a value."""
    if isinstance(arguments, str):
        return _fault_in_text(arguments)
    if not isinstance(arguments, dict):
        return f"Arguments must be a JSON object, not {_kind(arguments)}."
    waiting: list[tuple[Any, _Place, int]] = [(arguments, None, 1)]
    visited = 0
    # Depth first, so that an object that contains itself is found before it unfolds.
    while waiting:
        value, place, depth = waiting.pop()
        visited += 1
        if fault := _fault_of(value, depth):
            return f"{_spelled(place)} {fault}."
        if visited > MAX_VALUES:
            return f"Arguments have more than {MAX_VALUES} values."
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
_KINDS: Mapping[type, str] = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    list: "an array",
    tuple: "an array",
}
_SURROGATE = re.compile("[\ud800-\udfff]")
