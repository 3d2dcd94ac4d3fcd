"""Schemas of OpenAPI documents as JSON Schema 2020-12."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from support.hosts.bird_service import document
from toolfleet_modules.hosts.openapi.document import OpenApiDocument, OperationUnusable
from toolfleet_modules.hosts.openapi.json_schemas import Direction, SchemaTranslator


def of(name: str) -> dict[str, str]:
    """A reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


SCHEMAS: dict[str, Any] = {
    "Owl": {
        "type": "object",
        "required": ["id", "name", "pass"],
        "properties": {
            "id": {"type": "integer", "readOnly": True},
            "name": {"type": "string"},
            "pass": {"type": "string", "writeOnly": True},
            "mate": of("Owl"),
        },
    }
}


def translated(
    schema: Any, *, version: str = "3.0.3", direction: Direction = "input", schemas: dict[str, Any] | None = None
) -> Any:
    body = document({}, version=version, components={"schemas": SCHEMAS if schemas is None else schemas})
    translator, references = SchemaTranslator(OpenApiDocument.of(body), direction), set[str]()
    found = translator.translate(schema, references)
    definitions = translator.definitions(references)
    return {**found, "$defs": definitions} if definitions else found


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": "string", "nullable": True, "enum": ["a"]}, {"type": ["string", "null"], "enum": ["a", None]}),
        (
            {"nullable": True, "allOf": [{"type": "string"}]},
            {"anyOf": [{"allOf": [{"type": "string"}]}, {"type": "null"}]},
        ),
        ({"nullable": True}, {}),
        ({"minimum": 1, "exclusiveMinimum": True}, {"exclusiveMinimum": 1}),
        ({"maximum": 1, "exclusiveMaximum": False}, {"maximum": 1}),
        ({"exclusiveMaximum": True}, {}),
        ({"example": 1, "x-more": 2, "xml": {}, "externalDocs": {}, "discriminator": {}}, {"examples": [1]}),
        ({"properties": {"example": {"example": 1}}}, {"properties": {"example": {"examples": [1]}}}),
        ({"enum": [{"nullable": True}]}, {"enum": [{"nullable": True}]}),
        ({"type": "string", "required": True}, {"type": "string"}),
        ({"items": {"nullable": True, "type": "integer"}}, {"items": {"type": ["integer", "null"]}}),
    ],
)
def test_a_schema_of_3_0_becomes_one_of_2020_12(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    """Flags become what they mean, and what only OpenAPI has is left out."""
    assert translated(schema) == expected


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": ["string", "null"], "nullable": True}, {"type": ["string", "null"]}),
        ({"exclusiveMinimum": 1}, {"exclusiveMinimum": 1}),
        ({"const": None, "examples": [1], "example": 2}, {"const": None, "examples": [1]}),
        ({"prefixItems": [{"example": 1}]}, {"prefixItems": [{"examples": [1]}]}),
        (True, True),
    ],
)
def test_a_schema_of_3_1_is_one_already(schema: Any, expected: Any) -> None:
    """But for what only OpenAPI has."""
    assert translated(schema, version="3.1.0") == expected


@pytest.mark.parametrize(
    ("direction", "names"), [("input", {"name", "pass", "mate"}), ("output", {"id", "name", "mate"})]
)
def test_each_direction_has_its_own_properties(direction: Direction, names: set[str]) -> None:
    """What is only read is no input, what is only written no output; a circle refers to itself."""
    schema = translated(of("Owl"), direction=direction)

    assert set(schema["$defs"]["Owl"]["properties"]) == names
    assert set(schema["$defs"]["Owl"]["required"]) == names - {"mate"}
    assert schema["$defs"]["Owl"]["properties"]["mate"] == {"$ref": "#/$defs/Owl"}
    Draft202012Validator.check_schema(schema)


def test_references_have_neighbours_in_3_1_only() -> None:
    """In 3.0 they mean nothing, but for a description."""
    schema = {**of("Owl"), "description": "An owl.", "maxProperties": 3}

    assert "maxProperties" not in translated(schema)
    assert translated(schema, version="3.1.0")["maxProperties"] == 3
    assert translated(schema)["description"] == "An owl."


