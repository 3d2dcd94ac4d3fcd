"""Finds which arguments of a tool must not be kept after its call has ended.

A place is a JSON pointer (RFC 6901) in which a step `*` stands for every member of an object and every item of an array.
Fails closed: what cannot be followed in a schema is sensitive as a whole.
"""

import weakref
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias
from urllib.parse import unquote

from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.policy.redaction import DEEPEST, is_index, steps_of

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


def sensitive_paths(tool: ToolDefinition) -> tuple[str, ...]:
    """The places of a tool's sensitive arguments, sorted; `EVERYTHING` alone where that cannot be told.

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
        """The part of this document that is meant; `None` if it is in another, or nowhere."""
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


def _children(schema: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The schemas in a schema, with the steps to their places. What should be a list and is none comes in one: it is no schema."""
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
    """As pointers, without those that lie in others; too many of them are replaced by the whole arguments that they lie in."""
    outermost = {place for place in places if not any(place[:length] in places for length in range(len(place)))}
    for kept in (outermost, {place[:1] for place in outermost}):
        pointers = tuple(sorted("".join(f"/{_escaped(step)}" for step in place) for place in kept))
        if sum(map(len, pointers)) <= _LONGEST:
            return pointers
    return (EVERYTHING,)


def _escaped(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1")
