"""Plans a tool's arguments: which of an operation's parameters, or which part of its body, each one is."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from toolfleet_modules.hosts.openapi.documents.body_plan import BodyPlan, body_plan, part_of
from toolfleet_modules.hosts.openapi.documents.body_plan import is_json as is_json_type
from toolfleet_modules.hosts.openapi.documents.document import OperationUnusable
from toolfleet_modules.hosts.openapi.documents.json_schemas import SchemaTranslator
from toolfleet_modules.hosts.openapi.documents.operation_names import argument_name
from toolfleet_modules.hosts.openapi.documents.operations import Operation

Place = Literal["path", "query", "header", "cookie", "body"]

WHOLE_BODY = "body"
"""The argument that is the whole body, where its parts cannot stand beside the parameters."""


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
            found = part_of(make, translator, references, None if is_required else (repr(name[:80]), notes))
            fields += [] if found is None else [found]
    _check_path(operation, fields)
    body = None
    if operation.body is not None:
        make_body = partial(body_plan, operation.body, translator)
        is_required = operation.body.get("required") is True
        body = part_of(make_body, translator, references, None if is_required else ("Its body", notes))
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
    is_json = False
    schema = parameter.get("schema", {})
    if isinstance(content, dict) and content:
        media = next(filter(is_json_type, content), next(iter(content)))
        said = content[media]
        schema = said.get("schema", {}) if isinstance(said, dict) else {}
        is_json = is_json_type(media)
        if not is_json and not media.startswith("text/plain"):
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
        is_json,
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
        return [InputField("", WHOLE_BODY, "body", body.is_required, schema)]
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


_WITHOUT_SLASHES = frozenset({"integer", "number", "boolean", "null", "uuid", "date", "date-time"})  # types and formats
_KEYS = frozenset({"idempotency-key", "idempotency-id", "idempotency-token", "idempotent-key"})
_IGNORED = frozenset({"accept", "content-type"})  # which the request has by itself, as the specification says
_FORBIDDEN = frozenset(
    """accept-encoding connection content-encoding content-length cookie expect host keep-alive te trailer
    transfer-encoding upgrade""".split()  # noqa: SIM905 - one text is read more easily than a list
)
_STYLES: Mapping[Place, str] = {"path": "simple", "query": "form", "header": "simple", "cookie": "form"}
_ALLOWED: Mapping[Place, frozenset[str]] = {
    "path": frozenset({"simple", "label", "matrix"}),
    "query": frozenset({"form", "spaceDelimited", "pipeDelimited", "deepObject"}),
    "header": frozenset({"simple"}),
    "cookie": frozenset({"form"}),
}
