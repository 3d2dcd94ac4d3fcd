"""Makes null stand for an argument left out: a strict schema has no other way to say it."""

from typing import Any

import jsonschema_rs

from toolfleet_registry.formats.schemas.references import definition
from toolfleet_registry.formats.schemas.subschemas import JsonObject, types_of
from toolfleet_registry.system.http_bodies import MAX_DEPTH


def takes_null(schema: JsonObject, definitions: JsonObject) -> bool:
    """Return whether the schema allows null, as far as can be told without a validator.

    A schema that names no type, no values and no alternatives allows everything; so does one too tangled to follow.
    """
    return _Nulls(definitions).takes(schema)


def without_nulls(value: Any, schema: JsonObject, definitions: JsonObject) -> Any:
    """The value without the properties that are null and may be left out, and could not be null if they were there."""
    return _Nulls(definitions).without(value, schema, 0)


class _Nulls:
    """Bounded: alternatives in each other are tried in all their combinations, and a model can nest them."""

    def __init__(self, definitions: JsonObject) -> None:
        self._definitions = definitions
        self._steps = 0

    def takes(self, schema: JsonObject, depth: int = 0) -> bool:
        self._steps += 1
        if self._steps > _MOST or depth > _HOPS:
            return True
        if "not" in schema:
            return False
        either = [schema[keyword] for keyword in ("anyOf", "oneOf") if keyword in schema]
        target = definition(schema.get("$ref"), self._definitions)
        every = [*schema.get("allOf", []), *([target] if target is not None else [])]
        spoken = types_of(schema)
        values = [schema["const"]] if "const" in schema else schema.get("enum", [None])
        return (
            (not spoken or "null" in spoken)
            and None in values
            and all(any(self.takes(one, depth + 1) for one in branches) for branches in either)
            and all(self.takes(one, depth + 1) for one in every)
        )

    def without(self, value: Any, schema: JsonObject, depth: int) -> Any:
        self._steps += 1
        if depth > MAX_DEPTH or self._steps > _MOST or not isinstance(value, dict | list):
            return value
        target = self._followed(schema)
        for keyword in ("anyOf", "oneOf"):
            if keyword in target:
                return self._in_a_branch(value, target[keyword], depth)
        if isinstance(value, list):
            items = target.get("items", {})
            return [self.without(one, items, depth + 1) for one in value]
        properties: JsonObject = target.get("properties", {})
        optional = properties.keys() - set(target.get("required", []))
        return {
            name: self.without(inner, properties.get(name, {}), depth + 1)
            for name, inner in value.items()
            if not (inner is None and name in optional and not self.takes(properties[name]))
        }

    def _followed(self, schema: JsonObject) -> JsonObject:
        for _ in range(_HOPS):
            if len(schema.get("allOf", ())) == 1:
                here = {keyword: inner for keyword, inner in schema.items() if keyword != "allOf"}
                schema = {**here, **schema["allOf"][0]}
            elif (target := definition(schema.get("$ref"), self._definitions)) is not None:
                schema = target
            else:
                break
        return schema

    def _in_a_branch(self, value: Any, branches: list[JsonObject], depth: int) -> Any:
        """As the first alternative wants it that then takes it; as it is, if none does."""
        for branch in branches:
            if self._is_likely(value, branch):
                candidate = self.without(value, branch, depth + 1)
                if self._is_valid(candidate, branch):
                    return candidate
        return value

    def _is_likely(self, value: Any, branch: JsonObject) -> bool:
        """Return whether type, names and listed values fit: cheap, and mostly enough to find the one alternative that fits."""
        target = self._followed(branch)
        if "anyOf" in target or "oneOf" in target:
            return True
        if ("object" if isinstance(value, dict) else "array") not in types_of(target):
            return False
        properties: JsonObject = target.get("properties", {})
        return isinstance(value, list) or all(
            name in properties and (inner is None or _is_listed(inner, properties[name]))
            for name, inner in value.items()
        )

    def _is_valid(self, value: Any, schema: JsonObject) -> bool:
        try:
            return jsonschema_rs.Draft202012Validator({**schema, "$defs": self._definitions}).is_valid(value)
        except ValueError:  # the schema or the value is none: the catalog's judge will say so
            return False


def _is_listed(value: Any, schema: JsonObject) -> bool:
    return value in ([schema["const"]] if "const" in schema else schema.get("enum", [value]))


_HOPS = 8  # of references to references, and of combinations in each other
_MOST = 20_000
