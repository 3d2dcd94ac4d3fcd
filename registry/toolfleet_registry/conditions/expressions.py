"""Evaluates the part of JMESPath that a job may use, in a bounded number of steps.

Allowed are fields, indexes, slices, projections and filters, comparisons, `&&`, `||`, `!`, `|`, and a few functions; no
multi-selects, no expression references, and lists as literals only where `contains` looks into them. So a value is only
ever walked down, and what a function, a comparison or `[]` looks through counts by its size.

Bounds on an expression and on a value are not enough: 500 characters with 20 comparisons, over a result of 1.2 MB, hold
a worker's loop for 2.6 s. To stay below 0.1 s that way, a result could have some 40 kB.
"""

from functools import lru_cache
from typing import Any

import jmespath
from jmespath.exceptions import JMESPathError
from jmespath.functions import Functions
from jmespath.visitor import TreeInterpreter

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


class TooMuch(Exception):
    """An evaluation has taken as many steps as it may."""


UNANSWERED = (JMESPathError, ValueError, TypeError, RecursionError, ArithmeticError, TooMuch)
"""What asking something of a value may raise, when that is not as it is expected, or too large."""


class Walk(TreeInterpreter):
    """Evaluations of a bounded number of steps, together."""

    def __init__(self) -> None:
        super().__init__()
        self._left: float = _MOST_STEPS

    def found(self, path: str, value: Any) -> Any:
        """What stands there. Raises `ValueError`, `TooMuch`, and what JMESPath and its functions do."""
        return self.visit(parsed(path), value)

    def visit(self, node: Any, *args: Any, **kwargs: Any) -> Any:
        """As its parent's, counted."""
        if node["type"] != "literal":
            self.spend(1)
        return super().visit(node, *args, **kwargs)

    def visit_flatten(self, node: Any, value: Any) -> Any:
        """As above, for what it copies."""
        return self._paid(super().visit_flatten(node, value))

    def visit_slice(self, node: Any, value: Any) -> Any:
        """As above."""
        return self._paid(super().visit_slice(node, value))

    def visit_comparator(self, node: Any, value: Any) -> Any:
        """As above, for what is compared: equal ones are looked through to their depths."""
        sides = [self.visit(child, value) for child in node["children"]]
        self.spend(min(map(self.weight, sides)))
        return super().visit_comparator(node | {"children": [_literal(side) for side in sides]}, value)

    def visit_function_expression(self, node: Any, value: Any) -> Any:
        """As above, for what the function looks through."""
        sides = [self.visit(child, value) for child in node["children"]]
        if node["value"] not in _AT_ONCE:
            self.spend(sum(map(self.weight, sides)))
        return super().visit_function_expression(node | {"children": [_literal(side) for side in sides]}, value)

    def _paid(self, copied: Any) -> Any:
        self.spend(len(copied or ()) / _ITEMS_A_STEP)
        return copied

    def spend(self, steps: float) -> None:
        """Raises `TooMuch`."""
        self._left -= steps
        if self._left < 0:
            raise TooMuch

    def weight(self, value: Any) -> float:
        """Steps taken by whoever looks through all of it; of what is too much, some number above that."""
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
    """The syntax tree of an expression. Raises `ValueError`, in one sentence."""
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


def is_scalar(value: Any) -> bool:
    """Whether it holds nothing else."""
    return value is None or isinstance(value, str | int | float | bool)


def shown(text: str) -> str:
    """An expression as an error names it."""
    return repr(text if len(text) <= 80 else f"{text[:80]}…")  # noqa: PLR2004 - enough to know it by


def _literal(value: Any) -> dict[str, Any]:
    return {"type": "literal", "value": value, "children": []}


def _is_literal(value: Any, *, is_searched: bool) -> bool:
    return is_scalar(value) or (is_searched and isinstance(value, list) and all(is_scalar(one) for one in value))
