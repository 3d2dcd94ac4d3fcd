"""Adapts a schema to a provider that takes most of JSON Schema: never allows fewer calls than the tool's own.

Our own validator judges every call by the tool's own schema, so that allowing more here costs a model's attempt,
and allowing less would cost a call.
"""

import re
from collections.abc import Iterator
from typing import Any

from toolfleet_registry.formats.dialects import Dialect
from toolfleet_registry.formats.schemas.notes import NoteKind, Notes
from toolfleet_registry.formats.schemas.references import TOO_MUCH, definition
from toolfleet_registry.formats.schemas.subschemas import (
    ANNOTATIONS,
    LISTS,
    MAPS,
    ONE,
    JsonObject,
    add_to_description,
    children,
    escaped,
    is_keyword,
    is_well_formed,
    types_of,
)
from toolfleet_registry.formats.tool_names import legal_property

# What cannot stay if the first of them goes: their meaning hangs on it, and without it they would forbid more.
_DEPENDENTS = {
    "properties": ("additionalProperties", "unevaluatedProperties"),
    "patternProperties": ("additionalProperties", "unevaluatedProperties"),
    "prefixItems": ("items", "unevaluatedItems"),
    "items": ("unevaluatedItems",),
    "minContains": ("contains", "maxContains"),
    "contains": ("minContains", "maxContains", "unevaluatedItems"),
    "if": ("then", "else"),
    "then": ("if", "else"),
    "else": ("if", "then"),
}
# Less of one of these would allow less of the whole, or another thing: each has its own way below.
_EXACT = frozenset({"not", "contains", "unevaluatedProperties", "unevaluatedItems", "oneOf", "if", "then", "else"})
_BY_NAME = frozenset({"patternProperties", "propertyNames", "dependentRequired", "dependentSchemas"})
_SILENT = frozenset({"$schema", "$id", "$comment", "$anchor", "$defs", "$vocabulary", "$dynamicAnchor"})
_DECIDING = frozenset({"$dynamicRef", "$recursiveRef", "dependencies", "additionalItems"})


def relaxed(schema: JsonObject, dialect: Dialect, notes: Notes) -> JsonObject:
    """A localized schema in the provider's dialect, `$defs` with it. What differs is noted."""
    names = renamed_properties(schema, dialect.property_name)
    mark = notes.mark()
    result = _Relaxing(schema, dialect, names, notes, loose=False).whole()
    if any(note.path.startswith("/$defs/") and note.kind != "dropped" for note in notes.taken[mark:]):
        # A definition allows more than it did: where something is denied, referring to it would deny more.
        notes.undo(mark)
        result = _Relaxing(schema, dialect, names, notes, loose=True).whole()
    return result


def renamed_properties(schema: JsonObject, legal: re.Pattern[str] | None) -> dict[str, str]:
    """The properties, wherever they are in the schema, that the provider cannot take: their name -> another."""
    if legal is None:
        return {}
    return {name: legal_property(name, legal) for name in _all_properties(schema) if not legal.fullmatch(name)}


