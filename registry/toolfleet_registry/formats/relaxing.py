"""Adapts a schema to a provider that takes most of JSON Schema: never allows fewer calls than the tool's own.

Our own validator judges every call by the tool's own schema, so that allowing more here costs a model's attempt,
and allowing less would cost a call.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from toolfleet_registry.formats.dialects import Dialect, legal_property
from toolfleet_registry.formats.references import (
    ANNOTATIONS,
    LISTS,
    MAPS,
    ONE,
    TOO_MUCH,
    JsonObject,
    add_to_description,
    children,
    definition,
    escaped,
    is_keyword,
    is_well_formed,
    types_of,
)

NoteKind = Literal["relaxed", "dropped", "renamed", "closed", "refused"]
"""`relaxed`: the provider sees less than what is checked here. `dropped`: something that decides nothing is not shown.
`renamed`: a property goes by another name, and comes back by its own. `closed`: strict, so that arguments the schema does
not name cannot be sent. `refused`: the provider may not take it, or not so, and nothing could be done."""

_COMBINING = ("$ref", "allOf", "anyOf", "oneOf")
_EXCLUDED = ("not", "enum", "const")
_DEEPEST = 8  # references and combinations in each other; more are not looked into
_MOST = 200  # of them all

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

_ESCAPE = r"\\[dDwWsStnrfv]|\\[!-/:;=?@\[-`{-~]|\\x[0-9A-Fa-f]{2}"
_CLASS = rf"\[\^?(?:(?:{_ESCAPE}|[^\\\[\]&~-])|-(?!-)|&(?!&)|~(?!~))+\]"
_REPEAT = r"(?:[*+?]|\{(?:[0-9]{1,2}|[1-9][0-9]{2})(?:,(?:[0-9]{1,2}|[1-9][0-9]{2})?)?\})\??"
# What engines of all kinds read: no look-around, back reference, named group, nested class, set operation or huge repeat.
_ATOM = rf"(?:{_ESCAPE}|\\[bB]|{_CLASS}|[^\\\[\](){{}}*+?]|\))(?:{_REPEAT})?"
_PORTABLE = re.compile(rf"(?:{_ATOM}|\((?:\?:)?(?![*+?]))*")
_TOO_MUCH = "what it refers to would be too much to be shown, with all the others"


@dataclass(frozen=True, slots=True)
class Note:
    """One difference between a tool and what a provider is shown of it."""

    tool: str
    """The tool's name; empty: of all of them."""
    path: str
    """A JSON pointer into the arguments' schema, or `name`, `description`, `strict`, `tools`."""
    kind: NoteKind
    """What was done about it."""
    why: str
    """The reason, in words."""

    def __str__(self) -> str:
        return f"{self.tool} {self.path or '/'}: {self.kind}: {self.why}"


class Converted(list[Any]):
    """A provider's list of tools, ready to be sent, with notes on what differs from the tools' own definitions.

    Each element is a plain dictionary. To type checkers it is `Any`, since each provider's package asks for its own
    types, none of which is known here: the list can be passed, or assigned, where they are wanted.
    """

    notes: tuple[Note, ...]
    """What the provider is not told as the tools have it."""

    def __init__(self, offers: Iterable[dict[str, Any]], notes: Iterable[Note]) -> None:
        super().__init__(offers)
        self.notes = tuple(notes)


@dataclass
class Notes:
    """Gathers the notes on one tool."""

    tool: str
    taken: list[Note] = field(default_factory=list[Note])

    def add(self, path: str, kind: NoteKind, why: str) -> None:
        """Take one more."""
        self.taken.append(Note(self.tool, path, kind, why))

    def mark(self) -> int:
        """Return the present position, for `lost_since` and `undo`."""
        return len(self.taken)

    def lost_since(self, mark: int) -> bool:
        """Return whether a note since `mark` changes what the schema allows."""
        return any(note.kind != "dropped" for note in self.taken[mark:])

    def undo(self, mark: int) -> None:
        """Forget what was noted since."""
        del self.taken[mark:]


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
        """Return a branch as one object; `None` for one that no object fits."""
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


def relaxed(schema: JsonObject, dialect: Dialect, notes: Notes) -> JsonObject:
    """Return a localized schema in the provider's dialect, `$defs` with it. What differs is noted."""
    names = renamed_properties(schema, dialect.property_name)
    mark = notes.mark()
    result = _Relaxing(schema, dialect, names, notes, loose=False).whole()
    if any(note.path.startswith("/$defs/") and note.kind != "dropped" for note in notes.taken[mark:]):
        # A definition allows more than it did: where something is denied, referring to it would deny more.
        notes.undo(mark)
        result = _Relaxing(schema, dialect, names, notes, loose=True).whole()
    return result


def renamed_properties(schema: JsonObject, legal: re.Pattern[str] | None) -> dict[str, str]:
    """Return the properties, wherever they are in the schema, that the provider cannot take: their name -> another."""
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
        """Keep `oneOf` if its branches are shown exactly; otherwise write `anyOf`."""
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
        """Keep a condition only if it is exact; its branches can be relaxed."""
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


def _holds_objects(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_holds_objects, value))
    return isinstance(value, dict)
