"""Derives a schema that a provider can enforce to the letter, where there is one, with null for an argument left out."""

import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs

from toolfleet_registry.formats.dialects import Strictness
from toolfleet_registry.formats.references import (
    ANNOTATIONS,
    JsonObject,
    add_to_description,
    definition,
    escaped,
    types_of,
)
from toolfleet_registry.formats.relaxing import NoteKind, Notes
from toolfleet_registry.system.http_bodies import MAX_DEPTH

_HOPS = 8  # of references to references, and of combinations in each other
_MOST = 20_000

_DROPPED = frozenset(
    [
        "minLength",
        "maxLength",
        "pattern",
        "multipleOf",
        "maximum",
        "exclusiveMaximum",
        "minimum",
        "exclusiveMinimum",
        "minItems",
        "maxItems",
        "uniqueItems",
        "minProperties",
        "maxProperties",
        "format",
        "default",
    ]
)
_HANDLED = frozenset(
    [
        "type",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "enum",
        "const",
        "anyOf",
        "oneOf",
        "allOf",
        "$ref",
        "$defs",
    ]
)
_TOO_CLEVER = re.compile(r"\(\?(?!:)|\\[1-9bB]")  # looks around or back: no grammar can be made of it
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_MOST_VALUES = 1000  # of all enumerations, in OpenAI's guide


def takes_null(schema: JsonObject, definitions: JsonObject) -> bool:
    """Return whether the schema allows null, as far as can be told without a validator.

    A schema that names no type, no values and no alternatives allows everything; so does one too tangled to follow.
    """
    return _Nulls(definitions).takes(schema)


def without_nulls(value: Any, schema: JsonObject, definitions: JsonObject) -> Any:
    """Return the value without the properties that are null and may be left out, and could not be null if they were there."""
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
        """Return the value in the form of the first alternative that accepts it; unchanged, if none does."""
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


class _NotStrictError(Exception):
    def __init__(self, path: str, why: str) -> None:
        super().__init__(why)
        self.path = path
        self.why = why


def strict_schema(schema: JsonObject, rules: Strictness, notes: Notes) -> JsonObject | None:
    """Return the same calls, as far as they name only what the schema names; `None`, with a note, if they cannot be had.

    `schema` is rooted and relaxed. An object is closed; where `rules` want every property, one that may be left out
    may be null (`without_nulls` takes these out again). Limits that the provider does not take are described.
    """
    mark = notes.mark()
    try:
        return _Strict(schema, rules, notes).whole()
    except _NotStrictError as exc:
        notes.undo(mark)
        notes.add("strict", "refused", f"cannot be strict: {exc.path or 'the top'} {exc.why}")
        return None


