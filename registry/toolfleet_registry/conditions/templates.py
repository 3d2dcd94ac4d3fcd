"""Fills a poll's arguments from the result of its job's start: `{"$from": "<JMESPath>"}` stands for a value of it."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from toolfleet_registry.conditions.expressions import UNANSWERED, Walk, parsed, shown

FROM = "$from"
"""The one name of an object that stands for a value of the start's result."""

_DEEPEST = 20  # of arguments with something to fill in
_MOST_FILLED = 50  # values taken over in one call's arguments
_MOST_CHARACTERS = 100_000  # of all these together, as JSON


def check_filling(arguments: Mapping[str, Any]) -> None:
    """Raise `ValueError`, in one sentence, for arguments with a `$from` that cannot be followed."""
    paths = list(_paths(dict(arguments), 0))
    if len(paths) > _MOST_FILLED:
        raise ValueError(f"At most {_MOST_FILLED} values can be taken from the start's result.")
    for path in paths:
        if not isinstance(path, str):
            raise ValueError(  # noqa: TRY004 - a fault in somebody's arguments
                f"{FROM!r} must name a place in the start's result, as JMESPath."
            )
        parsed(path)


def takes_from_start(arguments: Mapping[str, Any]) -> bool:
    """Whether anything in them is taken from the start's result."""
    try:
        return next(_paths(dict(arguments), 0), None) is not None
    except ValueError:
        return True


@dataclass(frozen=True, slots=True)
class Filling:
    """Values for arguments, by their path in the start's result; or the `fault`, in words that have no value in them."""

    values: Mapping[str, Any]
    fault: str | None = None


def values_for(arguments: Mapping[str, Any], start_result: Any) -> Filling:
    """What the arguments take from a start's result. Raises nothing."""
    values, size, walk = dict[str, Any](), 0, Walk()
    try:
        for path in _paths(dict(arguments), 0):
            found = walk.found(path, start_result)
            if found is None:
                return Filling({}, f"The start's result has nothing at {shown(path)}.")
            walk.spend(walk.weight(found))
            values[path] = found
            size += len(json.dumps(found))
            if size > _MOST_CHARACTERS:
                text = f"What the poll takes from the start's result has more than {_MOST_CHARACTERS:,} characters."
                return Filling({}, text)
    except UNANSWERED:
        return Filling({}, "The poll's arguments cannot be taken from the start's result.")
    return Filling(values)


def filled(arguments: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with their values, from `values_for`. A place that has none is left as it is: the tool refuses it."""
    whole = _filled(dict(arguments), values, 0)
    return whole if isinstance(whole, dict) else {}


def _paths(value: Any, depth: int) -> Iterator[Any]:
    """What stands behind each `$from`. Raises `ValueError` where that is too deep."""
    if depth > _DEEPEST:
        if any(True for _ in _markers(value)):
            raise ValueError(f"{FROM!r} stands too deep in the arguments.")
        return
    if _is_marker(value):
        yield value[FROM]
        return
    for child in _children(value):
        yield from _paths(child, depth + 1)


def _markers(value: Any) -> Iterator[Any]:
    """Every `$from`, however deep, without recursion."""
    rest = [value]
    while rest:
        one = rest.pop()
        if _is_marker(one):
            yield one
        rest.extend(_children(one))


def _filled(value: Any, values: Mapping[str, Any], depth: int) -> Any:
    if depth > _DEEPEST:
        return value
    if _is_marker(value):
        path = value[FROM]
        return values[path] if isinstance(path, str) and path in values else value
    fill: Callable[[Any], Any] = lambda child: _filled(child, values, depth + 1)  # noqa: E731
    if isinstance(value, dict):
        return {name: fill(child) for name, child in value.items()}
    return [fill(child) for child in value] if isinstance(value, list) else value


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _is_marker(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and FROM in value
