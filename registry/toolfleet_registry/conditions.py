"""Evaluates the part of JMESPath that jobs may use.

Allowed are fields, indexes, slices, projections and filters, comparisons, `&&`, `||`, `!`, `|`, and a few functions; no
multi-selects, no expression references, and lists as literals only where `contains` looks into them. So a value is only
ever walked down, and what a function, a comparison or `[]` looks through counts by its size.

Bounds on an expression and on a value are not enough: 500 characters with 20 comparisons, over a result of 1.2 MB, hold
a worker's loop for 2.6 s. To stay below 0.1 s that way, a result could have some 40 kB.

A condition is a mapping, path -> value or list of values (all must hold; a list: one of these), or an expression that must
be true as JMESPath has it. All paths of a condition have the steps of one walk together.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jmespath
from jmespath.exceptions import JMESPathError
from jmespath.functions import Functions
from jmespath.visitor import TreeInterpreter

from toolfleet_registry.contracts.jobs import Condition

_LONGEST = 500  # characters of an expression
_DEEPEST = 20  # of a syntax tree
_MOST_STEPS = 50_000  # of one walk: up to 100 ms, in which a worker's loop does nothing else
_ITEMS_A_STEP = 4  # of a list or an object that is looked through in C
_CHARACTERS_A_STEP = 200  # of a text
_AT_ONCE = frozenset({"length", "not_null", "starts_with", "ends_with", "type"})  # functions that look through nothing

_NODES = frozenset({
    "and_expression", "comparator", "current", "field", "filter_projection", "flatten", "function_expression", "identity",
    "index", "index_expression", "literal", "not_expression", "or_expression", "pipe", "projection", "slice",
    "subexpression", "value_projection",
})  # fmt: skip
_FUNCTIONS = frozenset({
    "abs", "avg", "ceil", "contains", "ends_with", "floor", "keys", "length", "max", "min", "not_null", "starts_with", "sum",
    "to_number", "type", "values",
})  # fmt: skip

_MOST_PATHS = 20  # in one condition
_MOST_VALUES = 100  # in a list of one

FROM = "$from"
"""The one name of an object that stands for a value of the start's result."""

_DEEPEST_ARGUMENTS = 20  # of arguments with something to fill in
_MOST_FILLED = 50  # values taken over in one call's arguments
_MOST_CHARACTERS = 100_000  # of all these together, as JSON


class TooMuch(Exception):
    """An evaluation has taken as many steps as it may."""


_UNANSWERED = (JMESPathError, ValueError, TypeError, RecursionError, ArithmeticError, TooMuch)
"""The errors of evaluating an expression over a value of an unexpected type, or one that is too large."""