class _Strict:
    def __init__(self, root: JsonObject, rules: Strictness, notes: Notes) -> None:
        self._root = root
        self._definitions: JsonObject = root.get("$defs", {})
        self._rules = rules
        self._notes = notes
        self._properties = 0
        self._values = 0

    def whole(self) -> JsonObject:
        definitions = {
            name: self._schema(inner, f"/$defs/{escaped(name)}", 0) for name, inner in self._definitions.items()
        }
        if not self._rules.is_recursive and _is_recursive(self._definitions):
            raise _NotStrictError("/$defs", "refers to itself")
        result = self._schema({k: v for k, v in self._root.items() if k != "$defs"}, "", 0)
        if self._properties > (self._rules.properties or self._properties):
            raise _NotStrictError("", f"has {self._properties} properties")
        if self._values > _MOST_VALUES:
            raise _NotStrictError("", f"lists {self._values} values")
        return {**result, "$defs": definitions} if definitions else result

    def _schema(self, value: JsonObject, path: str, depth: int) -> JsonObject:
        if self._rules.depth is not None and depth > self._rules.depth:
            raise _NotStrictError(path, f"is nested deeper than {self._rules.depth} levels")
        value = self._single(value, path)
        unknown = value.keys() - _HANDLED - _DROPPED - ANNOTATIONS
        if unknown:
            raise _NotStrictError(path, f"has {min(unknown)!r}")
        if "$ref" in value:
            return self._reference(value, path)
        result: JsonObject = {}
        if "description" in value:
            result["description"] = value["description"]
        if "anyOf" in value or "oneOf" in value:
            self._alternatives(value, result, path, depth)
        elif "enum" in value or "const" in value:
            self._listed(value, result, path)
        else:
            self._typed(value, result, path, depth)
        self._limit(value, result, path)
        return result

    def _single(self, value: JsonObject, path: str) -> JsonObject:
        """`allOf` with one schema in it says no more than that schema."""
        if "allOf" not in value:
            return value
        here = {keyword: inner for keyword, inner in value.items() if keyword != "allOf"}
        if len(value["allOf"]) > 1 or here.keys() - ANNOTATIONS - {"$defs"}:
            raise _NotStrictError(path, "has 'allOf'")
        return {**value["allOf"][0], **here}

    def _reference(self, value: JsonObject, path: str) -> JsonObject:
        if value.keys() - ANNOTATIONS - {"$ref"}:
            raise _NotStrictError(path, "has keywords beside '$ref'")
        return {"$ref": value["$ref"]}

    def _alternatives(self, value: JsonObject, result: JsonObject, path: str, depth: int) -> None:
        beside = value.keys() & {"properties", "items", "enum", "const", "required", "additionalProperties"}
        if beside or ("anyOf" in value and "oneOf" in value):
            raise _NotStrictError(path, "has alternatives beside other keywords")
        keyword = "anyOf" if "anyOf" in value else "oneOf"
        if keyword == "oneOf":
            self._notes.add(f"{path}/oneOf", "relaxed", "is shown as 'anyOf'")
        if "type" in value:
            self._notes.add(f"{path}/type", "relaxed", "is not shown beside alternatives")
        result["anyOf"] = [
            self._schema(inner, f"{path}/{keyword}/{index}", depth) for index, inner in enumerate(value[keyword])
        ]

    def _listed(self, value: JsonObject, result: JsonObject, path: str) -> None:
        if value.keys() & {"properties", "items", "required", "additionalProperties"}:
            raise _NotStrictError(path, "lists values beside other keywords")
        values = [value["const"]] if "const" in value else value["enum"]
        if not values or any(isinstance(one, dict | list) for one in values):
            raise _NotStrictError(path, "lists values that are no plain ones")
        if "const" in value and "enum" in value:
            self._notes.add(f"{path}/enum", "relaxed", "is not shown beside 'const'")
        self._values += len(values)
        result["type"] = value["type"] if "type" in value else _type_of(values)  # which OpenAI asks for in any case
        result["enum"] = list(values)

    def _typed(self, value: JsonObject, result: JsonObject, path: str, depth: int) -> None:
        spoken = types_of(value)
        if not spoken:
            raise _NotStrictError(path, "does not say of what type it is")
        result["type"] = value["type"]
        if "object" in spoken:
            self._object(value, result, path, depth)
        if "array" in spoken:
            result["items"] = self._schema(value.get("items", {}), f"{path}/items", depth + 1)

    def _object(self, value: JsonObject, result: JsonObject, path: str, depth: int) -> None:
        properties: JsonObject = value.get("properties", {})
        required: list[str] = value.get("required", [])
        is_free = not properties and bool(path) and "additionalProperties" not in value
        if is_free or value.get("additionalProperties", False) is not False:
            raise _NotStrictError(path, "takes properties that it does not name")
        if set(required) - properties.keys():
            raise _NotStrictError(path, "requires properties that it does not name")
        if "additionalProperties" not in value:
            self._notes.add(path, "closed", "properties that are not named cannot be sent")
        self._properties += len(properties)
        result["properties"] = {
            name: self._property(inner, f"{path}/properties/{escaped(name)}", depth + 1, is_required=name in required)
            for name, inner in properties.items()
        }
        result["required"] = list(properties) if self._rules.optional_is_null else list(required)
        result["additionalProperties"] = False

    def _property(self, inner: JsonObject, path: str, depth: int, *, is_required: bool) -> JsonObject:
        shown = self._schema(inner, path, depth)
        if is_required or not self._rules.optional_is_null:
            return shown
        if takes_null(inner, self._definitions):
            if inner.get("default") is not None:
                raise _NotStrictError(path, "means another thing by null than by nothing")
            return shown
        return _or_null(shown)

    def _limit(self, value: JsonObject, result: JsonObject, path: str) -> None:
        """Keep the limits of a plain value that the provider takes, and describe the others."""
        lost: JsonObject = {}
        for keyword in sorted(value.keys() & (_DROPPED | {"title"})):
            inner = value[keyword]
            if self._takes(keyword, inner) and not ("anyOf" in result and keyword not in ANNOTATIONS):
                result[keyword] = inner
            elif keyword != "title" and not (keyword == "default" and inner is None):
                lost[keyword] = inner
                kind: NoteKind = "dropped" if keyword == "default" else "relaxed"
                self._notes.add(f"{path}/{keyword}", kind, "is only described")
        add_to_description(result, dict(sorted(lost.items())))

    def _takes(self, keyword: str, inner: Any) -> bool:
        if keyword == "format":
            return inner in self._rules.formats
        if keyword == "minItems" and self._rules.min_items is not None and inner > self._rules.min_items:
            return False
        if keyword == "pattern" and _TOO_CLEVER.search(inner):
            return False
        return keyword in self._rules.keywords