def test_names_that_look_the_same_stay_apart() -> None:
    """Places of any kind can be referred to."""
    schemas = {"a b": {"type": "string"}, "a/b": {"type": "integer"}, "a": {"b": {"type": "null"}}}
    references = ["#/components/schemas/a%20b", "#/components/schemas/a~1b", "#/components/schemas/a/b"]
    schema = translated({"anyOf": [{"$ref": each} for each in references]}, schemas=schemas)

    assert sorted(each["type"] for each in schema["$defs"].values()) == ["integer", "null", "string"]
    assert Draft202012Validator(schema).is_valid("hoot")


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"$ref": "owls.json"}, "ExternalReference"),
        ({"$ref": "http://owls.test/x"}, "ExternalReference"),
        (of("None"), "ReferenceUnknown"),
        ({"$ref": "#Owl"}, "ReferenceUnknown"),
        ({"$ref": "#/openapi"}, "InvalidSchema"),
        ({"properties": {"a": 3}}, "InvalidSchema"),
        (3, "InvalidSchema"),
    ],
)
def test_what_is_not_in_the_document_is_refused(schema: Any, kind: str) -> None:
    """Nothing is fetched."""
    with pytest.raises(OperationUnusable) as caught:
        translated(schema, version="3.1.0")
    assert caught.value.kind == kind


ID: dict[str, Any] = {"type": "object", "properties": {"id": {"type": "integer", "readOnly": True}, "name": {}}}
NEEDS: dict[str, Any] = {"required": ["id", "name"]}
REQUIRED: dict[str, tuple[Any, dict[str, Any]]] = {
    "in another branch": ({"allOf": [of("Id"), NEEDS]}, {}),
    "in a branch before": ({"allOf": [NEEDS, of("Id")]}, {}),
    "next to it": ({"allOf": [of("Id")], **NEEDS}, {}),
    "in a reference": ({"allOf": [of("Id"), of("Needs")]}, {}),
    "in a reference to a reference": (
        {"allOf": [ID, of("More")]},
        {"More": {"allOf": [of("Needs"), {"properties": {"size": {}}}]}},
    ),
    "in a schema that declares it, too": ({"allOf": [ID, {"properties": {"id": {"type": "integer"}}, **NEEDS}]}, {}),
    "deeper": ({"allOf": [{"allOf": [{"allOf": [ID]}]}, {"allOf": [NEEDS]}]}, {}),
    "in one of several": ({"allOf": [ID], "anyOf": [NEEDS, {"required": ["name"]}]}, {}),
    "under a condition": ({"allOf": [ID], "if": {"required": ["name"]}, "then": NEEDS}, {}),
    "a property by reference": (
        {"properties": {"id": of("Number"), "name": {}}, **NEEDS},
        {"Number": {"type": "integer", "readOnly": True}},
    ),
    "a property of all of several": (
        {"properties": {"id": {"allOf": [{"type": "integer"}, {"readOnly": True}]}, "name": {}}, **NEEDS},
        {},
    ),
    "a property with a word next to its reference": (
        {"properties": {"id": {**of("Plain"), "readOnly": True}, "name": {}}, **NEEDS},
        {"Plain": {"type": "integer"}},
    ),
    "in a circle": (of("Tree"), {"Tree": {"allOf": [ID, NEEDS, {"properties": {"child": of("Tree")}}]}}),
}


@pytest.mark.parametrize("version", ["3.0.3", "3.1.0"])
@pytest.mark.parametrize(("schema", "more"), REQUIRED.values(), ids=REQUIRED.keys())
def test_what_is_only_read_is_required_nowhere(schema: Any, more: dict[str, Any], version: str) -> None:
    """A caller cannot know it, wherever it is required; anything else stays required, and answers have it."""
    schemas = {"Id": ID, "Needs": NEEDS, **more}
    wanted = Draft202012Validator(translated(schema, version=version, schemas=schemas))
    answered = Draft202012Validator(translated(schema, version=version, schemas=schemas, direction="output"))

    assert wanted.is_valid({"name": "n"})
    assert answered.is_valid({"name": "n", "id": 1})
    if "anyOf" not in schema:
        assert not answered.is_valid({"name": "n"})
        assert not wanted.is_valid({}) or "if" in schema


