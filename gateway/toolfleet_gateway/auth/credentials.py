"""Reads what a request proves itself by: exactly one key or token, and only out of its headers."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import parse_qsl

from toolfleet_gateway.auth.refusals import AuthRefused
from toolfleet_registry.access.key_text import BEGIN

LONGEST_TOKEN = 16 * 1024
"""Characters: more than any issuer's, and little enough to be looked at before anybody is known."""

_BEARER = re.compile(r"bearer +([A-Za-z0-9._~+/-]+=*)", re.IGNORECASE)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9!#$%&'*.^_`|~+-]*")
_NAMES = frozenset({"access_token", "api_key", "api-key", "apikey", "x-api-key", "authorization", "bearer"})
_TOKEN = re.compile(r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
_MOST_FIELDS = 1000


@dataclass(frozen=True, slots=True)
class SentCredential:
    """A request's credential: the text of an API key, or a token."""

    kind: Literal["key", "token"]
    text: str = field(repr=False)


def read_credential(headers: Iterable[tuple[bytes, bytes]], query: bytes = b"") -> SentCredential | None:
    """The credential in the headers, as ASGI has them; `None` if there is none.

    Raises `AuthRefused`: for several, for one that cannot be read, and for one in the query, where logs and histories keep it.
    """
    _refuse_secrets_in(query)
    found = [(name.lower(), value) for name, value in headers if name.lower() in {b"authorization", b"x-api-key"}]
    if len(found) > 1:
        raise AuthRefused("repeated-credentials", "Send one Authorization header, or one X-API-Key, and nothing else.")
    if not found:
        return None
    (name, value) = found[0]
    text = value.decode("latin-1").strip()
    if len(text) > LONGEST_TOKEN:
        raise AuthRefused("invalid-token", f"The credential has more than {LONGEST_TOKEN} characters.")
    return _read_key(text) if name == b"x-api-key" else _read_authorization(text)


def _read_key(text: str) -> SentCredential:
    if not text or not text.isascii() or not text.isprintable() or "," in text or " " in text:
        raise AuthRefused("malformed-credentials", "X-API-Key must be one API key.")
    return SentCredential("key", text)


def _read_authorization(text: str) -> SentCredential | None:
    match = _BEARER.fullmatch(text)
    if match is not None:
        return SentCredential("key" if match[1].startswith(BEGIN) else "token", match[1])
    scheme = _SCHEME.match(text)
    if scheme is None or scheme[0].lower() == "bearer":
        raise AuthRefused("malformed-credentials", "Authorization must be: Bearer, a space, and one key or token.")
    return None  # another scheme, which is answered with those that there are


def _refuse_secrets_in(query: bytes) -> None:
    if not query:
        return
    try:
        fields = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise AuthRefused("credentials-in-query", f"The query has more than {_MOST_FIELDS} fields.") from None
    for name, value in fields:
        if name.lower() in _NAMES or value.startswith(BEGIN) or _TOKEN.search(value):
            raise AuthRefused(
                "credentials-in-query",
                "A key or token must be in a header: what stands in a URL is logged. Revoke it, as it may have been.",
            )