def _type_of(values: list[Any]) -> str | list[str]:
    """Return the JSON Schema type of plain values, or their types."""
    types = dict.fromkeys(_TYPES[type(value)] for value in values)
    if "number" in types:
        types.pop("integer", None)
    return [*types] if len(types) > 1 else next(iter(types))


def _or_null(shown: JsonObject) -> JsonObject:
    if "$ref" in shown:
        return {"anyOf": [shown, {"type": "null"}]}
    if "anyOf" in shown:
        return {**shown, "anyOf": [*shown["anyOf"], {"type": "null"}]}
    nullable = dict(shown)
    if "enum" in shown and None not in shown["enum"]:
        nullable["enum"] = [*shown["enum"], None]
    if "type" in shown and "null" not in types_of(shown):
        nullable["type"] = [*types_of(shown), "null"]
    return nullable


def _is_recursive(definitions: JsonObject) -> bool:
    """Return whether the definitions have a cycle: something is left after repeatedly removing those that refer to no remaining one."""
    waiting = {name: set(_referred(inner)) & definitions.keys() for name, inner in definitions.items()}
    while True:
        ends = {name for name, names in waiting.items() if not names}
        if not ends:
            return bool(waiting)
        waiting = {name: names - ends for name, names in waiting.items() if name not in ends}


def _referred(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        ref = value.get("$ref")
        if isinstance(ref, str):
            yield ref.rpartition("/")[2]
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _referred(inner)


class StrictBudget:
    """Counts strict schemas; the first tools by name are served first."""

    def __init__(self, rules: Strictness | None) -> None:
        self._rules = rules
        self._tools = 0
        self._optionals = 0
        self._unions = 0

    def takes(self, schema: JsonObject, notes: Notes) -> bool:
        """Return whether there is room for one more schema, and count it; otherwise note which limit was reached."""
        rules = self._rules
        if rules is None:
            return False
        optionals, unions = _counted(schema)
        for what, wanted, limit in (
            ("strict tools", self._tools + 1, rules.tools),
            ("optional parameters in strict tools", self._optionals + optionals, rules.optionals),
            ("parameters of several types in strict tools", self._unions + unions, rules.unions),
        ):
            if limit is not None and wanted > limit:
                notes.add("strict", "refused", f"a request may have {limit} {what}, and this would make it {wanted}")
                return False
        self._tools += 1
        self._optionals += optionals
        self._unions += unions
        return True


def _counted(value: Any) -> tuple[int, int]:
    """Return the properties that may be left out, and the schemas of several types, anywhere inside."""
    if isinstance(value, list):
        pairs = [_counted(one) for one in value]
    elif isinstance(value, dict):
        pairs = [_counted(one) for one in value.values()]
        properties = value.get("properties")
        if isinstance(properties, dict) and isinstance(value.get("required"), list):
            pairs.append((len(properties) - len(value["required"]), 0))
        pairs.append((0, int("anyOf" in value or isinstance(value.get("type"), list))))
    else:
        return 0, 0
    return sum(optionals for optionals, _ in pairs), sum(unions for _, unions in pairs)
