"""Rewrites schemas of older drafts in the present one: our validator reads them as their `$schema` says, providers do not."""

from collections.abc import Mapping
from typing import Any

from toolfleet_registry.formats.schemas.subschemas import ANNOTATIONS, JsonObject

PRESENT = 2020
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
    "prefixItems": PRESENT,
}


def draft_of(schema: JsonObject) -> int:
    """The draft that a document says it is written in: 4, 6, 7, 2019 or 2020, which is also that of all others."""
    name = schema.get("$schema")
    return _DRAFTS.get(name.rstrip("#"), PRESENT) if isinstance(name, str) else PRESENT


def modern(schema: JsonObject, draft: int) -> JsonObject:
    """One schema, without those inside, in the present draft: the same values, or more."""
    if draft == PRESENT:
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


_REF_ALONE = 7  # up to this draft nothing beside a reference counts
_BOOLEAN_LIMITS = 4
