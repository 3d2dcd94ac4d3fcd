"""Rewrites references inside a schema to one kind, `#/$defs/<name>`, so that everything else may move."""

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, TypeAlias
from urllib.parse import unquote

JsonObject: TypeAlias = dict[str, Any]

ONE = frozenset(
    [
        "items",
        "contains",
        "additionalProperties",
        "unevaluatedItems",
        "unevaluatedProperties",
        "propertyNames",
        "not",
        "if",
        "then",
        "else",
    ]
)
LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
MAPS = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
# They decide nothing about a value. Their own keywords, not added ones.
ANNOTATIONS = frozenset(
    [
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "format",
        "contentEncoding",
        "contentMediaType",
    ]
)

_LONGEST_ADDITION = 400

NOWHERE = "#nowhere"
"""What a reference becomes that cannot be followed: to another document, to nothing, or in a part with its own address."""

TOO_MUCH = "#too-much"
"""What a reference becomes when the definitions before it, each of which is copied once, are all that may be copied."""
_HERE = "#/$defs/"

_MOST_COPIED = 20_000  # values: ten times what a large tool has
_SHOWN_REFERENCE = 50  # characters
_OLDEST = 4  # its addresses are called `id`
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)

_PRESENT = 2020
_DRAFTS: Mapping[Any, int] = {
    "http://json-schema.org/draft-04/schema": 4,
    "http://json-schema.org/draft-06/schema": 6,
    "http://json-schema.org/draft-07/schema": 7,
    "https://json-schema.org/draft/2019-09/schema": 2019,
}
# What an older draft does not have, its validators do not look at.
_SINCE: Mapping[str, int] = {
    **dict.fromkeys(("const", "contains", "propertyNames"), 6),
    **dict.fromkeys(("if", "then", "else"), 7),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "minContains", "maxContains"), 2019),
    **dict.fromkeys(("unevaluatedProperties", "unevaluatedItems"), 2019),
    "prefixItems": _PRESENT,
}

_REF_ALONE = 7  # up to this draft everything next to a reference is ignored
_BOOLEAN_LIMITS = 4


def children(schema: JsonObject) -> Iterator[tuple[str, Any]]:
    """Yield each direct subschema, with the pointer to it."""
    for keyword, value in schema.items():
        if keyword in ONE and isinstance(value, dict | bool):
            yield f"/{keyword}", value
        elif keyword in LISTS and isinstance(value, list):
            yield from ((f"/{keyword}/{index}", child) for index, child in enumerate(value))
        elif keyword in MAPS and isinstance(value, dict):
            yield from ((f"/{keyword}/{escaped(str(name))}", child) for name, child in value.items())


def rebuilt(schema: JsonObject, change: Callable[[Any, str], Any]) -> JsonObject:
    """Return a copy in which each schema directly inside is what `change(child, pointer)` makes of it."""
    copy: JsonObject = {}
    for keyword, value in schema.items():
        if keyword in ONE and isinstance(value, dict | bool):
            copy[keyword] = change(value, f"/{keyword}")
        elif keyword in LISTS and isinstance(value, list):
            copy[keyword] = [change(child, f"/{keyword}/{index}") for index, child in enumerate(value)]
        elif keyword in MAPS and isinstance(value, dict):
            copy[keyword] = {name: change(child, f"/{keyword}/{escaped(name)}") for name, child in value.items()}
        else:
            copy[keyword] = value
    return copy


def escaped(name: str) -> str:
    """Escape one step of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def types_of(schema: JsonObject) -> list[str]:
    """Return the types that `type` names, in its order; empty if it names none."""
    spoken = schema.get("type")
    return [spoken] if isinstance(spoken, str) else list(spoken) if isinstance(spoken, list) else []


def is_keyword(keyword: str) -> bool:
    """Return whether the standard has this keyword, as one that constrains or describes a value."""
    return keyword in _SHAPES


def is_well_formed(keyword: str, value: Any) -> bool:
    """Return whether a keyword's value is valid by the standard; `False` for an unknown keyword."""
    check = _SHAPES.get(keyword)
    return check is not None and check(value)


