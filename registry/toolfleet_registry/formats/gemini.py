"""Writes a schema in Gemini's own dialect, a small part of OpenAPI 3.0: what it cannot say goes into a description."""

from typing import Any

from toolfleet_registry.formats.references import (
    ANNOTATIONS,
    JsonObject,
    add_to_description,
    definition,
    escaped,
    types_of,
)
from toolfleet_registry.formats.relaxing import Notes

_KEYWORDS = {
    "STRING": ("minLength", "maxLength", "pattern"),
    "NUMBER": ("minimum", "maximum"),
    "INTEGER": ("minimum", "maximum"),
    "ARRAY": ("minItems", "maxItems"),
    "OBJECT": ("minProperties", "maxProperties"),
}
_FORMATS = {"STRING": {"date-time"}, "NUMBER": {"float", "double"}, "INTEGER": {"int32", "int64"}}
_COUNTS = frozenset(["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"])
_DESCRIBED = frozenset(
    [
        "const",
        "enum",
        "format",
        "default",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "uniqueItems",
        "additionalProperties",
    ]
)
_SHOWN = frozenset(
    [
        "type",
        "properties",
        "required",
        "items",
        "anyOf",
        "oneOf",
        "allOf",
        "$ref",
        "description",
        "minimum",
        "maximum",
        "pattern",
    ]
)
_DEPTH = 24  # of references in each other; what refers to itself ends there
_NODES = 2_000  # a definition that is used often is written out each time


def gemini_schema(schema: JsonObject, notes: Notes) -> JsonObject | None:
    """Return a declaration's `parameters`; `None` for a tool without any.

    `schema` is rooted and relaxed. Gemini has no `$ref` in all of its versions, so definitions are written out.
    """
    parameters = _Gemini(schema.get("$defs", {}), notes).schema(schema, "", ())
    return parameters if parameters.get("properties") else None


class _Gemini:
    def __init__(self, definitions: JsonObject, notes: Notes) -> None:
        self._definitions = definitions
        self._notes = notes
        self._nodes = 0

    def schema(self, value: Any, path: str, refs: tuple[str, ...]) -> JsonObject:
        """Convert one schema; an empty object if anything is allowed."""
        self._nodes += 1
        if self._nodes > _NODES or len(refs) > _DEPTH:
            self._notes.add(path, "relaxed", "it is too large to be written out")
            return {}
        whole, refs = self._merged(value, refs)
        self._note_losses(whole, path)
        branches = whole.get("anyOf") or whole.get("oneOf")
        if branches and not (set(whole) - ANNOTATIONS - {"anyOf", "oneOf", "type", "$defs"}):
            return self._any_of(whole, branches, path, refs)
        if branches:
            self._notes.add(path, "relaxed", "alternatives beside other keywords are not taken")
        return self._plain(whole, path, refs)

    def _merged(self, value: JsonObject, refs: tuple[str, ...]) -> tuple[JsonObject, tuple[str, ...]]:
        """Merge references and `allOf` into one object: each keyword still has to hold."""
        self._nodes += 1
        whole = {keyword: inner for keyword, inner in value.items() if keyword not in {"$ref", "allOf"}}
        ref = value.get("$ref")
        parts: list[Any] = list(value.get("allOf", []))
        if isinstance(ref, str):
            refs = (*refs, ref)
            # The third time round it is recursion, and not only a definition that is used in two places.
            parts.insert(0, definition(ref, self._definitions) if refs.count(ref) <= _ROUNDS else {})
        for part in parts if len(refs) <= _DEPTH and self._nodes <= _NODES else ():
            inner, refs = self._merged(part, refs)
            whole = _both(whole, inner)
        return whole, refs

    def _any_of(self, whole: JsonObject, branches: list[Any], path: str, refs: tuple[str, ...]) -> JsonObject:
        """Convert alternatives: Gemini allows nothing next to them, and marks null on the other alternatives."""
        shown: list[JsonObject] = []
        nullable = False
        for index, branch in enumerate(branches):
            if branch == {"not": {}}:
                continue
            one = self.schema(branch, f"{path}/anyOf/{index}", refs)
            if not (one.keys() - {"description", "nullable"}):
                if one.get("nullable"):
                    nullable = True
                    continue
                self._notes.add(path, "relaxed", "one of the alternatives is anything")
                return _described({}, whole)
            if one not in shown:
                shown.append(one)
        if len(shown) == 1:
            only = _described(shown[0], whole)
            return {**only, "nullable": True} if nullable else only
        if nullable:
            shown = [{**one, "nullable": True} for one in shown]
        if not shown:
            return _described({"nullable": True} if nullable else {}, whole)
        return {"anyOf": [_described(shown[0], whole), *shown[1:]]}

    def _plain(self, whole: JsonObject, path: str, refs: tuple[str, ...]) -> JsonObject:
        spoken = types_of(whole) or _guessed(whole)
        types = [_GEMINI_TYPES[name] for name in spoken if name != "null"]
        nullable = "null" in spoken or (not types_of(whole) and None in whole.get("enum", ()) and bool(types))
        if "INTEGER" in types and "NUMBER" in types:
            types.remove("INTEGER")
        shown = [self._typed(kind, whole, path, refs) for kind in types]
        if nullable:
            shown = [{**one, "nullable": True} for one in shown]
        if not types and whole.keys() & {"properties", "items", *_COUNTS, "pattern"}:
            self._notes.add(path, "relaxed", "names no type, so that nothing of it can be shown")
        if not shown:
            return _described({"nullable": True} if nullable else {}, whole)
        if len(shown) == 1:
            return _described(shown[0], whole)
        return {"anyOf": [_described(shown[0], whole), *shown[1:]]}

    def _typed(self, kind: str, whole: JsonObject, path: str, refs: tuple[str, ...]) -> JsonObject:
        shown: JsonObject = {"type": kind}
        for keyword in _KEYWORDS.get(kind, ()):
            if keyword in whole:
                shown[keyword] = int(whole[keyword]) if keyword in _COUNTS else whole[keyword]
        if whole.get("format") in _FORMATS.get(kind, ()):
            shown["format"] = whole["format"]
        if kind == "STRING" and (values := _strings(whole)):
            shown["enum"] = values
        if kind == "ARRAY":
            items = {} if "prefixItems" in whole else whole.get("items", {})
            shown["items"] = self.schema(items, f"{path}/items", refs)
        if kind == "OBJECT" and whole.get("properties"):
            shown |= self._properties(whole, path, refs)
        return shown

    def _properties(self, whole: JsonObject, path: str, refs: tuple[str, ...]) -> JsonObject:
        properties = {
            name: self.schema(inner, f"{path}/properties/{escaped(name)}", refs)
            for name, inner in whole["properties"].items()
            if inner != {"not": {}}
        }
        required = [name for name in whole.get("required", []) if name in properties]
        return {"properties": properties, **({"required": required} if required else {})}

    def _note_losses(self, whole: JsonObject, path: str) -> None:
        for keyword in sorted(whole.keys() - _SHOWN - _COUNTS - _DESCRIBED - ANNOTATIONS - {"$defs"}):
            self._notes.add(f"{path}/{keyword}", "relaxed", "is not taken")
        lost = {keyword: whole[keyword] for keyword in sorted(_DESCRIBED & whole.keys()) if _is_lost(keyword, whole)}
        for keyword in lost:
            self._notes.add(f"{path}/{keyword}", "dropped" if keyword == "default" else "relaxed", "is only described")
        # "additionalProperties: {...}" is long and of little use to a model that cannot see the schema it is in.
        add_to_description(
            whole, {keyword: value for keyword, value in lost.items() if keyword != "additionalProperties"}
        )