class Walk(TreeInterpreter):
    """Evaluations of a bounded number of steps, together."""

    def __init__(self) -> None:
        super().__init__()
        self._left: float = _MOST_STEPS

    def found(self, path: str, value: Any) -> Any:
        """Return the value at the path.

        Raises `ValueError`, `TooMuch`, and the exceptions of JMESPath and its functions.
        """
        return self.visit(parsed(path), value)

    def visit(self, node: Any, *args: Any, **kwargs: Any) -> Any:
        """Evaluate a node as the parent class does, and count it."""
        if node["type"] != "literal":
            self.spend(1)
        return super().visit(node, *args, **kwargs)

    def visit_flatten(self, node: Any, value: Any) -> Any:
        """Evaluate it, and count the elements that it copies."""
        return self._paid(super().visit_flatten(node, value))

    def visit_slice(self, node: Any, value: Any) -> Any:
        """Evaluate it, and count the elements."""
        return self._paid(super().visit_slice(node, value))

    def visit_comparator(self, node: Any, value: Any) -> Any:
        """Evaluate a comparison, paying for its cost: equal values are compared to their full depth."""
        sides = [self.visit(child, value) for child in node["children"]]
        self.spend(min(map(self.weight, sides)))
        return super().visit_comparator(node | {"children": [_literal(side) for side in sides]}, value)

    def visit_function_expression(self, node: Any, value: Any) -> Any:
        """Evaluate it, and count the elements that the function reads."""
        sides = [self.visit(child, value) for child in node["children"]]
        if node["value"] not in _AT_ONCE:
            self.spend(sum(map(self.weight, sides)))
        return super().visit_function_expression(node | {"children": [_literal(side) for side in sides]}, value)

    def _paid(self, copied: Any) -> Any:
        self.spend(len(copied or ()) / _ITEMS_A_STEP)
        return copied

    def spend(self, steps: float) -> None:
        """Take steps from the budget. Raises `TooMuch` when none are left."""
        self._left -= steps
        if self._left < 0:
            raise TooMuch

    def weight(self, value: Any) -> float:
        """Return the steps that walking all of the value takes; for a value beyond the budget, some number above it."""
        steps, rest = 0.0, [value]
        while rest and steps <= self._left:
            one = rest.pop()
            if isinstance(one, str):
                steps += len(one) / _CHARACTERS_A_STEP
            elif isinstance(one, list | dict):
                steps += len(one) / _ITEMS_A_STEP
                if steps <= self._left:
                    rest.extend(one.values() if isinstance(one, dict) else one)
        return steps


@lru_cache(1024)
def parsed(text: str) -> Any:
    """Return the syntax tree of an expression. Raises `ValueError`, in one sentence."""
    if len(text) > _LONGEST:
        raise ValueError(f"An expression has at most {_LONGEST} characters.")
    try:
        tree: Any = jmespath.compile(text).parsed
    except (JMESPathError, ValueError, RecursionError, KeyError, IndexError, TypeError) as exc:
        raise ValueError(
            f"{shown(text)} is no JMESPath; a name with other signs than A-Z, 0-9 and _ needs quotes."
        ) from exc
    _check(tree, text, 0)
    return tree


def _check(node: Any, text: str, depth: int, *, is_searched: bool = False) -> None:
    """`is_searched`: the node is what `contains` looks into."""
    kind = node["type"]
    if kind not in _NODES:
        raise ValueError(f"{shown(text)} has a {kind.replace('_', ' ')}, which is not allowed here.")
    if depth > _DEEPEST:
        raise ValueError(f"{shown(text)} is nested too deeply.")
    if kind == "literal" and not _is_literal(node["value"], is_searched=is_searched):
        raise ValueError(f"{shown(text)} has an object or a list as literal; a list may only stand in `contains`.")
    name = node.get("value") if kind == "function_expression" else None
    if kind == "function_expression" and name not in _FUNCTIONS:
        raise ValueError(f"{shown(text)} calls {name!r}; allowed are {', '.join(sorted(_FUNCTIONS))}.")
    if kind == "function_expression" and len(node["children"]) != _arity(name) and name != "not_null":
        raise ValueError(f"{shown(text)} calls {name!r} with {len(node['children'])} arguments.")
    if kind == "slice":  # its children are numbers
        return
    for number, child in enumerate(node["children"]):
        _check(child, text, depth + 1, is_searched=name == "contains" and number == 0)


def _arity(name: Any) -> int:
    return len(Functions.FUNCTION_TABLE[name]["signature"])


def _is_scalar(value: Any) -> bool:
    """Return whether the value contains no other values."""
    return value is None or isinstance(value, str | int | float | bool)


def shown(text: str) -> str:
    """Return an expression as an error names it."""
    return repr(text if len(text) <= 80 else f"{text[:80]}…")  # noqa: PLR2004 - enough to know it by


def _literal(value: Any) -> dict[str, Any]:
    return {"type": "literal", "value": value, "children": []}


def _is_literal(value: Any, *, is_searched: bool) -> bool:
    return _is_scalar(value) or (is_searched and isinstance(value, list) and all(_is_scalar(one) for one in value))


