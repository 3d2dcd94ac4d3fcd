"""Makes the HTTP request of a call: its address, its headers, its credentials, and its body as JSON, a form, several parts, text or bytes."""

import json
import mimetypes
import uuid
from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Literal
from urllib.parse import quote, quote_plus, unquote, urlsplit

from pydantic_core import PydanticCustomError

from toolfleet_modules.hosts.openapi.document import OpenApiDocument, OperationUnusable
from toolfleet_modules.hosts.openapi.input_fields import (
    FORM,
    MULTIPART,
    BodyPlan,
    InputField,
    InputPlan,
    charset_of,
    is_json,
    place_of,
)
from toolfleet_modules.hosts.secrets import Secrets, SecretUnknown
from toolfleet_registry.functions.files import Media
from toolfleet_registry.functions.files import decoded as decoded_bytes
from toolfleet_registry.system.randomness import uuid4

_MOST_DIGITS = 1e21  # from there on a number is written with an exponent
_MOST_DECODED = 16  # times: text that is encoded more often is refused unread
_IN_QUERY = ":/?@!$'()*,;"  # of the reserved ones, those that mean nothing in a query

_NOTHING_LEFT = "{} is required, and an empty value would leave it out of the request."
"""Refuses a required value of which nothing would be sent; filled in with the argument's name."""

_DELIMITERS = {"form": ",", "spaceDelimited": "%20", "pipeDelimited": "%7C"}

_DOTS = frozenset({".", ".."})  # segments that would name another path; some servers cut them at ";" first
_NAMESPACE = uuid.UUID("6f1f5c3e-6f0f-5d3a-9f7a-0a7f3b1c2d4e")
_SHORTEST_KEY = 16

_NAME_CHARACTERS = str.maketrans({'"': "%22", "\r": "%0D", "\n": "%0A"})


@dataclass(frozen=True, slots=True)
class Credential:
    """The credential for one scheme: a header, a part of the query, or a cookie."""

    place: Literal["header", "query", "cookie"]
    name: str
    value: str

    def __repr__(self) -> str:
        return f"Credential({self.place} {self.name})"


class Credentials:
    """The credentials for the schemes of one document. `auth`: scheme -> text with `${NAME}` for secrets.

    `hidden` has the secrets, and the values made of them. `faults`: scheme -> why it cannot be used. `places`: where
    keys of the document are sent, also those that it has no secret for: a service may accept any of them.
    """

    def __init__(
        self, document: OpenApiDocument, auth: Mapping[str, str], secrets: Secrets, headers: Mapping[str, str]
    ) -> None:
        self.faults: dict[str, str] = {}
        self._found: dict[str, Credential] = {}
        sent = dict[str, str]()
        for scheme, text in auth.items():
            try:
                credential = _credential(document, scheme, secrets.fill(text))
            except (OperationUnusable, SecretUnknown) as exc:
                self.faults[scheme] = str(exc)
                continue
            self._found[scheme] = credential
            sent[f"of {scheme}"] = credential.value.removeprefix("Basic ").removeprefix("Bearer ")
        self._fixed = [Credential("header", name, secrets.fill(text)) for name, text in headers.items()]
        self.hidden = secrets.with_values(sent)
        schemes = [each for each in document.security_schemes.values() if isinstance(each, dict)]
        keys = [(str(each.get("in")), str(each.get("name"))) for each in schemes if each.get("type") == "apiKey"]
        sent_in = [(each.place, each.name) for each in (*self._found.values(), *self._fixed)]
        self.places = frozenset(place_of(*each) for each in (*keys, *sent_in))

    def of(self, security: Sequence[Mapping[str, Any]]) -> Sequence[Credential]:
        """Return the credentials to send: for the first alternative that can be met, and the fixed headers.

        Raises `OperationUnusable`.
        """
        found = self._of_first(security)
        own = {place_of(each.place, each.name) for each in found}
        return [*found, *(each for each in self._fixed if place_of(each.place, each.name) not in own)]

    def _of_first(self, security: Sequence[Mapping[str, Any]]) -> Sequence[Credential]:
        """Alternatives that want nothing come last."""
        if not security:
            return ()
        for schemes in sorted(security, key=lambda each: not each):
            if all(scheme in self._found for scheme in schemes):
                return [self._found[scheme] for scheme in schemes]
        wanted = " or ".join(" and ".join(schemes) for schemes in security)[:200]
        why = next((f" {self.faults[each]}" for schemes in security for each in schemes if each in self.faults), "")
        raise OperationUnusable("CredentialMissing", f"It needs {wanted}: name its secret under `auth`.{why}")


