"""Writes a request's body: JSON, a form, several parts, text or bytes."""

import mimetypes
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote_plus

from pydantic_core import PydanticCustomError

from toolfleet_modules.hosts.openapi.calls.parameter_values import (
    NOTHING_LEFT,
    ValueRefused,
    json_text,
    query_parts,
    text_of,
)
from toolfleet_modules.hosts.openapi.documents.body_plan import FORM, MULTIPART, BodyPlan, charset_of, is_json
from toolfleet_modules.hosts.openapi.documents.input_fields import InputField
from toolfleet_registry.functions.encoded_bytes import Media, decoded
from toolfleet_registry.system.randomness import uuid4

_NAME_CHARACTERS = str.maketrans({'"': "%22", "\r": "%0D", "\n": "%0A"})


def body_of(plan: BodyPlan, value: Any) -> tuple[str, bytes]:
    """The media type and the bytes; `value` is the whole body, or its properties by name. Raises `ValueRefused`."""
    name = plan.media_type.partition(";")[0].strip().lower()
    if is_json(plan.media_type):
        is_ascii = "charset" in plan.media_type.lower()  # which may be any one that has ASCII in it
        return plan.media_type, json_text(value, is_ascii=is_ascii).encode()
    if name == FORM:
        return plan.media_type, "&".join(_form_parts(plan, _properties(value))).encode()
    if name == MULTIPART:
        return _multipart(plan, _properties(value))
    if name.startswith("text/"):
        return _text(plan.media_type, text_of(value))
    data, found = _bytes(value, "body")
    return (found or "application/octet-stream") if "*" in plan.media_type else plan.media_type, data


def _text(media_type: str, text: str) -> tuple[str, bytes]:
    """Return the media type and the bytes of a text, in the character set that the document names, or else in UTF-8."""
    if (charset := charset_of(media_type)) is None:
        return f"{media_type}; charset=utf-8", text.encode()
    try:
        return media_type, text.encode(charset)
    except (LookupError, UnicodeEncodeError):
        raise ValueRefused(f"The body is sent in {charset}, which does not have all of its characters.") from None


def _properties(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueRefused("The body is a form: an object.")
    return value


def _without_nulls(plan: BodyPlan, properties: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what can be said: no part of a form is null. Raises `ValueRefused` for a required one of which nothing is left."""
    for name, value in properties.items():
        said = [each for each in value if each is not None] if isinstance(value, list) else value
        if said is not None and said != []:
            yield name, said
        elif name in plan.required:
            raise ValueRefused(NOTHING_LEFT.format(name))


def _form_parts(plan: BodyPlan, properties: Mapping[str, Any]) -> list[str]:
    parts = list[str]()
    for name, value in _without_nulls(plan, properties):
        encoding = plan.encodings.get(name, {})
        if {"style", "explode", "allowReserved"} & encoding.keys():
            style = str(encoding.get("style", "form"))
            if style not in {"form", "spaceDelimited", "pipeDelimited", "deepObject"}:
                raise ValueRefused(f"The document gives {name[:80]!r} a style that no form has.")
            field = InputField(name, name, "query", False, {}, style, encoding.get("explode", style == "form") is True)
            parts += query_parts(replace(field, is_reserved=encoding.get("allowReserved") is True), value)
        else:
            values = value if isinstance(value, list) else [value]
            parts += [f"{quote_plus(name)}={quote_plus(text_of(each))}" for each in values]
    return parts


def _multipart(plan: BodyPlan, properties: Mapping[str, Any]) -> tuple[str, bytes]:
    boundary = uuid4().hex
    body = bytearray()
    for name, value in _without_nulls(plan, properties):
        said = plan.encodings.get(name, {}).get("contentType")
        for each in value if isinstance(value, list) else [value]:
            label = f'form-data; name="{name.translate(_NAME_CHARACTERS)}"'
            if name in plan.files:
                data, found = _bytes(each, name)
                media_type = found or "application/octet-stream"
                label += f'; filename="{name.translate(_NAME_CHARACTERS)}{_ending_of(name, said, media_type)}"'
            else:
                data = text_of(each).encode()
                media_type = "application/json" if isinstance(each, dict | list) else "text/plain; charset=utf-8"
            if isinstance(said, str) and "," not in said and "*" not in said and said.isprintable():
                media_type = said
            body += f"--{boundary}\r\nContent-Disposition: {label}\r\nContent-Type: {media_type}\r\n\r\n".encode()
            body += data + b"\r\n"
    body += f"--{boundary}--\r\n".encode()
    return f"{MULTIPART}; boundary={boundary}", bytes(body)


def _ending_of(name: str, said: object, found: str) -> str:
    """Return the ending that a file's name lacks: some services tell a file's type by it."""
    declared = said if isinstance(said, str) and "," not in said and "*" not in said else found
    media_type = declared.partition(";")[0].strip().lower()
    has_none = "." in name or media_type == "application/octet-stream"
    return "" if has_none else mimetypes.guess_extension(media_type) or ""


def _bytes(value: Any, name: str) -> tuple[bytes, str | None]:
    try:
        return decoded(value, Media("*/*"))
    except (ValueError, PydanticCustomError) as exc:
        raise ValueRefused(f"{name} is no base64: {exc}") from None