def check_condition(condition: Condition) -> None:
    """Raise `ValueError`, in one sentence, for a condition that cannot be asked."""
    if isinstance(condition, str):
        parsed(condition)
        return
    if not condition or len(condition) > _MOST_PATHS:
        raise ValueError(f"A condition has 1 to {_MOST_PATHS} paths.")
    for path, wanted in condition.items():
        parsed(path)
        values = wanted if isinstance(wanted, list) else [wanted]
        if not 0 < len(values) <= _MOST_VALUES or not all(_is_scalar(value) for value in values):
            raise ValueError(
                f"The condition on {shown(path)} must have a text, a number, a truth value, null, or a list of 1 to "
                f"{_MOST_VALUES} of these."
            )


def fulfils(condition: Condition, value: Any) -> bool:
    """Return whether `value` meets the condition. Raises nothing: a condition that cannot be evaluated is not met."""
    try:
        walk = Walk()
        if isinstance(condition, str):
            found = walk.found(condition, value)
            return found not in ("", [], {}, None) and found is not False
        return bool(condition) and all(_is_among(walk.found(path, value), wanted) for path, wanted in condition.items())
    except _UNANSWERED:
        return False


def missing_path(condition: Condition, value: Any) -> str | None:
    """Return the first path of a mapping that leads nowhere in `value`, and is not wanted to: most likely mistyped. Raises nothing."""
    if isinstance(condition, str):  # asks for more than a place
        return None
    walk = Walk()
    try:
        return next(
            (
                path
                for path, wanted in condition.items()
                if not _is_among(None, wanted) and walk.found(path, value) is None
            ),
            None,
        )
    except _UNANSWERED:
        return None


def _is_among(found: Any, wanted: Any) -> bool:
    values = wanted if isinstance(wanted, list) else [wanted]
    # Python takes 1 for true; JSON does not.
    return any(found == value and isinstance(found, bool) == isinstance(value, bool) for value in values)


def check_filling(arguments: Mapping[str, Any]) -> None:
    """Raise `ValueError`, in one sentence, for arguments with a `$from` that cannot be followed."""
    paths = list(_paths(dict(arguments), 0))
    if len(paths) > _MOST_FILLED:
        raise ValueError(f"At most {_MOST_FILLED} values can be taken from the start's result.")
    for path in paths:
        if not isinstance(path, str):
            raise ValueError(f"{FROM!r} must name a place in the start's result, as JMESPath.")
        parsed(path)


def takes_from_start(arguments: Mapping[str, Any]) -> bool:
    """Return whether any argument takes its value from the start's result."""
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
    """Return the values that the arguments take from a start's result. Raises nothing."""
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
    except _UNANSWERED:
        return Filling({}, "The poll's arguments cannot be taken from the start's result.")
    return Filling(values)


def filled(arguments: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with their values, from `values_for`. A place that has none is left as it is: the tool refuses it."""
    whole = _filled(dict(arguments), values, 0)
    return whole if isinstance(whole, dict) else {}


def _paths(value: Any, depth: int) -> Iterator[Any]:
    """Yield the path of each `$from`. Raises `ValueError` if one is nested too deeply."""
    if depth > _DEEPEST_ARGUMENTS:
        if any(True for _ in _markers(value)):
            raise ValueError(f"{FROM!r} stands too deep in the arguments.")
        return
    if _is_marker(value):
        yield value[FROM]
        return
    for child in _children(value):
        yield from _paths(child, depth + 1)


def _markers(value: Any) -> Iterator[Any]:
    """Yield every `$from`, however deep, without recursion."""
    rest = [value]
    while rest:
        one = rest.pop()
        if _is_marker(one):
            yield one
        rest.extend(_children(one))


def _filled(value: Any, values: Mapping[str, Any], depth: int) -> Any:
    if depth > _DEEPEST_ARGUMENTS:
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
