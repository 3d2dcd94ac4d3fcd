"""Schemas and arguments for property tests, and judges that know nothing of our own code."""

from collections.abc import Sequence
from typing import Any

import jsonschema_rs
from hypothesis import assume
from hypothesis import strategies as st

# Names that somebody refuses among them, few so that schemas and values meet.
NAMES = ("a", "b", "c d", "é")
SCALARS: st.SearchStrategy[Any] = st.sampled_from([None, True, False, 0, 1, 5, 1.5, "", "x", "yes", "2025-01-01"])
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4)
DRAFTS = (
    None,
    "http://json-schema.org/draft-04/schema#",
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2019-09/schema",
)
_DEEPEST = 12
_PLAIN_VALUES: dict[str, list[Any]] = {
    "string": ["x", "yes"],
    "integer": [0, 5],
    "boolean": [True, False],
    "null": [None],
}
_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")


_PLAIN_KEYWORDS: dict[str, st.SearchStrategy[Any]] = {
    "enum": st.lists(VALUES, min_size=1, max_size=4),
    "const": VALUES,
    "minimum": st.sampled_from([0, 1.5]),
    "exclusiveMinimum": st.just(0),
    "minLength": st.just(1),
    "maxItems": st.just(2),
    "uniqueItems": st.just(value=True),
    "minProperties": st.just(1),
    "pattern": st.sampled_from(["^y", "^(?=x)"]),
    "format": st.sampled_from(["date", "uri", "madeup"]),
    "default": SCALARS,
    "description": st.just("words"),
    "x-mine": st.just("extra"),
}


def _keywords(inner: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    several = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
    return _PLAIN_KEYWORDS | {
        "type": st.sampled_from(_TYPES) | st.lists(st.sampled_from(_TYPES), min_size=1, max_size=3, unique=True),
        "properties": named,
        "required": st.lists(st.sampled_from(NAMES), max_size=2, unique=True),
        "additionalProperties": inner,
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "d$", "."]), inner, max_size=1),
        "propertyNames": st.just({"maxLength": 2}),
        "items": inner | several,
        "prefixItems": several,
        "contains": inner,
        "maxContains": st.just(1),
        "anyOf": several,
        "oneOf": several,
        "allOf": several,
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
        "dependentRequired": st.just({"a": ["b"]}),
        "dependentSchemas": st.dictionaries(st.sampled_from(NAMES), inner, max_size=1),
        "unevaluatedProperties": inner,
        "unevaluatedItems": inner,
        "$ref": st.sampled_from(["#/$defs/one", "#/$defs/two", "#", "https://example.com/x", "#/properties/a"]),
        "additionalItems": inner,
        "dependencies": st.dictionaries(st.sampled_from(NAMES), st.just(["b"]) | inner, max_size=1),
    }


