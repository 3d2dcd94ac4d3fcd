"""Hides what must not be kept of a call after its end: finds the sensitive arguments and results of a tool, and redacts them.

A place is a JSON pointer (RFC 6901) in which a step `*` stands for every member of an object and every item of an array.
Fails closed: what cannot be followed in a schema is sensitive as a whole.

A result itself is kept for its caller; where `TOOLFLEET_CALL_CONTENTS` keeps a copy for operators, a sensitive one is hidden there.

Where the places are is found in `sensitive`. Fails closed: what has not the shape that a place asks for is hidden as a whole, and
so is everything where finding it would take long.
"""

import json
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, TypeAlias
from urllib.parse import unquote

from toolfleet_registry.contracts import ToolDefinition

EVERYTHING = ""
"""The place of all arguments."""

_Place: TypeAlias = tuple[str, ...]

_MARKS = ("sensitive", "x-sensitive", "writeOnly")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_MOST_STEPS = (
    20_000  # through one schema, some 20 ms: definitions that use each other can stand for endlessly many places
)
_LONGEST = 2_000  # characters of all places of a tool: they travel with each call

_known: dict[int, tuple["weakref.ref[ToolDefinition]", tuple[str, ...]]] = {}

_HERE, _EVERY = (), ("*",)
# Keywords with a schema, a list or an object of schemas, by the steps from the place of their own schema to that of theirs.
_KEYWORDS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("if", "then", "else", "not", "propertyNames", "contentSchema"), _HERE),
    **dict.fromkeys(("additionalProperties", "unevaluatedProperties", "additionalItems", "unevaluatedItems"), _EVERY),
    "contains": _EVERY,
}
_LISTS: Mapping[str, tuple[str, ...]] = {**dict.fromkeys(("allOf", "anyOf", "oneOf"), _HERE), "items": _EVERY}
_OBJECTS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("dependentSchemas", "dependencies"), _HERE),
    "patternProperties": _EVERY,
}

OUR_WORDS = frozenset({"timed_out", "expired", "cancelled", "outcome_unknown", "fleet_unavailable", "internal"})
"""Error codes of ends that no module has worded."""

_KNOWN_RESULTS: dict[int, tuple["weakref.ref[ToolDefinition]", bool]] = {}

REDACTED = "[redacted]"
"""What stands in the place of a value that is not kept."""

DEEPEST = 32
"""Steps of a place; what lies deeper is hidden with what holds it."""

_MOST_SECRETS = 1_000  # values that are looked for in a text: a microsecond or two each
_MOST_DIFFERING = 5 * _MOST_SECRETS  # values that may be such
_MOST_WALKED = 5_000  # values of one call that are looked into, one by one: some 5 ms
_ARRAYS = (list, tuple)  # a union would be made again for each value
_SHORTEST_SECRET = 4  # characters; to look for less in a text would hide half of it


def sensitive_paths(tool: ToolDefinition) -> tuple[str, ...]:
    """Return the places of a tool's sensitive arguments, sorted; `EVERYTHING` alone where that cannot be told.

    Those of flat parameters that say so, and in a JSON Schema of what has `sensitive`, `x-sensitive` or `writeOnly`, at
    any depth. Found once for each definition, and never fails.
    """
    key = id(tool)
    known = _known.get(key)
    if known is not None and known[0]() is tool:
        return known[1]
    found = _bounded({(parameter.name,) for parameter in tool.parameters if parameter.sensitive} | _in_schema(tool))
    _known[key] = (weakref.ref(tool, lambda _: _known.pop(key, None)), found)
    return found


def has_mark(schema: dict[str, Any]) -> bool:
    """Return whether anything in a JSON Schema is marked as sensitive, or cannot be followed."""
    return _Search(schema).has_mark(schema)


def _in_schema(tool: ToolDefinition) -> set[_Place]:
    if tool.input_schema is None:
        return set()
    search = _Search(tool.input_schema)
    return search.places() if search.has_mark(tool.input_schema) else set()


