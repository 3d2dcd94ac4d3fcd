"""Makes a form of a tool's JSON Schema, and arguments of its input.

A value of a simple type has a field of its own; any other is typed as JSON. The schema's own rules are checked where
calls are.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from toolfleet_gateway.http.problems import invalid_request
from toolfleet_registry.system.http_bodies import loads_strict

PREFIX: Final = "argument."
"""Before the names of arguments, in those of fields."""

MOST_FIELDS: Final = 60
"""A tool with more arguments is called with JSON."""

WHOLE: Final = "arguments"
"""The field for all arguments as JSON."""

Kind = Literal["text", "lines", "integer", "number", "boolean", "choice", "json"]

_SIMPLE: Mapping[str, Kind] = {"string": "text", "integer": "integer", "number": "number", "boolean": "boolean"}
_LONG = 200  # characters that a text may have and still be typed into one line


@dataclass(frozen=True, slots=True)
class SchemaField:
    """A field for one argument. `choices` are the texts of a closed set, as JSON."""

    name: str
    kind: Kind
    is_required: bool
    description: str = ""
    usual: str = ""
    choices: tuple[str, ...] = ()
    is_sensitive: bool = False


def fields_of_schema(schema: Mapping[str, Any]) -> list[SchemaField] | None:
    """The fields of a schema's properties; `None` where only JSON will do."""
    properties = schema.get("properties")
    if not isinstance(properties, dict) or len(properties) > MOST_FIELDS:
        return None
    required = schema.get("required")
    wanted = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set[str]()
    return [_field(str(name), about, is_required=name in wanted) for name, about in properties.items()]


def arguments_of(fields: list[SchemaField] | None, form: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of a form. Empty optional ones are left out. Raises `Problem`."""
    if fields is None:
        return _whole(form.get(WHOLE, ""))
    arguments = dict[str, Any]()
    for field in fields:
        text = form.get(PREFIX + field.name, "")
        if text == "" and not (field.is_required and field.kind in {"text", "lines"}):
            continue
        arguments[field.name] = _value(field, text)
    return arguments


def typed(arguments: Mapping[str, Any], fields: list[SchemaField] | None) -> dict[str, str]:
    """Return the form's field values for these arguments."""
    if fields is None:
        return {WHOLE: json.dumps(arguments, indent=2, ensure_ascii=False)}
    return {PREFIX + each.name: _text(each, arguments[each.name]) for each in fields if each.name in arguments}


def _field(name: str, about: Any, *, is_required: bool) -> SchemaField:
    known: Mapping[str, Any] = about if isinstance(about, dict) else {}
    closed = known.get("enum")
    choices = tuple(json.dumps(each, ensure_ascii=False) for each in closed) if isinstance(closed, list) else ()
    kind = "choice" if choices else _SIMPLE.get(str(known.get("type")), "json")
    if kind == "text" and not _is_short(known.get("maxLength")):
        kind = "lines" if "maxLength" in known else "text"
    usual = known.get("default")
    found = SchemaField(
        name,
        kind,
        is_required,
        description=str(known.get("description", "")),
        choices=choices,
        is_sensitive=known.get("sensitive") is True or known.get("x-sensitive") is True,
    )
    return found if usual is None else _with_usual(found, _text(found, usual))


def _with_usual(field: SchemaField, usual: str) -> SchemaField:
    return SchemaField(
        field.name, field.kind, field.is_required, field.description, usual, field.choices, field.is_sensitive
    )


def _is_short(most: Any) -> bool:
    return isinstance(most, int) and most <= _LONG


def _text(field: SchemaField, value: Any) -> str:
    if field.kind in {"text", "lines"} and isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _value(field: SchemaField, text: str) -> Any:
    match field.kind:
        case "text":
            return text
        case "lines":
            return text.replace("\r\n", "\n")
        case "choice" if text not in field.choices:
            raise invalid_request(f"The argument {field.name[:80]!r} has no such choice.")
        case _:
            try:
                return loads_strict(text.strip().encode("utf-8", "replace"))
            except ValueError:
                article = {"integer": "a whole number", "number": "a number", "boolean": "true or false"}
                what = article.get(field.kind, "JSON")
                raise invalid_request(f"The argument {field.name[:80]!r} must be {what}.") from None


def _whole(text: str) -> dict[str, Any]:
    try:
        value = loads_strict((text.strip() or "{}").encode("utf-8", "replace"))
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise invalid_request("The arguments must be a JSON object.")
    return value
