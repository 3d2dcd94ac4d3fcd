"""Finds the schemas inside a schema: where each applies, and what its references mean. Knows drafts 4 to 2020-12.

Only what lies in the document itself can be referred to: nothing is ever fetched.
"""

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, TypeAlias
from urllib.parse import unquote, urldefrag, urljoin


class SchemaLocation(Enum):
    """The place of a subschema that does not apply to one member or item."""

    HERE = "the same value"
    MEMBERS = "any member of it, or its name"
    ITEMS = "any item of it"


Step: TypeAlias = SchemaLocation | str | int
"""From a schema's value to the value that a schema inside it applies to; a name of a member, an index of an item."""

Schema: TypeAlias = dict[str, Any]


class ReferenceUnknown(ValueError):
    """A reference to something that is not in the document."""


class SchemaDocument:
    """One schema with all that it holds. Its parts are known by their identity: it must not change meanwhile."""

    def __init__(self, root: Schema) -> None:
        self.root = root
        self._resources: dict[str, Schema] = {"": root}
        self._anchors: dict[tuple[str, str], Schema] = {}
        self._dynamic: dict[str, list[Schema]] = {}
        self._bases: dict[int, str] = {}
        self._index()

    def inside(self, schema: Schema) -> Iterator[tuple[Step, Any]]:
        """Yield the schemas that apply with this one, referred ones too. Raises `ReferenceUnknown`."""
        for keyword, value in schema.items():
            if keyword in _REFERENCES:
                if isinstance(value, str):
                    yield from ((SchemaLocation.HERE, target) for target in self._targets(keyword, value, schema))
            elif keyword in _KEYWORDS:
                yield from _children(_KEYWORDS[keyword], value)

    def target(self, reference: str, schema: Schema) -> Any:
        """Return the target of `reference` in `schema`. Raises `ReferenceUnknown`."""
        base = self._bases.get(id(schema), "")
        if reference.startswith("#"):
            uri, fragment = base, reference[1:]
        else:
            uri, fragment = urldefrag(urljoin(base, reference))
        resource = self._resources.get(uri)
        if resource is None:
            raise ReferenceUnknown(reference)
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            found = self._anchors.get((uri, fragment))
        else:
            found = _at(resource, fragment)
        if not isinstance(found, dict | bool):
            raise ReferenceUnknown(reference)
        return found

    def _targets(self, keyword: str, reference: str, schema: Schema) -> list[Any]:
        if keyword == "$ref":
            return [self.target(reference, schema)]
        if reference.startswith("#") and not reference.startswith("#/") and (name := reference[1:]) in self._dynamic:
            return list(self._dynamic[name])  # which one is known only while a value is checked: all of them count
        return [self.target(reference, schema)]

    def _index(self) -> None:
        waiting: list[tuple[Any, str]] = [(self.root, "")]
        while waiting:
            node, base = waiting.pop()
            if isinstance(node, list):
                waiting.extend((child, base) for child in node if isinstance(child, dict | list))
                continue
            base = self._enter(node, base)
            waiting.extend(
                (child, base)
                for keyword, child in node.items()
                if isinstance(child, dict | list) and keyword not in _DATA
            )

    def _enter(self, node: Schema, base: str) -> str:
        name = node.get("$id")
        if isinstance(name, str):
            base = urldefrag(urljoin(base, name))[0]
            self._resources.setdefault(base, node)
            # In old drafts an id that is only a fragment is an anchor.
            if name.startswith("#"):
                self._anchors.setdefault((base, name[1:]), node)
        if base:
            self._bases[id(node)] = base
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(anchor := node.get(keyword), str):
                self._anchors.setdefault((base, anchor), node)
                if keyword == "$dynamicAnchor":
                    self._dynamic.setdefault(anchor, []).append(node)
        return base


def is_senseless(keyword: str, value: Any) -> bool:
    """Return whether a keyword has no effect as written: null instead of a value, or an annotation of another type."""
    if value is None:
        return keyword not in _NULLABLE
    return not isinstance(value, _NOTES.get(keyword, object))


def without_senseless(schema: Any) -> Any:
    """Return a schema without the keywords that decide nothing as they are written, which would make it useless."""
    if not isinstance(schema, dict):
        return schema
    said: Schema = {}
    for keyword, value in schema.items():
        if is_senseless(keyword, value):
            continue
        kind = _KEYWORDS.get(keyword, "named" if keyword in _DEFINITIONS else "")
        if kind in {"named", "patterned", "dependent"} and isinstance(value, dict):
            said[keyword] = {name: without_senseless(child) for name, child in value.items()}
        elif kind and isinstance(value, list):
            said[keyword] = [without_senseless(child) for child in value]
        else:
            said[keyword] = without_senseless(value) if kind else value
    return said


def _children(kind: str, value: Any) -> Iterator[tuple[Step, Any]]:
    if kind == "items":
        kind = "listed" if isinstance(value, list) else "item"
    if kind in _STEPS:
        yield _STEPS[kind], value
    elif kind == "all" and isinstance(value, list):
        yield from ((SchemaLocation.HERE, child) for child in value)
    elif kind == "listed" and isinstance(value, list):
        yield from enumerate(value)
    elif kind == "named" and isinstance(value, dict):
        yield from value.items()
    elif kind == "dependent" and isinstance(value, dict):
        yield from ((SchemaLocation.HERE, child) for child in value.values())
    elif kind == "patterned" and isinstance(value, dict):
        yield from ((SchemaLocation.MEMBERS, child) for child in value.values())


def _at(node: Any, pointer: str) -> Any:
    for step in pointer.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")  # noqa: PLW2901 - unescaped, it is the step
        if isinstance(node, dict):
            node = node.get(step)
        elif isinstance(node, list) and step.isascii() and step.isdigit() and len(step) <= _DIGITS:
            node = node[int(step)] if int(step) < len(node) else None
        else:
            return None
    return node


_STEPS: Mapping[str, SchemaLocation] = {
    "here": SchemaLocation.HERE,
    "member": SchemaLocation.MEMBERS,
    "item": SchemaLocation.ITEMS,
}
_KEYWORDS: Mapping[str, str] = {
    **dict.fromkeys(("if", "then", "else", "not"), "here"),
    **dict.fromkeys(("allOf", "anyOf", "oneOf"), "all"),
    **dict.fromkeys(("dependentSchemas", "dependencies"), "dependent"),
    **dict.fromkeys(("additionalProperties", "unevaluatedProperties", "propertyNames"), "member"),
    **dict.fromkeys(("additionalItems", "unevaluatedItems", "contains"), "item"),
    "items": "items",
    "prefixItems": "listed",
    "properties": "named",
    "patternProperties": "patterned",
}
_REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
_DEFINITIONS = frozenset({"$defs", "definitions"})
_NOTES: Mapping[str, type] = {
    **dict.fromkeys(("title", "description", "$comment", "format"), str),
    **dict.fromkeys(("deprecated", "readOnly", "writeOnly"), bool),
    "examples": list,
}
_DATA = frozenset({"enum", "const", "default", "examples"})
_NULLABLE = frozenset({"const", "default"})
_DIGITS = 6