def add_to_description(schema: JsonObject, limits: Mapping[str, Any]) -> None:
    """Say in the description what the schema can no longer say, if it is short."""
    text = ", ".join(f"{keyword}: {_json(value)}" for keyword, value in limits.items())
    if text and len(text) <= _LONGEST_ADDITION:
        description = schema.get("description")
        schema["description"] = f"{description} ({text})" if description else f"({text})"


def compiles(pattern: str) -> bool:
    """Return whether an ordinary validator can read this regular expression."""
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_anything(_: Any) -> bool:
    return True


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_type(value: Any) -> bool:
    spoken = [value] if isinstance(value, str) else value
    return isinstance(spoken, list) and bool(spoken) and all(isinstance(a, str) and a in TYPES for a in spoken)


def _is_schemas(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_schema, value))


def _is_map(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_schema, value.values()))


def _is_pattern_map(value: Any) -> bool:
    return _is_map(value) and all(map(compiles, value))


def _is_pattern(value: Any) -> bool:
    return isinstance(value, str) and compiles(value)


def _is_names_map(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_names, value.values()))


def _is_step(value: Any) -> bool:
    return _is_number(value) and value > 0


def _is_full_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


_SHAPES: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(ONE, _is_schema),
    **dict.fromkeys(LISTS, _is_schemas),
    **dict.fromkeys(MAPS, _is_map),
    **dict.fromkeys(("maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum"), _is_number),
    **dict.fromkeys(("maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"), _is_count),
    **dict.fromkeys(("maxContains", "minContains"), _is_count),
    **dict.fromkeys(("title", "description", "format", "$ref", "contentEncoding", "contentMediaType"), _is_text),
    **dict.fromkeys(("deprecated", "readOnly", "writeOnly", "uniqueItems"), _is_flag),
    **dict.fromkeys(("const", "default"), _is_anything),
    "type": _is_type,
    "enum": _is_full_list,
    "examples": _is_full_list,
    "multipleOf": _is_step,
    "pattern": _is_pattern,
    "patternProperties": _is_pattern_map,
    "required": _is_names,
    "dependentRequired": _is_names_map,
}


def localized(schema: JsonObject) -> JsonObject:
    """Return the same schema in the present draft, with references under `$defs`, and there only the used ones."""
    return _Localizing(schema).schema()


def definition(ref: Any, definitions: JsonObject) -> Any:
    """Return the target of a localized schema's reference; `None` if there is none."""
    return definitions.get(ref[len(_HERE) :]) if isinstance(ref, str) and ref.startswith(_HERE) else None


