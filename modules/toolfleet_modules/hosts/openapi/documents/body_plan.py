"""Plans an operation's body: its media type, and whether its properties can be arguments of their own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from email.message import Message
from functools import partial
from typing import Any, TypeVar

from toolfleet_modules.hosts.openapi.documents.document import OperationUnusable
from toolfleet_modules.hosts.openapi.documents.json_schemas import SchemaTranslator

_Made = TypeVar("_Made")

FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"

_PLAIN = frozenset(
    "type properties required title description example examples additionalProperties xml externalDocs".split()  # noqa: SIM905 - one text is read more easily
)


@dataclass(frozen=True, slots=True)
class BodyPlan:
    """A body of `media_type`. `properties` are arguments of their own; `None`: the whole body is one, of `schema`.

    `files`: of the properties, those that are bytes. `encodings`: what the document says of how each is written.
    `notes`: sentences about parts, or what belongs to them, that are left out.
    """

    media_type: str
    is_required: bool
    schema: Any
    properties: Mapping[str, Any] | None
    required: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()
    encodings: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()


def body_plan(body: Mapping[str, Any], translator: SchemaTranslator, references: set[str]) -> BodyPlan:
    """Return the plan. Raises `OperationUnusable` for a body that is of no kind that is written."""
    content = body.get("content")
    is_required = body.get("required") is True
    found = _chosen(content if isinstance(content, dict) else {})
    if found is None:
        kinds = ", ".join(content)[:120] if isinstance(content, dict) and content else "of no media type"
        raise OperationUnusable("UnsupportedBody", f"Its body is {kinds}: JSON, forms, text and bytes are written.")
    media_type, said = found
    schema, encodings = said.get("schema", {}), said.get("encoding")
    if _kind(media_type) == "bytes":
        return BodyPlan(media_type, is_required, dict(_BYTES), None)
    resolved = translator.resolved(schema) if isinstance(schema, dict) else {}
    if _kind(media_type) == "form" and "allOf" in resolved:
        resolved = translator.merged(resolved)
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
        translated = translator.translate(schema, references)
        members = translator.members(resolved)
        files = frozenset(name for name, each in members if _is_multipart(media_type) and _is_file(translator, each))
        if files and isinstance(translated, dict):
            words = f"{translated.get('description', '')} Files are base64: {', '.join(sorted(files))}.".strip()
            translated = {"allOf": [translated], "description": words}
        return BodyPlan(media_type, is_required, translated, None, files=files, encodings=_of(encodings))
    plan = BodyPlan(media_type, is_required, None, None, names, encodings=_of(encodings))
    return _with_properties(plan, resolved["properties"], translator, references)


def is_json(media_type: str) -> bool:
    """Return whether a media type's bodies are JSON."""
    name = media_type.partition(";")[0].strip().lower()
    return name in {"application/json", "text/json", "text/x-json", "application/x-json"} or name.endswith("+json")


def charset_of(media_type: str) -> str | None:
    """Return the character set that a media type names."""
    message = Message()
    message["content-type"] = media_type
    return message.get_content_charset()


def part_of(
    make: Callable[[set[str]], _Made],
    translator: SchemaTranslator,
    references: set[str],
    optional: tuple[str, list[str]] | None,
) -> _Made | None:
    """Make a part of the plan; for an `optional` one that cannot be sent, note under its name why it is left out."""
    own = set[str]()
    try:
        made = make(own)
        if optional is not None:
            translator.check(own)
    except OperationUnusable as exc:
        if optional is None:
            raise
        optional[1].append(f"{optional[0]} is left out: {exc}")
        return None
    references |= own
    return made


def _with_properties(
    plan: BodyPlan, found: Mapping[str, Any], translator: SchemaTranslator, references: set[str]
) -> BodyPlan:
    """The plan of a plain object: each of its properties is an argument."""
    shown, files, notes = dict[str, Any](), set[str](), list[str]()
    for name, each in found.items():
        encoding = plan.encodings.get(name, {}) if _is_multipart(plan.media_type) else None
        label = f"Its part {name[:80]!r}"
        make = partial(_property_schema, translator, each, encoding)
        made = part_of(make, translator, references, None if name in plan.required else (label, notes))
        if made is None or made[0] is None:
            continue
        shown[name] = made[0]
        files |= {name} if made[1] else set()
        if encoding and _part_headers(translator, encoding):
            notes.append(f"{label} is sent without header fields of its own.")
    return replace(plan, properties=shown, required=plan.required & shown.keys(), files=frozenset(files), notes=notes)


