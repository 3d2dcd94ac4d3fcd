"""Plans a tool's arguments: which of an operation's parameters, or which part of its body, each one is."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from email.message import Message
from functools import partial
from typing import Any, Literal, TypeVar

from toolfleet_modules.hosts.openapi.document import Operation, OperationUnusable, argument_name
from toolfleet_modules.hosts.openapi.json_schemas import SchemaTranslator

_Made = TypeVar("_Made")

FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"

_PLAIN = frozenset(
    "type properties required title description example examples additionalProperties xml externalDocs".split()
)

_BINARY = frozenset(
    f"application/{each}" for each in ("octet-stream", "pdf", "zip", "gzip", "x-gzip", "x-tar", "x-zip-compressed")
)
_KEPT = frozenset({"title", "description", "minItems", "maxItems"})
_BYTES: Mapping[str, Any] = {"type": "string", "contentEncoding": "base64"}

Place = Literal["path", "query", "header", "cookie", "body"]

_WHOLE_BODY = "body"
"""The argument that is the whole body, where its parts cannot stand beside the parameters."""

_WITHOUT_SLASHES = frozenset({"integer", "number", "boolean", "null", "uuid", "date", "date-time"})  # types and formats
_KEYS = frozenset({"idempotency-key", "idempotency-id", "idempotency-token", "idempotent-key"})
_IGNORED = frozenset({"accept", "content-type"})  # which the request has by itself, as the specification says
_FORBIDDEN = frozenset(
    """accept-encoding connection content-encoding content-length cookie expect host keep-alive te trailer
    transfer-encoding upgrade""".split()
)
_STYLES: Mapping[Place, str] = {"path": "simple", "query": "form", "header": "simple", "cookie": "form"}
_ALLOWED: Mapping[Place, frozenset[str]] = {
    "path": frozenset({"simple", "label", "matrix"}),
    "query": frozenset({"form", "spaceDelimited", "pipeDelimited", "deepObject"}),
    "header": frozenset({"simple"}),
    "cookie": frozenset({"form"}),
}


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


def _body_plan(body: Mapping[str, Any], translator: SchemaTranslator, references: set[str]) -> BodyPlan:
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


def _part_of(
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
    """Return the plan of a plain object: each of its properties is an argument."""
    shown, files, notes = dict[str, Any](), set[str](), list[str]()
    for name, each in found.items():
        encoding = plan.encodings.get(name, {}) if _is_multipart(plan.media_type) else None
        label = f"Its part {name[:80]!r}"
        make = partial(_property_schema, translator, each, encoding)
        made = _part_of(make, translator, references, None if name in plan.required else (label, notes))
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
    """Return a media type as a request says it: without wildcards, and of a form without parameters."""
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


@dataclass(frozen=True, slots=True)
class InputField:
    """One argument: the parameter `name` of a place, or a property of the body. `is_json`: its text is JSON.

    `has_slashes`: a value in the path may have `/`; `slash_line`: the line of `toolfleet.toml` that would allow it.
    """

    argument: str
    name: str
    place: Place
    is_required: bool
    schema: Any
    style: str = "form"
    explode: bool = True
    is_reserved: bool = False
    is_json: bool = False
    has_slashes: bool = False
    slash_line: str = ""


@dataclass(frozen=True, slots=True)
class InputPlan:
    """`schema` is the JSON Schema of all `fields`. `key_header` carries the call's id, for which `key_schema` holds.

    `notes`: sentences about optional parts that are left out.
    """

    fields: Sequence[InputField]
    body: BodyPlan | None
    schema: Mapping[str, Any]
    key_header: str | None = None
    key_schema: Mapping[str, Any] | None = None
    notes: Sequence[str] = ()


def place_of(place: str, name: str) -> tuple[str, str]:
    """Return a name with its place as services compare them: in small letters, and of a header without underscores."""
    return place, name.strip().casefold().replace("_", "-") if place == "header" else name.strip().casefold()


def input_plan(
    operation: Operation,
    translator: SchemaTranslator,
    taken: Collection[tuple[str, str]] = (),
    *,
    names: Sequence[str],
    slashes: Collection[str] = (),
) -> InputPlan:
    """Return the plan of the tool with these full names, the present one first. Raises `OperationUnusable`.

    `taken` has the places that credentials are sent in, as `place_of` gives them; `slashes` are parameters of paths that may
    have `/`, each as `method.parameter`.
    """
    references = set[str]()
    fields, key, notes = list[InputField](), None, list[str]()
    for parameter in operation.parameters:
        place, name = parameter["in"], parameter["name"]
        if place_of(place, name) in taken or (place == "header" and name.lower() in _IGNORED):
            continue
        if place_of(place, name) == ("header", "authorization"):
            notes.append("The header 'Authorization' is not sent: only the host's auth or headers send it.")
        elif place == "header" and _is_key(name):
            key = parameter
        else:
            is_required = place == "path" or parameter.get("required") is True
            make = partial(_parameter_field, parameter, translator)
            found = _part_of(make, translator, references, None if is_required else (repr(name[:80]), notes))
            fields += [] if found is None else [found]
    _check_path(operation, fields)
    body = None
    if operation.body is not None:
        make_body = partial(_body_plan, operation.body, translator)
        is_required = operation.body.get("required") is True
        body = _part_of(make_body, translator, references, None if is_required else ("Its body", notes))
    if operation.ignores_body:
        notes.append("Its body is left out: in OpenAPI 3.0 GET and HEAD have none.")
    if body is not None:
        fields += _body_fields(body)
        notes += body.notes
    named = [_with_slashes(each, names, slashes) for each in _named(fields)]
    schema = _schema_of(named, translator, references)
    said = {} if key is None else key
    key_schema = said.get("schema")
    return InputPlan(named, body, schema, said.get("name"), key_schema if isinstance(key_schema, dict) else {}, notes)


def _parameter_field(parameter: Mapping[str, Any], translator: SchemaTranslator, references: set[str]) -> InputField:
    place: Place = parameter["in"]
    if place == "header" and parameter["name"].lower() in _FORBIDDEN:
        raise OperationUnusable(
            "UnsupportedParameter", f"It takes the header {parameter['name'][:80]!r}, which is the connection's."
        )
    style = parameter.get("style", _STYLES[place])
    if style not in _ALLOWED[place]:
        raise OperationUnusable(
            "UnsupportedParameter", f"{parameter['name'][:80]!r} has the style {str(style)[:40]!r}."
        )
    content = parameter.get("content")
    as_json = False
    schema = parameter.get("schema", {})
    if isinstance(content, dict) and content:
        media = next(filter(is_json, content), next(iter(content)))
        said = content[media]
        schema = said.get("schema", {}) if isinstance(said, dict) else {}
        as_json = is_json(media)
        if not as_json and not media.startswith("text/plain"):
            raise OperationUnusable("UnsupportedParameter", f"{parameter['name'][:80]!r} is written as {media[:80]!r}.")
    translated = translator.translate(schema, references)
    return InputField(
        "",
        parameter["name"],
        place,
        place == "path" or parameter.get("required") is True,
        _described(translated, parameter),
        style,
        parameter.get("explode", style in {"form", "deepObject"}) is True,
        parameter.get("allowReserved") is True,
        as_json,
    )


def _described(schema: Any, parameter: Mapping[str, Any]) -> Any:
    """Return the schema with the parameter's own description, for a model to read."""
    said: dict[str, Any] = {} if schema is True else {"not": {}}
    if isinstance(schema, dict):
        said = dict(schema)
    words = parameter.get("description")
    if isinstance(words, str) and words.strip():
        own = said.get("description")
        said["description"] = f"{words.strip()} {own}" if isinstance(own, str) and own != words else words.strip()
    if "example" in parameter and "examples" not in said:
        said["examples"] = [parameter["example"]]
    if parameter.get("deprecated") is True:
        said["deprecated"] = True
    return said