def _both(whole: JsonObject, part: JsonObject) -> JsonObject:
    both = {**part, **whole}
    if "properties" in whole and "properties" in part:
        both["properties"] = {**part["properties"], **whole["properties"]}
    if "required" in whole and "required" in part:
        both["required"] = list(dict.fromkeys([*whole["required"], *part["required"]]))
    return both


def _is_lost(keyword: str, whole: JsonObject) -> bool:
    spoken = types_of(whole) or _guessed(whole)
    if keyword in {"enum", "const"}:
        return not _strings(whole) or set(spoken) - {"string", "null"} != set()
    if keyword == "format":
        return not any(whole["format"] in _FORMATS.get(_GEMINI_TYPES[name], ()) for name in spoken if name != "null")
    return keyword != "additionalProperties" or whole[keyword] not in (False, {}, True)


def _guessed(whole: JsonObject) -> list[str]:
    """Return the type of what names none, where its values tell: never a narrower one than they have."""
    values = whole.get("enum", [whole["const"]] if "const" in whole else [])
    if all(isinstance(value, str) or value is None for value in values) and any(values):
        return ["string"]
    return []


def _strings(whole: JsonObject) -> list[str]:
    """Return the values that a string may have, if these are all; Gemini takes no empty one."""
    values = [whole["const"]] if "const" in whole else whole.get("enum", [])
    strings = [value for value in values if isinstance(value, str)]
    return [] if "" in strings else list(dict.fromkeys(strings))


def _described(shown: JsonObject, whole: JsonObject) -> JsonObject:
    texts = [whole.get("description"), shown.get("description")]
    description = " ".join(dict.fromkeys(text for text in texts if isinstance(text, str) and text))
    return {**shown, "description": description} if description or "description" in whole else shown


_ROUNDS = 2
_GEMINI_TYPES = {name: name.upper() for name in ("string", "number", "integer", "boolean", "array", "object")}
