"""Translates a document's schemas to JSON Schema 2020-12: for what a service takes, or for what it returns."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from toolfleet_modules.hosts.openapi.document import OpenApiDocument, OperationUnusable, digest_of
from toolfleet_registry.schemas.patterns import MOST_STATES, states_of
from toolfleet_registry.schemas.subschemas import is_senseless

Direction = Literal["input", "output"]

_MOST_DEFINITIONS = 2000  # of one schema: what has more is larger than a tool's schema may be
_SHOWN = 120
_MOST_WORDS = 1000  # characters

_DASHES = re.compile(r"(\\[dDwWsS])-|(\\.)|-(?=\\[dDwWsS])")
_DROPPED = frozenset(
    """discriminator example externalDocs nullable readOnly writeOnly xml $schema $comment $id $anchor $dynamicAnchor
    $dynamicRef $recursiveAnchor $recursiveRef""".split()
)
_BESIDE = frozenset({"if", "then", "else"})  # which hold for the same object
_ONE = frozenset(
    """additionalProperties contains contentSchema else if items not propertyNames then unevaluatedItems
    unevaluatedProperties""".split()
)
_LISTED = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_NAMED = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
_COMPOSING = ("allOf", "anyOf", "oneOf")
_COMBINING = frozenset({"allOf", "anyOf", "oneOf", "not", "$ref"})


class SchemaTranslator:
    """Translates for one direction. What a schema refers to is collected, and stands in `$defs` of the tool's schema.

    Properties that only the other direction has (`readOnly`, `writeOnly`) are left out. In inputs a default is words only:
    it is what the service does without a value, and one that is filled in and sent could change something.
    """

    def __init__(self, document: OpenApiDocument, direction: Direction) -> None:
        self._document = document
        self._is_input = direction == "input"
        self._hidden = "readOnly" if self._is_input else "writeOnly"
        self._definitions: dict[str, tuple[Any, frozenset[str]]] = {}
        self._whole = set[str]()
        self._component = ""  # the reference whose definition is being made
        self._inlined: list[str] = []

    def translate(self, schema: Any, references: set[str], hidden: frozenset[str] = frozenset()) -> Any:
        """Return the schema; what it refers to is added to `references`. Raises `OperationUnusable`.

        `hidden`: properties that the schema which this one is a part of has for the other direction only.
        """
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise OperationUnusable("InvalidSchema", f"There is {type(schema).__name__} where a schema should be.")
        if schema.get("$recursiveRef") == "#" and self._component:
            schema = {"$ref": self._component, **schema}  # the schema that is its own resource
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return self._referring(reference, schema, references, hidden)
        return self._nullable(schema, self._plain(schema, references, hidden))

    def definitions(self, references: Iterable[str]) -> dict[str, Any]:
        """Return the `$defs` for these references, and for theirs in turn. Raises `OperationUnusable`."""
        found, waiting = dict[str, Any](), list(references)
        while waiting:
            reference = waiting.pop()
            name = _definition_name(reference)
            if name in found:
                continue
            if len(found) >= _MOST_DEFINITIONS:
                raise OperationUnusable("SchemaTooLarge", f"Its schema refers to more than {_MOST_DEFINITIONS} others.")
            found[name], further = self._definition(reference)
            waiting.extend(further)
        self._whole |= found.keys()
        return dict(sorted(found.items()))

    def check(self, references: Iterable[str]) -> None:
        """Raise `OperationUnusable` unless these are there, and all that they refer to in turn."""
        self.definitions(each for each in references if _definition_name(each) not in self._whole)

    def resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the schema itself, or the one that it is a reference to. Raises `OperationUnusable`."""
        return self._document.resolved(schema)

    def merged(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an object with the members of all its `allOf` as its own; any other schema as it is. Raises `OperationUnusable`."""
        parts = [self.merged(self.resolved(each)) for each in schema.get("allOf") or () if isinstance(each, dict)]
        parts = [*parts, {name: each for name, each in schema.items() if name != "allOf"}]
        if any(part.get("type", "object") != "object" or _COMBINING & part.keys() for part in parts):
            return schema
        said: dict[str, Any] = {}
        for part in parts:
            properties = {**said.get("properties", {}), **(part.get("properties") or {})}
            required = [*said.get("required", []), *(part.get("required") or [])]
            said = {**said, **part, "properties": properties, "required": required}
        return said

    def members(self, schema: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """Return the properties of an object, with those of all that it is composed of. Raises `OperationUnusable`."""
        parts = [each.get("properties") for each in self._composed(schema)]
        return [member for each in parts if isinstance(each, dict) for member in each.items()]

    def _composed(self, schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        found, waiting = dict[int, Mapping[str, Any]](), [schema]
        while waiting:
            said = self.resolved(waiting.pop())
            if id(said) not in found:
                found[id(said)] = said
                lists = [said[word] for word in _COMPOSING if isinstance(said.get(word), list)]
                waiting += [each for branches in lists for each in branches if isinstance(each, dict)]
                waiting += [said[word] for word in _BESIDE if isinstance(said.get(word), dict)]
        return list(found.values())

    def is_hidden(self, schema: Any) -> bool:
        """Return whether a property is for the other direction only."""
        if not isinstance(schema, dict) or schema.get(self._hidden) is True:
            return isinstance(schema, dict)
        said = self._document.resolved(schema)
        return said.get(self._hidden) is True or any(self.is_hidden(each) for each in said.get("allOf") or ())

    def _definition(self, reference: str) -> tuple[Any, frozenset[str]]:
        if reference not in self._definitions:
            further, before = set[str](), self._component
            self._component = reference
            try:
                translated = self.translate(self._document.at(reference), further)
            finally:
                self._component = before
            self._definitions[reference] = translated, frozenset(further)
        return self._definitions[reference]

    def _referring(
        self, reference: str, schema: Mapping[str, Any], references: set[str], hidden: frozenset[str]
    ) -> dict[str, Any]:
        target = self._document.at(reference)
        if not isinstance(target, dict | bool):
            raise OperationUnusable("InvalidSchema", f"It refers to {reference[:_SHOWN]!r}, which is no schema.")
        if hidden and isinstance(target, dict) and reference not in self._inlined and self._requires(target, hidden):
            self._inlined.append(reference)  # its definition is for those that do not hide what it requires
            try:
                return dict(self.translate(target, references, hidden))
            finally:
                self._inlined.pop()
        references.add(reference)
        said = {"$ref": f"#/$defs/{_definition_name(reference)}"}
        if self._document.is_30:  # whose references have no neighbours that mean something
            return {**said, **{name: schema[name] for name in ("description",) if isinstance(schema.get(name), str)}}
        beside = {name: each for name, each in schema.items() if name != "$ref"}
        return {**self._plain(beside, references, hidden), **said}

    def _plain(self, schema: Mapping[str, Any], references: set[str], hidden: frozenset[str]) -> dict[str, Any]:
        """Return the schema without OpenAPI's additions to JSON Schema, and with its deviations translated."""
        said, words = dict[str, Any](), [_kinds_in(schema)]
        hidden |= {name for name, each in self.members(schema) if self.is_hidden(each)}
        for keyword, value in schema.items():
            is_dropped = keyword in _DROPPED or keyword.startswith("x-") or is_senseless(keyword, value)
            if is_dropped or (keyword == "default" and self._is_input):
                continue
            if keyword == "pattern" and self._is_input and states_of(str(value)) > MOST_STATES:
                words.append(f"The service checks it by the pattern {_shown(value)}.")
                continue
            said[keyword] = self._part(keyword, value, references, hidden)
        self._leave_out(schema, said, hidden)
        _set_bounds(schema, said)
        if "example" in schema and "examples" not in said:
            said["examples"] = [schema["example"]]
        if self._is_input and schema.get("default") is not None:
            words.append(f"Without it the service takes {_shown(schema['default'])}.")
        if said.get("description") or any(words):
            said["description"] = " ".join(filter(None, [said.get("description"), *words]))
        return said

    def _part(self, keyword: str, value: Any, references: set[str], hidden: frozenset[str]) -> Any:
        if keyword in _BESIDE and isinstance(value, dict):
            return self.translate(value, references, hidden)
        if keyword in _COMPOSING and isinstance(value, list):
            return [self.translate(each, references, hidden) for each in value]
        translate: Callable[[Any], Any] = lambda each: self.translate(each, references)  # noqa: E731 - named for its type
        if keyword in _ONE and isinstance(value, dict | bool):
            return translate(value)
        if keyword in _LISTED and isinstance(value, list):
            return [translate(each) for each in value]
        if keyword in _NAMED and isinstance(value, dict):
            return {name: translate(each) for name, each in value.items()}
        # `[\w-.]`, as JavaScript takes it, is `[\w\-.]`.
        is_pattern = keyword == "pattern" and isinstance(value, str)
        return _DASHES.sub(lambda found: found[2] or f"{found[1] or ''}\\-", value) if is_pattern else value

    def _requires(self, schema: Mapping[str, Any], names: frozenset[str]) -> bool:
        """Tell whether a schema, with all that it is composed of, requires one of these properties."""
        parts = self._composed(schema)
        return any(
            not names.isdisjoint(map(str, each["required"])) for each in parts if isinstance(each.get("required"), list)
        )

    def _leave_out(self, schema: Mapping[str, Any], said: dict[str, Any], hidden: frozenset[str]) -> None:
        properties = schema.get("properties")
        own = (
            {name for name, each in properties.items() if self.is_hidden(each)} if isinstance(properties, dict) else ()
        )
        if own:
            said["properties"] = {name: each for name, each in said["properties"].items() if name not in own}
        if isinstance(said.get("required"), list):
            said["required"] = [name for name in dict.fromkeys(map(str, said["required"])) if name not in hidden]
        elif "required" in said:  # a flag at a property, as Swagger 1 had it
            del said["required"]

    def _nullable(self, schema: Mapping[str, Any], said: dict[str, Any]) -> dict[str, Any]:
        """3.0 has no type `null`, but a flag."""
        if not self._document.is_30 or schema.get("nullable") is not True:
            return said
        if isinstance(said.get("enum"), list) and None not in said["enum"]:
            said["enum"] = [*said["enum"], None]
        if isinstance(said.get("type"), str):
            return {**said, "type": [said["type"], "null"]}
        if _COMBINING.isdisjoint(said):
            return said
        words: dict[str, Any] = {name: said.pop(name) for name in ("title", "description") if name in said}
        return {**words, "anyOf": [said, {"type": "null"}]}


def _definition_name(reference: str) -> str:
    """Return the name of a place of the document in `$defs`: as in its components, if that is plain and unique."""
    name = reference.rpartition("/")[2]
    if re.fullmatch(r"#/components/schemas/[A-Za-z0-9_.-]+", reference):
        return name
    return f"{re.sub('[^A-Za-z0-9_.-]+', '_', name)[:60]}-{digest_of(reference)[:8]}"


def _set_bounds(schema: Mapping[str, Any], said: dict[str, Any]) -> None:
    """Translate bounds: in 3.0 `exclusiveMinimum` is a flag at `minimum`, as in JSON Schema's draft 4."""
    for bound in ("Minimum", "Maximum"):
        flag, plain = f"exclusive{bound}", bound.lower()
        if isinstance(schema.get(flag), bool):
            del said[flag]
            if schema[flag] and plain in said:
                said[flag] = said.pop(plain)


def _kinds_in(schema: Mapping[str, Any]) -> str:
    """Return what a discriminator says: which schema is meant by which value of its property."""
    said = schema.get("discriminator")
    if not isinstance(said, dict) or not isinstance(mapping := said.get("mapping"), dict) or not mapping:
        return ""
    kinds = ", ".join(f"{name} is {str(each).rpartition('/')[2]}" for name, each in mapping.items())
    return f"Kinds by {said['propertyName']!r}: {kinds}."[:_MOST_WORDS] if "propertyName" in said else ""


def _shown(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
