"""Collects what surely applies at each place of a value: the schemas along `properties` and `items`, through `$ref` and `allOf`.

What applies only perhaps (an alternative, a condition, a pattern of names) is left out.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from toolfleet_registry.schemas.subschemas import ReferenceUnknown, Schema, SchemaDocument

Path: TypeAlias = tuple[str | int, ...]

_HOLDERS = (dict, list, tuple)

_MOST_OUTLINES = 2_000  # of one document: definitions that use each other can stand for endlessly many


@dataclass(slots=True)
class Outline:
    """The schemas for one place, all of which hold. Those of its members and items are found when they are asked for."""

    schemas: list[Schema]
    _book: "_Book" = field(repr=False)
    _members: dict[str, "Outline | None"] = field(default_factory=dict[str, "Outline | None"], repr=False)
    _items: dict[int, "Outline | None"] = field(default_factory=dict[int, "Outline | None"], repr=False)
    _rest: int = field(default=-1, repr=False)
    _defaults: dict[str, Any] | None = field(default=None, repr=False)

    def member(self, name: str) -> "Outline | None":
        """Return the outline of the member with that name; `None` if nothing is known of it."""
        if name in self._members:
            return self._members[name]
        found = self._book.outline(_member(schema, name) for schema in self.schemas)
        if any(_has_property(schema, name) for schema in self.schemas):  # other names are the value's: without end
            self._members[name] = found
        return found

    def item(self, index: int) -> "Outline | None":
        """Return the outline of the item at that index."""
        if self._rest < 0:
            self._rest = max((_listed(schema) for schema in self.schemas), default=0)
        index = min(index, self._rest)
        if index not in self._items:
            self._items[index] = self._book.outline(_item(schema, index) for schema in self.schemas)
        return self._items[index]

    def defaults(self) -> dict[str, Any]:
        """Return the members' defaults, where there is exactly one."""
        if self._defaults is None:
            names = {name for schema in self.schemas for name in _properties(schema)}
            found = {name: self._default(name) for name in sorted(names)}
            self._defaults = {name: values[0] for name, values in found.items() if values}
        return self._defaults

    def _default(self, name: str) -> list[Any]:
        found = list[Any]()
        for schema in self.schemas:
            child = _properties(schema).get(name)
            if isinstance(child, dict):
                # Its own goes before that of what it refers to, which says what holds elsewhere.
                inner = [child] if "default" in child else self._book.together([child])
                found.extend(each["default"] for each in inner if "default" in each)
        same = all(type(value) is type(found[0]) and value == found[0] for value in found)
        return found if same else []


Place: TypeAlias = tuple[Path, Outline, Any]
"""A value in a value, with what is known of it."""


def outline_of(document: SchemaDocument) -> Outline | None:
    """Return the outline of the whole value."""
    return _Book(document).outline([document.root])


def values_in(outline: Outline, value: Any, *, leaves: bool) -> Iterator[Place]:
    """The value and every value in it of which something is known; without `leaves` only those that hold others."""
    yield (), outline, value
    waiting = [_inside((), outline, value, leaves=leaves)]
    while waiting:
        found = next(waiting[-1], None)
        if found is None:
            waiting.pop()
            continue
        yield found
        waiting.append(_inside(*found, leaves=leaves))


def with_changes(value: dict[str, Any], changes: Iterable[tuple[Path, Any]]) -> dict[str, Any]:
    """A copy with these values at these paths; what holds none of them is shared with the original."""
    copies: dict[Path, Any] = {(): dict(value)}
    for path, new in changes:
        for length in range(1, len(path)):
            here = path[:length]
            if here not in copies:
                holder, step = copies[here[:-1]], here[-1]
                old = holder[step]
                holder[step] = copies[here] = dict(old) if isinstance(old, dict) else list(old)
        copies[path[:-1]][path[-1]] = new
    return copies[()]  # type: ignore[no-any-return] # the first one


def _inside(path: Path, outline: Outline, value: Any, *, leaves: bool) -> Iterator[Place]:
    if isinstance(value, dict):
        for name, child in value.items():
            if (leaves or isinstance(child, _HOLDERS)) and (inner := outline.member(name)) is not None:
                yield (*path, name), inner, child
    elif isinstance(value, list | tuple):
        for index, child in enumerate(value):
            if (leaves or isinstance(child, _HOLDERS)) and (inner := outline.item(index)) is not None:
                yield (*path, index), inner, child


class _Book:
    """The outlines of one document, each made once."""

    def __init__(self, document: SchemaDocument) -> None:
        self._document = document
        self._outlines: dict[tuple[int, ...], Outline] = {}

    def outline(self, schemas: Iterable[Any]) -> Outline | None:
        given = [schema for schema in schemas if isinstance(schema, dict)]
        if not given:
            return None
        key = tuple(sorted(map(id, given)))
        if key not in self._outlines:
            if len(self._outlines) >= _MOST_OUTLINES:
                return None
            self._outlines[key] = Outline(self.together(given), self)
        return self._outlines[key]

    def together(self, schemas: list[Schema]) -> list[Schema]:
        """These, and all that hold wherever they hold."""
        found, seen = list[Schema](), set[int]()
        waiting = list[Any](reversed(schemas))
        while waiting:
            schema = waiting.pop()
            if not isinstance(schema, dict) or id(schema) in seen:
                continue
            seen.add(id(schema))
            found.append(schema)
            parts = schema.get("allOf")
            waiting.extend(reversed(parts) if isinstance(parts, list) else ())
            if isinstance(reference := schema.get("$ref"), str):
                try:
                    waiting.append(self._document.target(reference, schema))
                except ReferenceUnknown:
                    continue
        return found


def _properties(schema: Schema) -> dict[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _has_property(schema: Schema, name: str) -> bool:
    return name in _properties(schema)


def _member(schema: Schema, name: str) -> Any:
    properties = _properties(schema)
    if name in properties:
        return properties[name]
    return None if "patternProperties" in schema else schema.get("additionalProperties")


def _item(schema: Schema, index: int) -> Any:
    for keyword, rest in (("prefixItems", "items"), ("items", "additionalItems")):
        listed = schema.get(keyword)
        if isinstance(listed, list):
            return listed[index] if index < len(listed) else schema.get(rest)
    return schema.get("items")


def _listed(schema: Schema) -> int:
    return max(
        (len(value) for key in ("prefixItems", "items") if isinstance(value := schema.get(key), list)), default=0
    )
