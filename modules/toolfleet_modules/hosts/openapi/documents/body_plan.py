"""Plans an operation's body: its media type, and whether its properties can be arguments of their own."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from toolfleet_modules.hosts.openapi.documents.document import OperationUnusable
from toolfleet_modules.hosts.openapi.documents.json_schemas import SchemaTranslator

FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"

_PLAIN = frozenset(
    "type properties required title description example examples additionalProperties xml externalDocs".split()  # noqa: SIM905 - one text is read more easily
)


@dataclass(frozen=True, slots=True)
class BodyPlan:
    """A body of `media_type`. `properties` are arguments of their own; `None`: the whole body is one, of `schema`.

    `files`: of the properties, those that are bytes. `encodings`: what the document says of how each is written.
    """

    media_type: str
    is_required: bool
    schema: Any
    properties: Mapping[str, Any] | None
    required: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()
    encodings: Mapping[str, Any] = field(default_factory=dict)


def body_plan(body: Mapping[str, Any], translator: SchemaTranslator, references: set[str]) -> BodyPlan | None:
    """The plan; `None` for a body that need not be there, and is of no kind that is written.

    Raises `OperationUnusable` for one that must be there.
    """
    content = body.get("content")
    is_required = body.get("required") is True
    found = _chosen(content if isinstance(content, dict) else {})
    if found is None:
        if not is_required:
            return None
        kinds = ", ".join(content)[:120] if isinstance(content, dict) else "no media type"
        raise OperationUnusable("UnsupportedBody", f"Its body is {kinds}: JSON, forms, text and bytes are written.")
    media_type, said = found
    schema, encodings = said.get("schema", {}), said.get("encoding")
    if _kind(media_type) == "bytes":
        return BodyPlan(media_type, is_required, dict(_BYTES), None)
    resolved = translator.resolved(schema) if isinstance(schema, dict) else {}
    names = _names(resolved.get("required"))
    is_plain = (
        _kind(media_type) != "text"
        and resolved.keys() <= {*_PLAIN, *(name for name in resolved if name.startswith("x-"))}
        and isinstance(resolved.get("properties"), dict)
        and resolved.get("type", "object") == "object"
        and resolved.get("additionalProperties", False) is False
        and (is_required or not names)
    )
    if not is_plain:
        if _kind(media_type) == "form" and resolved.get("type", "object") != "object":
            raise OperationUnusable("UnsupportedBody", "Its body is a form, and no object.")
        return BodyPlan(
            media_type, is_required, translator.translate(schema, references), None, encodings=_of(encodings)
        )
    plan = BodyPlan(media_type, is_required, None, None, names, encodings=_of(encodings))
    return _with_properties(plan, resolved["properties"], translator, references)


def is_json(media_type: str) -> bool:
    """Whether a media type's bodies are JSON."""
    name = media_type.partition(";")[0].strip().lower()
    return name == "application/json" or name.endswith("+json")


def _with_properties(
    plan: BodyPlan, found: Mapping[str, Any], translator: SchemaTranslator, references: set[str]
) -> BodyPlan:
    """The plan of a plain object: each of its properties is an argument."""
    properties = {name: each for name, each in found.items() if not translator.is_hidden(each)}
    is_multipart = plan.media_type == MULTIPART
    files = frozenset(name for name, each in properties.items() if is_multipart and _is_file(translator, each))
    translated = {
        name: _file_schema(each) if name in files else translator.translate(each, references)
        for name, each in properties.items()
    }
    return replace(plan, properties=translated, required=plan.required & properties.keys(), files=files)


def _chosen(content: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
    for kind in ("json", "form", "text", "bytes"):
        for media_type, said in content.items():
            if _kind(media_type) == kind and isinstance(said, dict):
                return _written(kind, media_type), said
    return None


def _written(kind: str, media_type: str) -> str:
    """A media type as a request says it: without wildcards, and of a form without parameters."""
    if "*" in media_type:
        return "application/json" if kind == "json" else "application/octet-stream"
    return media_type.partition(";")[0].strip().lower() if kind == "form" else media_type


def _kind(media_type: str) -> str | None:
    name = media_type.partition(";")[0].strip().lower()
    if is_json(media_type) or name in {"*/*", "application/*"}:
        return "json"
    if name in {FORM, MULTIPART}:
        return "form"
    if name.startswith("text/") and "*" not in name:
        return "text"
    return "bytes" if name in {"application/octet-stream", "application/pdf"} or name.startswith("image/") else None


def _is_file(translator: SchemaTranslator, schema: Any) -> bool:
    said = translator.resolved(schema) if isinstance(schema, dict) else {}
    if said.get("format") in {"binary", "byte"}:
        return bool(said["format"] == "binary")
    return "contentMediaType" in said and "contentEncoding" not in said


def _file_schema(schema: Any) -> dict[str, Any]:
    words = schema.get("description") if isinstance(schema, dict) else None
    return {**_BYTES, "description": words} if isinstance(words, str) else dict(_BYTES)


def _names(value: Any) -> frozenset[str]:
    return frozenset(each for each in value if isinstance(each, str)) if isinstance(value, list) else frozenset()


def _of(value: Any) -> Mapping[str, Any]:
    return {name: each for name, each in value.items() if isinstance(each, dict)} if isinstance(value, dict) else {}


_BYTES: Mapping[str, Any] = {"type": "string", "contentEncoding": "base64"}