class _Localizing:
    def __init__(self, root: JsonObject) -> None:
        self._root = root
        self._draft = _draft_of(root)
        self._names: dict[int, str] = {}  # identity of what is referred to, however that is spelled -> name
        self._taken = set[str]()
        self._candidates: dict[str, Iterator[str]] = {}  # for each plain name those that were not tried yet
        self._bytes_left = _MOST_COPIED
        self._waiting: list[tuple[str, Any]] = []

    def schema(self) -> JsonObject:
        schema: JsonObject = self._moved(self._root, is_root=True)
        definitions: JsonObject = {}
        while self._waiting:
            name, target = self._waiting.pop(0)
            definitions[name] = self._moved(target, is_root=target is self._root)
        if definitions:
            schema["$defs"] = {name: definitions[name] for name in sorted(definitions)}
        return schema

    def _moved(self, schema: Any, *, is_root: bool = False, is_foreign: bool = False) -> Any:
        if not isinstance(schema, dict):
            return schema
        addresses = ("$id", "id") if self._draft == _OLDEST else ("$id",)
        foreign = is_foreign or (not is_root and any(isinstance(schema.get(name), str) for name in addresses))
        present = modern(schema, self._draft)
        here = {keyword: value for keyword, value in present.items() if keyword not in {"$defs", "definitions"}}
        copy = rebuilt(here, lambda child, _: self._moved(child, is_foreign=foreign))
        if "$ref" in copy:
            copy["$ref"] = NOWHERE if foreign else self._local(copy["$ref"])
        return copy

    def _local(self, ref: Any) -> str:
        if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
            return NOWHERE
        target = _found(self._root, ref)
        if not isinstance(target, dict | bool):
            return NOWHERE
        key = id(target)
        if key not in self._names:
            size = self._sizes.get(key, 1)
            if size > self._bytes_left:
                return TOO_MUCH
            self._bytes_left -= size
            self._names[key] = self._free_name(ref)
            self._waiting.append((self._names[key], target))
        return f"{_HERE}{self._names[key]}"

    @cached_property
    def _sizes(self) -> dict[int, int]:
        """The sizes of all objects in the document.

        A part of a definition may be referred to as well, and is copied twice then.
        """
        sizes: dict[int, int] = {}
        _measure(self._root, sizes)
        return sizes

    def _free_name(self, ref: str) -> str:
        name = ref.rpartition("/")[2]
        plain = name if _PLAIN.fullmatch(name) else "root" if ref == "#" else "definition"
        candidates = self._candidates.setdefault(plain, _candidates(plain))
        name = next(name for name in candidates if name not in self._taken)
        self._taken.add(name)
        return name


def _candidates(plain: str) -> Iterator[str]:
    yield plain
    yield from (f"{plain}_{number}" for number in itertools.count(2))


def _found(root: Any, ref: str) -> Any:
    value = root
    for step in ref.split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isascii() and name.isdigit() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
        if isinstance(value, dict) and not {"$id", "id"}.isdisjoint(value):
            return None
    return value


def _measure(value: Any, sizes: dict[int, int]) -> int:
    """Return the number of values it holds, itself included; a long text counts as several."""
    if isinstance(value, str):
        return 1 + len(value) // _SHOWN_REFERENCE
    if not isinstance(value, dict | list):
        return 1
    size = 1 + sum(_measure(inner, sizes) for inner in (value.values() if isinstance(value, dict) else value))
    if isinstance(value, dict):
        sizes[id(value)] = size
    return size


def _draft_of(schema: JsonObject) -> int:
    """Return the draft that a document says it is written in: 4, 6, 7, 2019 or 2020, which is also that of all others."""
    name = schema.get("$schema")
    return _DRAFTS.get(name.rstrip("#"), _PRESENT) if isinstance(name, str) else _PRESENT


def modern(schema: JsonObject, draft: int) -> JsonObject:
    """Translate one schema, without its subschemas, to the current draft: it allows the same values, or more."""
    if draft == _PRESENT:
        return schema
    if draft <= _REF_ALONE and "$ref" in schema:
        return {keyword: value for keyword, value in schema.items() if keyword in ANNOTATIONS | {"$ref", "$id", "id"}}
    present = {keyword: value for keyword, value in schema.items() if _SINCE.get(keyword, 0) <= draft}
    _listed_items(present)
    if draft <= _REF_ALONE:
        _dependencies(present)
    if draft == _BOOLEAN_LIMITS:
        for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if present.pop(exclusive, False) is True and limit in present:
                present[exclusive] = present.pop(limit)
    return present


def _listed_items(schema: JsonObject) -> None:
    others = schema.pop("additionalItems", None)
    if not isinstance(schema.get("items"), list):
        return
    first = schema.pop("items")
    if first:
        schema["prefixItems"] = first
    if others is not None:
        schema["items"] = others


def _dependencies(schema: JsonObject) -> None:
    dependencies = schema.pop("dependencies", None)
    if not isinstance(dependencies, dict):
        return
    names = {name: value for name, value in dependencies.items() if isinstance(value, list)}
    schemas = {name: value for name, value in dependencies.items() if isinstance(value, dict | bool)}
    if names:
        schema["dependentRequired"] = names
    if schemas:
        schema["dependentSchemas"] = schemas
