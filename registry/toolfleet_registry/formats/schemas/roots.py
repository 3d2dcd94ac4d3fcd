"""Makes the top of a schema one plain object, as most providers insist on, that allows no fewer calls than the tool's own."""

from collections.abc import Sequence
from typing import Any

from toolfleet_registry.formats.schemas.notes import Notes
from toolfleet_registry.formats.schemas.references import definition
from toolfleet_registry.formats.schemas.subschemas import JsonObject, types_of

_COMBINING = ("$ref", "allOf", "anyOf", "oneOf")
_EXCLUDED = ("not", "enum", "const")
_DEEPEST = 8  # references and combinations in each other; more are not looked into
_MOST = 200  # of them all


def rooted(schema: JsonObject, notes: Notes) -> JsonObject:
    """Return a localized schema without `$ref`, `allOf`, `anyOf`, `oneOf`, `not`, `enum`, `const` at its top.

    The properties of all branches are merged into one object. A property that only some branches require becomes
    optional.
    """
    for keyword in (*_COMBINING, *_EXCLUDED):
        if keyword in schema:
            notes.add("", "relaxed", f"{keyword!r} is not taken at the top: one object allows what its parts allow")
    flat = _Flattening(schema.get("$defs", {})).flat(schema, 0)
    plain = {keyword: value for keyword, value in flat.items() if keyword not in _EXCLUDED}
    return {**plain, "type": "object", "properties": _properties(plain)}


class _Flattening:
    """Flattens alternatives, within bounds: a few definitions that refer to each other often can stand for a huge number of branches."""

    def __init__(self, definitions: JsonObject) -> None:
        self._definitions = definitions
        self._visited = 0

    def flat(self, schema: JsonObject, depth: int) -> JsonObject:
        base = {keyword: value for keyword, value in schema.items() if keyword not in _COMBINING}
        self._visited += 1
        if depth > _DEEPEST or self._visited > _MOST or len(base) == len(schema):
            return base
        parts = [
            self.flat(branch, depth + 1)
            for branch in (definition(schema.get("$ref"), self._definitions), *_branches(schema, "allOf"))
            if isinstance(branch, dict)
        ]
        parts += [
            _any_of([self._alternative(branch, depth) for branch in branches])
            for keyword in ("anyOf", "oneOf")
            if (branches := _branches(schema, keyword))
        ]
        return _all_of(base, parts)

    def _alternative(self, branch: Any, depth: int) -> JsonObject | None:
        """A branch as one object; `None` for one that no object fits."""
        if not isinstance(branch, dict):
            return None if branch is False else {}
        flat = self.flat(branch, depth + 1)
        spoken = types_of(flat)
        return None if spoken and "object" not in spoken else flat


def _all_of(base: JsonObject, parts: Sequence[JsonObject]) -> JsonObject:
    objects = [base, *parts]
    joined = {keyword: value for keyword, value in base.items() if not keyword.startswith("unevaluated")}
    found: dict[str, list[Any]] = {}
    for one in objects:
        for name, schema in _properties(one).items():
            if schema not in found.setdefault(name, []):
                found[name].append(schema)
    joined["properties"] = {
        name: schemas[0] if len(schemas) == 1 else {"allOf": schemas} for name, schemas in found.items()
    }
    required = dict.fromkeys(name for one in objects for name in _required(one))
    if required:
        joined["required"] = list(required)
    if "additionalProperties" not in joined and any(map(_is_closed, parts)) and "patternProperties" not in joined:
        joined["additionalProperties"] = False
    return joined


def _any_of(branches: Sequence[JsonObject | None]) -> JsonObject:
    possible = [branch for branch in branches if branch is not None]
    if not possible:
        return {}
    names = dict.fromkeys(name for branch in possible for name in _properties(branch))
    union: JsonObject = {"properties": {name: _variants(name, possible) for name in names}}
    first, *others = [_required(branch) for branch in possible]
    union["required"] = [name for name in first if all(name in other for other in others)]
    if all(map(_is_closed, possible)):
        union["additionalProperties"] = False
    return union


def _variants(name: str, branches: Sequence[JsonObject]) -> Any:
    """Return the schema of a property in any of the branches; anything, if an open branch does not define it."""
    variants: list[Any] = []
    for branch in branches:
        if name not in _properties(branch) and _is_closed(branch):
            continue
        variant = _properties(branch).get(name, {})
        if variant not in variants:
            variants.append(variant)
    # The empty one last: a model reads first what is expected.
    ordered = sorted(variants, key=lambda variant: variant in ({}, True))
    return ordered[0] if len(ordered) == 1 else {"anyOf": ordered}


def _branches(schema: JsonObject, keyword: str) -> list[Any]:
    branches = schema.get(keyword)
    return branches if isinstance(branches, list) else []


def _properties(schema: JsonObject) -> JsonObject:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _required(schema: JsonObject) -> list[str]:
    required = schema.get("required")
    return [name for name in required if isinstance(name, str)] if isinstance(required, list) else []


def _is_closed(schema: JsonObject) -> bool:
    return schema.get("additionalProperties") is False and "patternProperties" not in schema
