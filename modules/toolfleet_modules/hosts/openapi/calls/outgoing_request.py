"""Makes the HTTP request of a call: its address, its headers, and its body as JSON, a form, several parts, text or bytes."""

import mimetypes
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any
from urllib.parse import quote_plus, urlsplit

from pydantic_core import PydanticCustomError

from toolfleet_modules.hosts.openapi.calls.credentials import Credential, with_credentials
from toolfleet_modules.hosts.openapi.calls.parameter_values import (
    NOTHING_LEFT,
    ValueRefused,
    cookie_parts,
    decoded,
    header_text,
    json_text,
    path_text,
    query_parts,
    text_of,
    with_whole_numbers,
)
from toolfleet_modules.hosts.openapi.documents.body_plan import FORM, MULTIPART, BodyPlan, charset_of, is_json
from toolfleet_modules.hosts.openapi.documents.input_fields import InputField, InputPlan, place_of
from toolfleet_registry.functions.files import Media
from toolfleet_registry.functions.files import decoded as decoded_bytes
from toolfleet_registry.system.randomness import uuid4

_DOTS = frozenset({".", ".."})  # segments that would name another path; some servers cut them at ";" first
_NAMESPACE = uuid.UUID("6f1f5c3e-6f0f-5d3a-9f7a-0a7f3b1c2d4e")
_SHORTEST_KEY = 16


@dataclass(frozen=True, slots=True)
class OutgoingRequest:
    """A request that is ready. `url` has its query; `body` is empty where there is none."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes = b""

    def __repr__(self) -> str:
        return f"OutgoingRequest({self.method})"  # the URL may have a key in its query


@dataclass(frozen=True, slots=True)
class RequestForm:
    """Says how an operation's requests are made: `base` and `path` are its address, `plan` its arguments.

    `places` are those of credentials, as `place_of` gives them: no argument may name one.
    """

    method: str
    base: str
    path: str
    plan: InputPlan
    credentials: Sequence[Credential]
    places: Collection[tuple[str, str]] = ()

    def request(self, arguments: Mapping[str, Any], call_id: str | None) -> OutgoingRequest:
        """The request for these arguments, which fit the plan's schema. Raises `ValueRefused`."""
        arguments = with_whole_numbers(arguments)
        query, cookies, properties = list[str](), list[str](), dict[str, Any]()
        headers = {"Accept": "application/json, */*;q=0.8"}
        for field in self.plan.fields:
            if field.argument not in arguments:
                continue
            value = arguments[field.argument]
            if field.place == "body":
                properties[field.name] = value
            elif field.place == "header" and value is not None:
                headers[field.name] = header_text(field, value)
            elif field.place != "path":
                write, parts = (cookie_parts, cookies) if field.place == "cookie" else (query_parts, query)
                written = [] if value is None else write(field, value)  # null: nothing that a text could say
                if field.is_required and not written:
                    raise ValueRefused(NOTHING_LEFT.format(field.argument))
                parts += written
        if self.plan.key_header is not None:
            headers[self.plan.key_header] = key_of(call_id, self.plan.key_schema or {})
        url, body = urlsplit(f"{self.base}{self._path(arguments)}"), self._body(properties, headers)
        query = [*filter(None, url.query.split("&")), *query]  # what the document's path has in its own query
        self._check_names("query", query)
        self._check_names("cookie", cookies)
        with_credentials(self.credentials, headers, query, cookies)
        if cookies:
            headers["Cookie"] = "; ".join(cookies)
        # A fragment tells paths of a document apart, and is never sent.
        target = url._replace(query="&".join(query), fragment="").geturl()
        return OutgoingRequest(self.method.upper(), target, headers, body)

    def _check_names(self, place: str, parts: Iterable[str]) -> None:
        """Raise `ValueRefused` for a part `name=value` whose name, or whose array's name, is a credential's."""
        for part in parts:
            name = decoded(part.partition("=")[0].replace("+", " "))
            if {place_of(place, name), place_of(place, name.partition("[")[0])} & set(self.places):
                raise ValueRefused(f"An argument names {name[:80]!r}, which a credential is sent in.")

    def _path(self, arguments: Mapping[str, Any]) -> str:
        path = self.path
        for field in self.plan.fields:
            if field.place == "path":
                path = path.replace(f"{{{field.name}}}", _segment(field, arguments))
        if _DOTS & {each.partition(";")[0].strip() for each in decoded(path).split("/")}:
            raise ValueRefused("An argument would make another path of the request's: a segment would be '.' or '..'.")
        return path

    def _body(self, properties: Mapping[str, Any], headers: dict[str, str]) -> bytes:
        plan = self.plan.body
        if plan is None or not (properties or plan.is_required):
            return b""
        value = properties if plan.properties is not None else next(iter(properties.values()), None)
        headers["Content-Type"], body = _body_of(plan, value)
        if plan.media_type in {FORM, MULTIPART}:  # some services read a form's fields and the query's as one
            declared = {quote_plus(name) for name in plan.properties or ()}
            names = [quote_plus(name) for name in value] if isinstance(value, dict) else []
            written = body.decode().split("&") if plan.media_type == FORM else names
            self._check_names("query", [each for each in written if each.partition("=")[0] not in declared])
        return body


def key_of(call_id: str | None, schema: Mapping[str, Any]) -> str:
    """The call's id as an idempotency key: as a UUID, or shortened, where the schema wants that. A call without one gets any."""
    text = call_id or uuid4().hex
    if schema.get("format") == "uuid":
        return str(uuid.uuid5(_NAMESPACE, text))
    longest = schema.get("maxLength")
    if isinstance(longest, int) and len(text) > longest >= _SHORTEST_KEY:
        return sha256(text.encode()).hexdigest()[:longest]
    return text


def _segment(field: InputField, arguments: Mapping[str, Any]) -> str:
    value = arguments.get(field.argument)
    if value is None:
        raise ValueRefused(f"{field.argument} is missing, and is a part of the path.")
    return path_text(field, value)


_NAME_CHARACTERS = str.maketrans({'"': "%22", "\r": "%0D", "\n": "%0A"})


def _body_of(plan: BodyPlan, value: Any) -> tuple[str, bytes]:
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
        return decoded_bytes(value, Media("*/*"))
    except (ValueError, PydanticCustomError) as exc:
        raise ValueRefused(f"{name} is no base64: {exc}") from None
