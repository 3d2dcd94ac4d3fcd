"""Hides what must not be kept of a call after its end, in its arguments and in a module's words about them.

Where the places are is found in `sensitive`. Fails closed: what has not the shape that a place asks for is hidden as a whole, and
so is everything where finding it would take long.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

REDACTED = "[redacted]"
"""What stands in the place of a value that is not kept."""

DEEPEST = 32
"""Steps of a place; what lies deeper is hidden with what holds it."""

_MOST_SECRETS = 1_000  # values that are looked for in a text: a microsecond or two each
_MOST_DIFFERING = 5 * _MOST_SECRETS  # values that may be such
_MOST_WALKED = 5_000  # values of one call that are looked into, one by one: some 5 ms
_ARRAYS = (list, tuple)  # a union would be made again for each value
_SHORTEST_SECRET = 4  # characters; to look for less in a text would hide half of it


def redacted(arguments: Mapping[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    """A copy with `REDACTED` at these places. A value that is not of the shape that a place asks for is hidden as well.

    Where thousands of values would have to be looked into, everything is.
    """
    tree = _tree(paths)
    if tree.is_end:
        return dict.fromkeys(arguments, REDACTED)
    try:
        hidden = _without(dict(arguments), _Here((tree,), _Walk())) if tree.children else dict(arguments)
    except _TooMany:
        hidden = REDACTED
    return hidden if isinstance(hidden, dict) else dict.fromkeys(arguments, REDACTED)


def scrubbed(text: str, arguments: Mapping[str, Any], kept: Mapping[str, Any]) -> str:
    """A text, such as a module's error, without the values that `arguments` have and `kept`, their copy, has not.

    As far as they stand in it as they are, or as JSON writes them; of fewer than 4 characters they are not looked for. Of a call with very many of
    them nothing of it is kept.
    """
    secrets = _secrets(arguments, kept) if text else set[str]()
    if secrets is None:
        return REDACTED
    for secret in sorted(secrets, key=len, reverse=True):  # the longest first: others may be parts of it
        for form in (secret, json.dumps(secret, ensure_ascii=False)[1:-1], json.dumps(secret)[1:-1]):
            text = text.replace(form, REDACTED)
    return text


def steps_of(pointer: str) -> list[str]:
    """The steps of a JSON pointer."""
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def is_index(step: str) -> bool:
    """Return whether a step may be an array index."""
    return step.isascii() and step.isdigit() and len(step) <= DEEPEST


@dataclass(slots=True)
class _Node:
    """A step of places: those that go on, by their next step. `indices` are steps that are meant for arrays."""

    is_end: bool = False
    children: dict[str, "_Node"] = field(default_factory=dict)
    indices: set[str] = field(default_factory=set)
    has_names: bool = False


def _tree(paths: Iterable[str]) -> _Node:
    root = _Node()
    for path in paths:
        node = root
        # What is no pointer has no steps: it hides everything.
        for step in steps_of(path)[:DEEPEST] if path.startswith("/") else ():
            if is_index(step):
                node.indices.add(step)
            node.has_names = node.has_names or not (is_index(step) or step == "*")
            node = node.children.setdefault(step, _Node())
        node.is_end = True
    return root


class _TooMany(Exception):
    """There are too many values to walk without blocking the event loop."""


@dataclass(slots=True)
class _Walk:
    """Counts the values that are looked into because they are where a `*` leads to."""

    left: int = _MOST_WALKED

    def through(self, values: int) -> None:
        """Count values against the budget. Raises `_TooMany`."""
        self.left -= values
        if self.left < 0:
            raise _TooMany


class _Here:
    """All nodes of the path tree that apply to one value."""

    def __init__(self, nodes: tuple[_Node, ...], walk: _Walk) -> None:
        self._nodes = nodes
        self.walk = walk
        self.is_end = any(node.is_end for node in nodes)
        self.has_names = any(node.has_names for node in nodes)
        self.indices = frozenset[str]().union(*(node.indices for node in nodes))
        self.named = dict.fromkeys(name for node in nodes for name in node.children if name != "*").keys()
        self._after = dict[str, _Here]()

    @cached_property
    def every(self) -> "_Here | None":
        """The place of any member or item that no step names; `None` if nothing below it is hidden."""
        return self.after("*") if any("*" in node.children for node in self._nodes) else None

    def after(self, step: str) -> "_Here":
        """Return the place of the member or item that this step leads to."""
        found = self._after.get(step)
        if found is None:
            found = self._after[step] = _Here(
                tuple(node.children[name] for node in self._nodes for name in {step, "*"} & node.children.keys()),
                self.walk,
            )
        return found


def _hidden(value: Any, here: _Here) -> Any:
    """The value without what lies at the ends of these places."""
    return REDACTED if here.is_end else _without(value, here)


def _without(value: Any, here: _Here) -> Any:
    """The same of a value that is kept itself."""
    if isinstance(value, dict):
        if here.indices and not here.indices <= value.keys():
            return REDACTED
        return _without_members(value, here) if value else {}
    if isinstance(value, _ARRAYS):
        return REDACTED if here.has_names else _without_items(value, here)
    return value if value is None else REDACTED


def _without_members(members: dict[str, Any], here: _Here) -> dict[str, Any]:
    every = here.every
    if every is None:
        kept = dict(members)
    elif every.is_end:
        kept = dict.fromkeys(members, REDACTED)
    else:
        here.walk.through(len(members))
        kept = {name: _without(child, every) for name, child in members.items()}
    few, many = (here.named, members) if len(here.named) < len(members) else (members, here.named)
    for name in few:
        if name in many:
            kept[name] = _hidden(members[name], here.after(name))
    return kept


def _without_items(items: Sequence[Any], here: _Here) -> list[Any]:
    every = here.every
    if every is None:
        kept = list(items)
    elif every.is_end:
        kept = [REDACTED] * len(items)
    else:
        here.walk.through(len(items))
        kept = [_without(child, every) for child in items]
    for step in here.indices:
        if (index := int(step)) < len(items) and str(index) == step:
            kept[index] = _hidden(items[index], here.after(step))
    return kept


def _secrets(arguments: Mapping[str, Any], kept: Mapping[str, Any]) -> set[str] | None:
    """The texts in arguments that their copy has not; `None` for more than are looked for."""
    found = set[str]()
    waiting: list[tuple[Any, Any]] = [(arguments, kept)]
    while waiting:
        value, copy = waiting.pop()
        if isinstance(value, dict) and isinstance(copy, dict):
            pairs = [(child, copy.get(name, REDACTED)) for name, child in value.items()]
            waiting += [pair for pair in pairs if pair[0] is not pair[1]]
        elif isinstance(value, _ARRAYS) and isinstance(copy, list):
            waiting += [pair for pair in zip(value, copy, strict=False) if pair[0] is not pair[1]]
        elif copy == REDACTED:
            texts = list(islice(_texts(value), _MOST_SECRETS + 1))
            if len(texts) > _MOST_SECRETS:
                return None
            found.update(texts)
        if len(found) > _MOST_SECRETS or len(waiting) > _MOST_DIFFERING:
            return None
    return found


def _texts(value: Any) -> Iterator[str]:
    waiting = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            waiting.extend(node.values())
        elif isinstance(node, _ARRAYS):
            waiting.extend(node)
        elif not (node is None or isinstance(node, bool)) and len(text := str(node)) >= _SHORTEST_SECRET:
            yield text