class _Search:
    """Follows one schema along everything that applies to a place of the arguments."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._found = set[_Place]()
        self._steps_left = _MOST_STEPS
        self._marked: dict[int, bool] = {}  # by the id of a part of `root`

    def places(self) -> set[_Place]:
        """Return the places of the marks."""
        waiting: list[tuple[Any, _Place, frozenset[int]]] = [(self._root, (), frozenset({id(self._root)}))]
        while waiting:
            self._steps_left -= 1
            if self._steps_left <= 0:
                return {()}
            schema, place, entered = waiting.pop()
            if not isinstance(schema, dict) or len(place) >= DEEPEST:
                self._close_if_marked(schema, place)
            elif _is_marked(schema):
                self._found.add(place)
            else:
                waiting.extend((child, (*place, *steps), entered) for steps, child in _children(schema))
                waiting.extend((target, place, ids) for target, ids in self._referred(schema, place, entered))
        return self._found

    def has_mark(self, value: Any) -> bool:
        """Return whether anything in it, or in its references, is marked or cannot be followed."""
        if id(value) not in self._marked:
            self._marked[id(value)] = self._find_mark(value)
        return self._marked[id(value)]

    def _find_mark(self, value: Any) -> bool:
        waiting, seen = [value], set[int]()
        while waiting:
            node = waiting.pop()
            if not isinstance(node, dict | list) or id(node) in seen:
                continue
            seen.add(id(node))
            self._steps_left -= value is not self._root  # once through the whole is free: most schemas end there
            if self._steps_left <= 0:
                return True
            if isinstance(node, list):
                waiting.extend(node)
                continue
            targets = [self._target(node[name]) for name in _REFERENCES if name in node]
            if _is_marked(node) or any(target is None for target in targets):
                return True
            waiting.extend([*node.values(), *targets])
        return False

    def _referred(
        self, schema: dict[str, Any], place: _Place, entered: frozenset[int]
    ) -> Iterator[tuple[Any, frozenset[int]]]:
        """Yield the targets of a schema's references.

        A recursive schema has infinitely many places: it is closed where it repeats.
        """
        for name in _REFERENCES:
            if name not in schema:
                continue
            target = self._target(schema[name])
            if target is None:
                self._found.add(place)
            elif id(target) in entered or len(entered) > DEEPEST:
                self._close_if_marked(target, place)
            else:
                yield target, entered | {id(target)}

    def _close_if_marked(self, value: Any, place: _Place) -> None:
        if self.has_mark(value):
            self._found.add(place)

    def _target(self, reference: Any) -> Any:
        """Return the part of this document that is meant; `None` if it is in another, or nowhere."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            return None
        node: Any = self._root
        for step in steps_of(unquote(reference[1:])):
            if isinstance(node, dict):
                node = node.get(step)
            elif isinstance(node, list) and is_index(step) and int(step) < len(node):
                node = node[int(step)]
            else:
                return None
        return node


def _is_marked(schema: Mapping[str, Any]) -> bool:
    """Return whether a schema is marked; any value but a clear no counts as a yes."""
    return any(schema.get(mark) not in (None, False) for mark in _MARKS)


def _children(schema: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the subschemas of a schema, with the steps to their places. A value that should be a list and is none is yielded in a list."""
    for keyword, value in schema.items():
        if keyword in _KEYWORDS or (keyword == "items" and not isinstance(value, list)):
            yield _KEYWORDS.get(keyword, _EVERY), value
        elif keyword in _LISTS:
            yield from ((_LISTS[keyword], child) for child in (value if isinstance(value, list) else [[value]]))
        elif keyword in _OBJECTS:
            children = value.values() if isinstance(value, dict) else [value]
            yield from ((_OBJECTS[keyword], child) for child in children)
        elif keyword == "properties":
            yield from (((name,), child) for name, child in value.items()) if isinstance(value, dict) else [((), value)]
        elif keyword == "prefixItems":
            is_list = isinstance(value, list)
            yield from (((str(n),), child) for n, child in enumerate(value)) if is_list else [(_EVERY, [value])]


def _bounded(places: set[_Place]) -> tuple[str, ...]:
    """Return the places as pointers, without those that lie in others; too many are replaced by the whole arguments that contain them."""
    outermost = {place for place in places if not any(place[:length] in places for length in range(len(place)))}
    for kept in (outermost, {place[:1] for place in outermost}):
        pointers = tuple(sorted("".join(f"/{_escaped(step)}" for step in place) for place in kept))
        if sum(map(len, pointers)) <= _LONGEST:
            return pointers
    return (EVERYTHING,)


def _escaped(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1")


def has_sensitive_results(tool: ToolDefinition) -> bool:
    """Return whether anything in the tool's `output_schema` is marked as sensitive, or cannot be followed.

    Computed once for each definition, and never fails.
    """
    if tool.output_schema is None:
        return False
    key = id(tool)
    known = _KNOWN_RESULTS.get(key)
    if known is not None and known[0]() is tool:
        return known[1]
    found = has_mark(tool.output_schema)
    _KNOWN_RESULTS[key] = (weakref.ref(tool, lambda _: _KNOWN_RESULTS.pop(key, None)), found)
    return found


def redacted(arguments: Mapping[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    """Return a copy with `REDACTED` at these places. A value that is not of the shape that a place asks for is hidden as well.

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
    """Return a text, such as a module's error, without the values that `arguments` have and `kept`, their copy, has not.

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
    """Return the steps of a JSON pointer."""
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
    """Return the value without what lies at the ends of these places."""
    return REDACTED if here.is_end else _without(value, here)


def _without(value: Any, here: _Here) -> Any:
    """Return the same of a value that is kept itself."""
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
    """Return the texts in arguments that their copy has not; `None` for more than are looked for."""
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