@st.composite
def _schema(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    keywords = _keywords(inner)
    chosen = draw(st.lists(st.sampled_from(sorted(keywords)), max_size=4, unique=True))
    return {keyword: draw(keywords[keyword]) for keyword in chosen}


SCHEMAS: st.SearchStrategy[Any] = st.recursive(st.booleans() | _schema(st.just({})), _schema, max_leaves=6)


@st.composite
def input_schemas(draw: st.DrawFn) -> dict[str, Any]:
    """The schema of a tool's arguments: anything at its top but what would leave no object."""
    schema: dict[str, Any] = draw(_schema(SCHEMAS))
    schema["properties"] = draw(st.dictionaries(st.sampled_from(NAMES), SCHEMAS, max_size=3))
    schema.pop("type", None)
    if (draft := draw(st.sampled_from(DRAFTS))) is not None:
        schema["$schema"] = draft
    if draw(st.booleans()):
        schema["$defs"] = {"one": draw(SCHEMAS), "two": draw(SCHEMAS)}
    return schema


PLAIN = ("string", "integer", "boolean", "enum", "nullable", "object", "array", "any", "one", "ref")


@st.composite
def plain_schemas(draw: st.DrawFn, depth: int = 2, only: Sequence[str] = PLAIN) -> dict[str, Any]:
    """Schemas as most tools have them: types, nested objects, lists, alternatives, limits; all with a type."""
    kind = draw(st.sampled_from(only))
    inner = plain_schemas(depth=depth - 1, only=only)
    nested: dict[str, st.SearchStrategy[dict[str, Any]]] = {
        "array": inner.map(lambda items: {"type": "array", "items": items}),
        "any": st.lists(inner, min_size=1, max_size=3).map(lambda branches: {"anyOf": branches}),
        "one": st.lists(inner, min_size=1, max_size=3, unique_by=repr).map(lambda branches: {"oneOf": branches}),
        "object": plain_objects(depth=depth - 1, only=only),
    }
    flat: dict[str, st.SearchStrategy[dict[str, Any]]] = {
        "enum": st.lists(st.sampled_from(["x", "yes", 1, None]), min_size=1, unique=True).map(lambda a: {"enum": a}),
        "nullable": st.sampled_from(["string", "integer"]).map(lambda a: {"type": [a, "null"]}),
        "ref": st.just({"$ref": "#/$defs/one"}),
    }
    if kind in flat or (depth and kind in nested):
        return draw(flat[kind] if kind in flat else nested[kind])
    limits = {"string": {"minLength": 1}, "integer": {"minimum": 0}}.get(kind, {}) if draw(st.booleans()) else {}
    return {"type": kind if kind in {"string", "integer", "boolean"} else "integer", **limits}


@st.composite
def plain_objects(draw: st.DrawFn, depth: int = 2, only: Sequence[str] = PLAIN) -> dict[str, Any]:
    """An object with named properties, closed or not."""
    inner = plain_schemas(depth=depth, only=only)
    properties = draw(st.dictionaries(st.sampled_from(NAMES), inner, min_size=1, max_size=3))
    required = draw(st.lists(st.sampled_from(sorted(properties)), unique=True))
    closed = {"additionalProperties": False} if draw(st.booleans()) else {}
    return {"type": "object", "properties": properties, "required": required, **closed}


@st.composite
def strict_values(draw: st.DrawFn, schema: dict[str, Any], definitions: dict[str, Any], depth: int = 0) -> Any:
    """What a strict schema of OpenAI's allows."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    assume(depth < _DEEPEST)
    if "anyOf" in schema:
        branches = schema["anyOf"]
        nulls = [branch for branch in branches if branch == {"type": "null"}]
        chosen = draw(st.sampled_from(nulls if nulls and depth > _DEEPEST // 2 else branches))
        return draw(strict_values(chosen, definitions, depth + 1))
    if "enum" in schema:
        return draw(st.sampled_from(schema["enum"]))
    kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    kind = "null" if "null" in kinds and depth > _DEEPEST // 2 else draw(st.sampled_from(kinds))
    if kind == "object":
        return {
            name: draw(strict_values(inner, definitions, depth + 1)) for name, inner in schema["properties"].items()
        }
    if kind == "array":
        return draw(st.lists(strict_values(schema["items"], definitions, depth + 1), max_size=2))
    return draw(st.sampled_from(_PLAIN_VALUES[kind]))


@st.composite
def tool_values(draw: st.DrawFn, schema: dict[str, Any]) -> Any:
    """What a plain schema without alternatives and references allows, naming only what it names."""
    if "enum" in schema:
        return draw(st.sampled_from(schema["enum"]))
    kind = draw(st.sampled_from(schema["type"])) if isinstance(schema["type"], list) else schema["type"]
    if kind == "object":
        left_out = [name for name in schema["properties"] if name not in schema["required"] and draw(st.booleans())]
        return {name: draw(tool_values(inner)) for name, inner in schema["properties"].items() if name not in left_out}
    if kind == "array":
        return draw(st.lists(tool_values(schema["items"]), max_size=2))
    return draw(st.sampled_from(_PLAIN_VALUES[kind]))


def is_valid(value: Any, schema: dict[str, Any]) -> bool:
    """What an ordinary validator says; a reference that leads nowhere allows nothing."""
    try:
        return jsonschema_rs.validator_for(schema, validate_formats=False).is_valid(value)
    except (ValueError, jsonschema_rs.ReferencingError):
        return False


def from_gemini(schema: dict[str, Any]) -> dict[str, Any]:
    """What a schema in Gemini's dialect means, as JSON Schema."""
    plain = {keyword: value for keyword, value in schema.items() if keyword not in {"nullable", "type", "format"}}
    if "type" in schema:
        plain["type"] = schema["type"].lower()
    if "properties" in schema:
        plain["properties"] = {name: from_gemini(inner) for name, inner in schema["properties"].items()}
    if "items" in schema:
        plain["items"] = from_gemini(schema["items"])
    if "anyOf" in schema:
        plain["anyOf"] = [from_gemini(inner) for inner in schema["anyOf"]]
    return {"anyOf": [plain, {"type": "null"}]} if schema.get("nullable") else plain
