"""Writes arguments as OpenAPI's styles have them: in paths, queries, headers and cookies."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote, unquote

from toolfleet_modules.hosts.openapi.documents.input_fields import InputField

_MOST_DIGITS = 1e21  # from there on a number is written with an exponent
_MOST_DECODED = 16  # times: text that is encoded more often is refused unread
_IN_QUERY = ":/?@!$'()*,;"  # of the reserved ones, those that mean nothing in a query


NOTHING_LEFT = "{} is required, and an empty value would leave it out of the request."
"""Refuses a required value of which nothing would be sent; filled in with the argument's name."""


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
    """A header's value, as it stands. Raises `ValueRefused` for what no header can have."""
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


def with_whole_numbers(value: Any) -> Any:
    """Return JSON in which `5.0` is `5`: models write either for an integer, and services take only one."""
    if isinstance(value, dict):
        return {name: with_whole_numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [with_whole_numbers(each) for each in value]
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
    """The specification leaves open how lists and deeper values look: `a[0][b]=c` is what most services read."""
    if isinstance(value, dict | list):
        members = value.items() if isinstance(value, dict) else enumerate(each for each in value if each is not None)
        deeper = [(f"{name}%5B{_quoted(str(key))}%5D", each) for key, each in members if each is not None]
        return [part for key, each in deeper for part in _deep(key, each, safe)]
    return [f"{name}={quote(text_of(value), safe=safe)}"]


def _quoted(text: str) -> str:
    return quote(text, safe="")


_DELIMITERS = {"form": ",", "spaceDelimited": "%20", "pipeDelimited": "%7C"}