def _all_properties(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        properties = schema.get("properties")
        yield from (properties if isinstance(properties, dict) else {})
        for _, child in children(schema):
            yield from _all_properties(child)


class _Relaxing:
    def __init__(self, root: JsonObject, dialect: Dialect, names: dict[str, str], notes: Notes, *, loose: bool) -> None:
        self._root = root
        self._definitions: JsonObject = root.get("$defs", {})
        self._dialect = dialect
        self._names = names
        self._notes = notes
        self._loose = loose
        self._refs = 0

    def whole(self) -> JsonObject:
        result = self._schema(self._root, "")
        if self._definitions:
            result["$defs"] = {
                name: self._schema(schema, f"/$defs/{escaped(name)}") for name, schema in self._definitions.items()
            }
        return result

    def _schema(self, value: Any, path: str) -> JsonObject:
        if isinstance(value, bool):
            return {} if value else {"not": {}}
        sane = self._sane(value, path)
        mark, refs = self._notes.mark(), self._refs
        result: JsonObject = {
            keyword: self._keyword(keyword, inner, f"{path}/{keyword}")
            for keyword, inner in sane.items()
            if keyword not in _EXACT
        }
        self._one_of(sane, result, path)
        self._conditional(sane, result, path)
        for keyword in sorted(sane.keys() & {"not", "contains"}):
            self._keep_if_exact(keyword, sane, result, path)
        self._unevaluated(sane, result, path, is_exact=self._is_exact_since(mark, refs))
        if "array" in types_of(result) and "items" not in result:
            result["items"] = {}
        return result

    def _unevaluated(self, sane: JsonObject, result: JsonObject, path: str, *, is_exact: bool) -> None:
        """Relax the `unevaluated` keywords: their meaning depends on everything else in the schema."""
        for keyword in ("unevaluatedProperties", "unevaluatedItems"):
            if keyword not in sane:
                continue
            if is_exact:
                self._keep_if_exact(keyword, sane, result, path)
            else:
                self._notes.add(f"{path}/{keyword}", "relaxed", "is not shown, as the rest is not shown exactly")

    def _sane(self, value: JsonObject, path: str) -> JsonObject:
        """Return the keywords that have a meaning, with valid values, and that still hold."""
        sane = dict(value)
        for keyword, inner in value.items():
            if fault := self._fault(keyword, inner):
                kind, why = fault
                sane.pop(keyword, None)
                for dependent in _DEPENDENTS.get(keyword, ()) if kind == "relaxed" else ():
                    sane.pop(dependent, None)
                if keyword not in _SILENT:
                    self._notes.add(f"{path}/{escaped(keyword)}", kind, why)
        if isinstance(value.get("format"), str) and "format" not in sane:
            add_to_description(sane, {"format": value["format"]})
        return sane

    def _fault(self, keyword: str, inner: Any) -> tuple[NoteKind, str] | None:
        if keyword in _SILENT:
            return "dropped", ""
        if keyword in _DECIDING:
            return "relaxed", "no provider takes it"
        if not is_well_formed(keyword, inner):
            decides = is_keyword(keyword) and keyword not in ANNOTATIONS
            return ("relaxed", "has no value that is taken") if decides else ("dropped", "means nothing in JSON Schema")
        why = self._why_not_shown(keyword, inner)
        return ("relaxed", why) if why else None

    def _why_not_shown(self, keyword: str, inner: Any) -> str | None:
        if keyword == "$ref" and definition(inner, self._definitions) is None:
            return _TOO_MUCH if inner == TOO_MUCH else "leads out of the schema, or to nothing in it"
        patterns = {"pattern": [inner], "patternProperties": inner}.get(keyword, ())
        if not all(map(_PORTABLE.fullmatch, patterns)):
            return "has a pattern that some engines refuse, and with it the whole request"
        if keyword == "format" and self._dialect.formats is not None and inner not in self._dialect.formats:
            return f"the format {inner!r} is not taken"
        if self._names and (keyword in _BY_NAME or keyword.startswith("unevaluated")):
            return "speaks of names, and some are not shown as they are"
        if self._names and keyword in {"enum", "const"} and _holds_objects(inner):
            return "holds objects, and some names are not shown as they are"
        return None

    def _keyword(self, keyword: str, inner: Any, path: str) -> Any:
        shown = inner
        if keyword == "$ref":
            self._refs += 1
        elif keyword in MAPS:
            names = self._names if keyword == "properties" else {}
            self._note_names(inner, names, path)
            shown = {names.get(name, name): self._schema(one, f"{path}/{escaped(name)}") for name, one in inner.items()}
        elif keyword in LISTS:
            shown = [self._schema(one, f"{path}/{index}") for index, one in enumerate(inner)]
        elif keyword == "required":
            shown = [self._names.get(name, name) for name in dict.fromkeys(inner)]
        elif keyword in ONE and not (keyword == "additionalProperties" and inner is False):
            shown = self._schema(inner, path)
        return shown

    def _note_names(self, properties: JsonObject, names: dict[str, str], path: str) -> None:
        for name in sorted(names.keys() & properties.keys()):
            self._notes.add(f"{path}/{escaped(name)}", "renamed", f"is shown as {names[name]!r}")

    def _one_of(self, sane: JsonObject, result: JsonObject, path: str) -> None:
        """One branch and no other, if the branches are shown exactly; else at least one of them."""
        if "oneOf" not in sane:
            return
        mark, refs = self._notes.mark(), self._refs
        branches = self._keyword("oneOf", sane["oneOf"], f"{path}/oneOf")
        if self._is_exact_since(mark, refs):
            result["oneOf"] = branches
        elif "anyOf" in result:
            result["allOf"] = [*result.get("allOf", []), {"anyOf": branches}]
        else:
            result["anyOf"] = branches

    def _conditional(self, sane: JsonObject, result: JsonObject, path: str) -> None:
        """A condition must be exact; what follows from it may be relaxed."""
        if "if" in sane and self._keep_if_exact("if", sane, result, path):
            for keyword in ("then", "else"):
                if keyword in sane:
                    result[keyword] = self._schema(sane[keyword], f"{path}/{keyword}")

    def _keep_if_exact(self, keyword: str, sane: JsonObject, result: JsonObject, path: str) -> bool:
        mark, refs = self._notes.mark(), self._refs
        inner = False if sane[keyword] is False else self._schema(sane[keyword], f"{path}/{keyword}")
        if self._is_exact_since(mark, refs):
            result[keyword] = inner
            return True
        self._notes.undo(mark)
        self._notes.add(f"{path}/{keyword}", "relaxed", "cannot be shown exactly, so it is not shown")
        for dependent in _DEPENDENTS.get(keyword, ()):
            result.pop(dependent, None)
        return False

    def _is_exact_since(self, mark: int, refs: int) -> bool:
        return not self._notes.lost_since(mark) and (self._refs == refs or not self._loose)


_ESCAPE = r"\\[dDwWsStnrfv]|\\[!-/:;=?@\[-`{-~]|\\x[0-9A-Fa-f]{2}"
_CLASS = rf"\[\^?(?:(?:{_ESCAPE}|[^\\\[\]&~-])|-(?!-)|&(?!&)|~(?!~))+\]"
_REPEAT = r"(?:[*+?]|\{(?:[0-9]{1,2}|[1-9][0-9]{2})(?:,(?:[0-9]{1,2}|[1-9][0-9]{2})?)?\})\??"
# What engines of all kinds read: no look-around, back reference, named group, nested class, set operation or huge repeat.
_ATOM = rf"(?:{_ESCAPE}|\\[bB]|{_CLASS}|[^\\\[\](){{}}*+?]|\))(?:{_REPEAT})?"
_PORTABLE = re.compile(rf"(?:{_ATOM}|\((?:\?:)?(?![*+?]))*")
_TOO_MUCH = "what it refers to would be too much to be shown, with all the others"


def _holds_objects(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_holds_objects, value))
    return isinstance(value, dict)