def _property_schema(
    translator: SchemaTranslator, schema: Any, encoding: Mapping[str, Any] | None, references: set[str]
) -> tuple[Any, bool]:
    """Return the argument's schema, `None` for one that is no argument, and whether it is a file.

    `encoding` is that of a part of several. Raises `OperationUnusable`, also for an encoding that is not supported.
    """
    if translator.is_hidden(schema):
        return None, False
    if encoding is None:
        return translator.translate(schema, references), False
    if any(each.get("required") is True for each in _part_headers(translator, encoding)):
        raise OperationUnusable("UnsupportedBody", "A part of its body needs header fields of its own.")
    types = str(encoding.get("contentType", "*"))
    is_object = _plain_of(translator, schema).get("type") == "object"
    if is_object and not any(is_json(each) or "*" in each for each in types.split(",")):
        raise OperationUnusable("UnsupportedBody", f"An object of its body is {types[:80]!r}: JSON is written.")
    if _is_file(translator, schema, encoding.get("contentType")):
        return _file_schema(translator, schema), True
    return translator.translate(schema, references), False


def _part_headers(translator: SchemaTranslator, encoding: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return what the document says of header fields of a part, but for its type, which stands in `contentType`."""
    headers = encoding.get("headers")
    found = headers.items() if isinstance(headers, dict) else ()
    return [translator.resolved(each) for name, each in found if name.lower() != "content-type"]


def _chosen(content: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
    for kind in ("json", "form", "text", "bytes"):
        for media_type, said in content.items():
            if _kind(media_type) == kind and isinstance(said, dict):
                return _written(kind, media_type), said
    return None


def _written(kind: str, media_type: str) -> str:
    """A media type as a request says it: without wildcards, and of a form without parameters."""
    if "*" in media_type:
        return "application/json" if kind == "json" else media_type
    return media_type.partition(";")[0].strip().lower() if kind == "form" else media_type


def _kind(media_type: str) -> str | None:
    name = media_type.partition(";")[0].strip().lower()
    if is_json(media_type) or name in {"*/*", "application/*"}:
        return "json"
    if name in {FORM, MULTIPART}:
        return "form"
    if name.startswith("text/") and "*" not in name:
        return "text"
    is_binary = name in _BINARY or name.startswith(("image/", "audio/", "video/", "font/"))
    return "bytes" if is_binary or name.endswith("+zip") else None


def _is_multipart(media_type: str) -> bool:
    return media_type == MULTIPART


def _is_file(translator: SchemaTranslator, schema: Any, media_type: object = None) -> bool:
    """Tell whether a part is a file, or a list of files. `media_type` is the part's, which says it where the schema is empty."""
    said = _plain_of(translator, schema)
    if (items := _items_of(said)) is not None:
        return _is_file(translator, items, media_type)
    if "format" in said or "contentEncoding" in said or "type" in said:
        is_text = said.get("type", "string") in ("string", ["string", "null"], ["null", "string"])
        is_bytes = said.get("format") == "binary" or ("contentMediaType" in said and "contentEncoding" not in said)
        return said.get("type") == "file" or (is_text and is_bytes)
    return "contentMediaType" in said or (not said and isinstance(media_type, str) and _kind(media_type) == "bytes")


def _file_schema(translator: SchemaTranslator, schema: Any) -> dict[str, Any]:
    said = _plain_of(translator, schema)
    kept = {name: each for name, each in said.items() if name in _KEPT}
    if (items := _items_of(said)) is not None:
        return {**kept, "type": "array", "items": _file_schema(translator, items)}
    nullable = {"type": ["string", "null"]} if _takes_null(translator, schema) else {}
    return {**_BYTES, **nullable, **{name: each for name, each in kept.items() if name == "description"}}


def _plain_of(translator: SchemaTranslator, schema: Any) -> Mapping[str, Any]:
    """Return what a schema says, or the only branch of it that takes more than null."""
    said = translator.resolved(schema) if isinstance(schema, dict) else {}
    for keyword in ("anyOf", "oneOf", "allOf"):
        branches = [each for each in said.get(keyword) or () if not _is_null(each)]
        if len(branches) == 1:
            words = {name: each for name, each in said.items() if name in _KEPT}
            return {**_plain_of(translator, branches[0]), **words}
    return said


def _items_of(said: Mapping[str, Any]) -> Any:
    is_list = said.get("type") in ("array", ["array", "null"], ["null", "array"])
    return said.get("items", {}) if is_list else None


def _takes_null(translator: SchemaTranslator, schema: Any) -> bool:
    said = translator.resolved(schema) if isinstance(schema, dict) else {}
    branches = [*(said.get("anyOf") or ()), *(said.get("oneOf") or ())]
    return said.get("nullable") is True or isinstance(said.get("type"), list) or any(map(_is_null, branches))


def _is_null(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "null"


def _names(value: Any) -> frozenset[str]:
    return frozenset(each for each in value if isinstance(each, str)) if isinstance(value, list) else frozenset()


def _of(value: Any) -> Mapping[str, Any]:
    return {name: each for name, each in value.items() if isinstance(each, dict)} if isinstance(value, dict) else {}


_BINARY = frozenset(
    f"application/{each}" for each in ("octet-stream", "pdf", "zip", "gzip", "x-gzip", "x-tar", "x-zip-compressed")
)
_KEPT = frozenset({"title", "description", "minItems", "maxItems"})
_BYTES: Mapping[str, Any] = {"type": "string", "contentEncoding": "base64"}