def _credential(document: OpenApiDocument, scheme: str, value: str) -> Credential:
    """Make a credential. Raises `OperationUnusable` for a missing scheme, or one for which a secret is not enough."""
    node = document.security_schemes.get(scheme)
    if node is None:
        known = ", ".join(document.security_schemes) or "none"
        raise OperationUnusable(
            "SchemeUnknown", f"The document has no security scheme {scheme!r}; it has {known[:200]}."
        )
    if not value.isprintable() or not value.strip():
        raise OperationUnusable(
            "SchemeUnknown", f"What is to be sent for {scheme!r} is empty, or has control characters."
        )
    found = document.resolved(node)
    kind, name, place = found.get("type"), found.get("name"), found.get("in")
    if kind == "apiKey" and isinstance(name, str) and name.isprintable() and place in {"header", "query", "cookie"}:
        return Credential(place, name, value)
    http = str(found.get("scheme", "")).lower() if kind == "http" else ""
    if http == "basic":
        return Credential("header", "Authorization", f"Basic {b64encode(value.encode()).decode()}")
    if http == "bearer" or kind in {"oauth2", "openIdConnect"}:
        return Credential("header", "Authorization", f"Bearer {value}")
    raise OperationUnusable("SchemeUnknown", f"The scheme {scheme!r} is {kind} {http}: a secret is not enough for it.")


def _with_credentials(
    credentials: Sequence[Credential], headers: dict[str, str], query: list[str], cookies: list[str]
) -> None:
    """Put them where they belong: they count more than what stands there."""
    for each in credentials:
        if each.place == "header":
            headers[each.name] = each.value
        elif each.place == "query":
            query.append(f"{quote(each.name, safe='')}={quote(each.value, safe='')}")
        else:
            cookies.append(f"{quote(each.name, safe='')}={quote(each.value, safe='')}")


class ValueRefused(Exception):
    """A value cannot be written where it is to stand. The message, a sentence, says why."""


def path_text(field: InputField, value: Any) -> str:
    """Return what stands in the path: for `/owls/{id}` one segment or a part of it.

    Servers and proxies decode a path before they route it, some more than once, so it is judged by what it decodes to.
    Raises `ValueRefused` for an empty text, for a backslash, and for `/` where the operator does not allow it.
    """
    text = _in_style(field, value, _quoted)
    if not text:
        raise ValueRefused(f"{field.argument} is empty, and is a part of the path.")
    plain = decoded(text)
    if "\\" in plain:
        raise ValueRefused(f"{field.argument} has '\\', and is a part of the path.")
    if "/" in plain and not field.has_slashes:
        raise ValueRefused(
            f"{field.argument} has '/', which could lead to another operation. The operator allows it by {field.slash_line}."
        )
    return text


def decoded(text: str) -> str:
    """Return a text percent-decoded until nothing changes. Raises `ValueRefused` if that takes more than 16 times."""
    for _ in range(_MOST_DECODED):
        if (plain := unquote(text)) == text:
            return text
        text = plain
    raise ValueRefused("An argument is percent-encoded too many times.")


def query_parts(field: InputField, value: Any) -> list[str]:
    """`name=value` for the query, quoted; of a value that is exploded there are several."""
    name, value = _quoted(field.name), without_nulls(field, value)
    safe = _IN_QUERY if field.is_reserved else ""
    if field.style == "deepObject" and not field.is_json:
        return _deep(name, value, safe)
    if isinstance(value, dict) and not field.is_json:
        return _object_parts(field, name, value, safe)
    if isinstance(value, list) and not field.is_json:
        texts = [quote(text_of(each), safe=safe) for each in value]
        if field.explode or not texts:
            return [f"{name}={each}" for each in texts]
        return [f"{name}={_DELIMITERS[field.style].join(texts)}"]
    return [f"{name}={quote(_whole(field, value), safe=safe)}"]


def header_text(field: InputField, value: Any) -> str:
    """Return a header's value, as it stands. Raises `ValueRefused` for what no header can have."""
    text = _in_style(field, value, str)
    if not text.isprintable():
        raise ValueRefused(f"{field.argument} has characters that a header cannot have.")
    return text.strip()


def cookie_parts(field: InputField, value: Any) -> list[str]:
    """`name=value` for the header `Cookie`, quoted."""
    return query_parts(replace(field, is_reserved=False), value)  # which is for queries only


def without_nulls(field: InputField, value: Any) -> Any:
    """Return the value without members and items that are null, which no text can say; JSON as it is."""
    if field.is_json:
        return value
    if isinstance(value, dict):
        return {name: each for name, each in value.items() if each is not None}
    return [each for each in value if each is not None] if isinstance(value, list) else value