def _check_path(operation: Operation, fields: Sequence[InputField]) -> None:
    """Check that each placeholder of the path has its parameter."""
    given = {each.name for each in fields if each.place == "path"}
    wanted = {part.partition("}")[0] for part in operation.path.split("{")[1:]}
    if given != wanted:
        odd = min(given ^ wanted)
        raise OperationUnusable("InvalidOperation", f"Its path and its path parameters differ in {odd[:80]!r}.")
    if "{" in operation.path.partition("#")[2]:
        raise OperationUnusable("InvalidOperation", "A path parameter is in its path's fragment, which is never sent.")


def _body_fields(body: BodyPlan) -> list[InputField]:
    if body.properties is None:
        schema = body.schema if isinstance(body.schema, dict) else {}
        return [InputField("", _WHOLE_BODY, "body", body.is_required, schema)]
    return [InputField("", name, "body", name in body.required, schema) for name, schema in body.properties.items()]


def _named(fields: Sequence[InputField]) -> list[InputField]:
    """Return each under its own name; two with one name add their place, such as `id_in_path`."""
    counted = Counter(argument_name(each.name) for each in fields)
    plain = {name for name, count in counted.items() if count == 1}
    named, known = list[InputField](), set[str]()
    for each in fields:
        name = argument_name(each.name)
        if name not in plain:
            name = argument_name(f"{each.name}_in_{each.place}")
            if name in counted or name in known:
                name = argument_name(f"{each.name} in {each.place}")  # which ends in a digest: a blank is no name's
        known.add(name)
        named.append(replace(each, argument=name))
    return named


def _with_slashes(field: InputField, names: Sequence[str], slashes: Collection[str]) -> InputField:
    """Say whether a path's argument may have `/`; where it may not, its description names the line that allows it."""
    module = names[0].partition(".")[0]
    known = [f"{each.partition('.')[2]}.{name}" for each in names for name in (field.argument, field.name)]
    line = f'[hosts.{module}] slashes = ["{known[0]}"]'
    if field.place != "path" or not set(slashes).isdisjoint(known):
        return replace(field, has_slashes=field.place == "path")
    said = field.schema if isinstance(field.schema, dict) else {}
    types = said["type"] if isinstance(said.get("type"), list) else [said.get("type")]
    if _WITHOUT_SLASHES.issuperset(map(str, types)) or "enum" in said or str(said.get("format")) in _WITHOUT_SLASHES:
        return replace(field, slash_line=line)
    words = f"{said.get('description', '')} Without '/': {line} in toolfleet.toml would allow it.".strip()
    return replace(field, slash_line=line, schema={**said, "description": words})


def _schema_of(fields: Sequence[InputField], translator: SchemaTranslator, references: set[str]) -> dict[str, Any]:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {each.argument: each.schema for each in fields},
        "required": [each.argument for each in fields if each.is_required],
        "additionalProperties": False,
    }
    definitions = translator.definitions(references)
    return {**schema, "$defs": definitions} if definitions else schema


def _is_key(name: str) -> bool:
    """Return whether a header is an idempotency key."""
    return name.lower().replace("_", "-").removeprefix("x-") in _KEYS