def test_a_definition_that_others_use_as_it_is_stays() -> None:
    """What one schema hides is not hidden of its parts elsewhere."""
    both = {"properties": {"a": {"allOf": [ID, of("Needs")]}, "b": of("Needs")}}
    schema = Draft202012Validator(translated(both, schemas={"Needs": NEEDS}))

    assert schema.is_valid({"a": {"name": "n"}})
    assert not schema.is_valid({"b": {"name": "n"}})


RECURSIVE: dict[str, Any] = {
    "type": "object",
    "properties": {"key": {"type": "string"}, "filters": {"type": "array", "items": {"$recursiveRef": "#"}}},
    "$recursiveAnchor": True,
}


def test_a_recursive_reference_is_its_own_component() -> None:
    """At any depth of it; of a schema that is no component anything is taken there."""
    schemas = {"Filter": RECURSIVE, "All": {"properties": {"all": of("Filter")}}}
    found = translated(of("All"), version="3.1.0", schemas=schemas)
    schema = Draft202012Validator(found)

    assert schema.is_valid({"all": {"filters": [{"filters": [{"key": "a"}]}]}})
    assert not schema.is_valid({"all": {"filters": [{"filters": [{"key": 1}]}]}})
    assert Draft202012Validator(translated(RECURSIVE, version="3.1.0")).is_valid({"filters": [3]})


@pytest.mark.parametrize(
    "words",
    [
        {"$dynamicRef": "#node"},
        {"$recursiveRef": "other.json"},
        {"$id": "https://owls.test/owl", "$anchor": "owl", "$dynamicAnchor": "node", "$recursiveAnchor": True},
        {"description": None, "title": 3, "examples": {"a": 1}, "deprecated": "no", "format": None},
        {"minimum": None, "enum": None, "items": None, "properties": None, "required": None, "type": None},
    ],
)
def test_words_that_decide_nothing_here_are_left_out(words: dict[str, Any]) -> None:
    """Anything is taken in the place of what they may mean, and what stands next to them counts."""
    schema = translated({"allOf": [words], "maxLength": 3, **words}, version="3.1.0")

    Draft202012Validator.check_schema(schema)
    assert Draft202012Validator(schema).is_valid("owl")
    assert not Draft202012Validator(schema).is_valid("owls")


PARTS = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["string", "integer", "object", "array"]),
            "nullable": st.booleans(),
            "example": st.integers(),
            "enum": st.lists(st.integers(), min_size=1, max_size=2, unique=True),
            "minimum": st.integers(),
            "exclusiveMinimum": st.booleans(),
            "readOnly": st.booleans(),
            "default": st.integers(),
        },
    ),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
            "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
            "items": inner,
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "additionalProperties": st.one_of(st.booleans(), inner),
        },
    ),
    max_leaves=8,
)


@given(PARTS)
def test_every_schema_of_3_0_is_one_of_2020_12_afterwards(schema: dict[str, Any]) -> None:
    """As the draft's own schema says, in both directions."""
    for direction in ("input", "output"):
        Draft202012Validator.check_schema(translated(schema, direction=direction))


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            {"propertyName": "kind", "mapping": {"barn": "#/components/schemas/BarnOwl", "tawny": "TawnyOwl"}},
            "An owl. Kinds by 'kind': barn is BarnOwl, tawny is TawnyOwl.",
        ),
        ({"propertyName": "kind"}, "An owl."),
        ({"mapping": {"barn": "BarnOwl"}}, "An owl."),
        ("kind", "An owl."),
    ],
)
def test_a_discriminator_is_said_in_words(said: Any, words: str) -> None:
    """JSON Schema has no word for it, and a model needs the values that its property can have."""
    found = translated({"type": "object", "description": "An owl.", "discriminator": said})

    assert found == {"type": "object", "description": words}