def _with_whole_numbers(value: Any) -> Any:
    """Return JSON in which `5.0` is `5`: models write either for an integer, and services take only one."""
    if isinstance(value, dict):
        return {name: _with_whole_numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_whole_numbers(each) for each in value]
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < _MOST_DIGITS
    return int(value) if is_whole else value


def text_of(value: Any) -> str:
    """Return one value as a text: JSON's own words, and JSON of nested values."""
    return value if isinstance(value, str) else json_text(value)


def json_text(value: Any, *, is_ascii: bool = False) -> str:
    """JSON without blanks; `is_ascii`: in ASCII only."""
    return json.dumps(value, ensure_ascii=is_ascii, separators=(",", ":"))


def _whole(field: InputField, value: Any) -> str:
    return json_text(value) if field.is_json else text_of(value)


def _in_style(field: InputField, value: Any, write: Callable[[str], str]) -> str:
    """Return a value in one of the styles of paths, of which `simple` is that of headers; `write` writes each part."""
    name, value, texts = write(field.name), without_nulls(field, value), list[str]()
    if isinstance(value, dict) and not field.is_json:
        equals = "=" if field.explode else ","
        texts = [f"{write(key)}{equals}{write(text_of(each))}" for key, each in value.items()]
    elif isinstance(value, list) and not field.is_json:
        label = f"{name}=" if field.style == "matrix" and field.explode else ""
        texts = [f"{label}{write(text_of(each))}" for each in value]
    else:
        written = write(_whole(field, value))
        named = f"{name}={written}" if written else name
        return {"simple": written, "label": f".{written}", "matrix": f";{named}"}[field.style]
    if field.style == "matrix":
        return "".join(f";{each}" for each in texts) if field.explode else f";{name}={','.join(texts)}"
    return f".{('.' if field.explode else ',').join(texts)}" if field.style == "label" else ",".join(texts)


def _object_parts(field: InputField, name: str, value: Mapping[str, Any], safe: str) -> list[str]:
    pairs = [(_quoted(key), quote(text_of(each), safe=safe)) for key, each in value.items()]
    if field.explode and field.style == "form":
        return [f"{key}={each}" for key, each in pairs]
    delimiter = _DELIMITERS[field.style]
    return [f"{name}={delimiter.join(part for pair in pairs for part in pair)}"] if pairs else []


def _deep(name: str, value: Any, safe: str) -> list[str]:
    """Return the parts of a deep object. The specification leaves lists and deeper values open; most services read `a[0][b]=c`."""
    if isinstance(value, dict | list):
        members = value.items() if isinstance(value, dict) else enumerate(each for each in value if each is not None)
        deeper = [(f"{name}%5B{_quoted(str(key))}%5D", each) for key, each in members if each is not None]
        return [part for key, each in deeper for part in _deep(key, each, safe)]
    return [f"{name}={quote(text_of(value), safe=safe)}"]


def _quoted(text: str) -> str:
    return quote(text, safe="")


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
        """Return the request for these arguments, which fit the plan's schema. Raises `ValueRefused`."""
        arguments = _with_whole_numbers(arguments)
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
                    raise ValueRefused(_NOTHING_LEFT.format(field.argument))
                parts += written
        if self.plan.key_header is not None:
            headers[self.plan.key_header] = key_of(call_id, self.plan.key_schema or {})
        url, body = urlsplit(f"{self.base}{self._path(arguments)}"), self._body(properties, headers)
        query = [*filter(None, url.query.split("&")), *query]  # what the document's path has in its own query
        self._check_names("query", query)
        self._check_names("cookie", cookies)
        _with_credentials(self.credentials, headers, query, cookies)
        if cookies:
            headers["Cookie"] = "; ".join(cookies)
        # A fragment tells paths of a document apart, and is never sent.
        target = url._replace(query="&".join(query), fragment="").geturl()
        return OutgoingRequest(self.method.upper(), target, headers, body)

    def _check_names(self, place: str, parts: Iterable[str]) -> None:
        """Raise `ValueRefused` for a part `name=value` that has a credential's name, or is in an array of such a name."""
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
    """Return the call's id as an idempotency key, as a UUID or shortened if the schema wants that. A call without an id gets a new one."""
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


def _body_of(plan: BodyPlan, value: Any) -> tuple[str, bytes]:
    """Return the media type and the bytes; `value` is the whole body, or its properties by name. Raises `ValueRefused`."""
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
            raise ValueRefused(_NOTHING_LEFT.format(name))


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
