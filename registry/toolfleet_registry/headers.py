"""Adds header fields to requests to modules: checks which may be set, and keeps their values unseen."""

import json
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from pydantic import SecretStr

from toolfleet_registry.contracts.names import is_module_name

_MOST_CHARACTERS = 8192  # of a value: usual servers take no more of a whole head
_FIELD_NAME = r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}"  # what RFC 9110 lets a field's name be
_VALUE = r"[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?"
_OURS = frozenset({"accept", "accept-encoding", "content-type", "idempotency-key", "user-agent"})
_PROTOCOL = frozenset(
    {
        "connection",
        "content-encoding",
        "content-length",
        "expect",
        "host",
        "http2-settings",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_SHAPE = 'must be JSON such as {"deployer": {"Authorization": "Bearer …"}}: module name -> header -> value'

SETTING = "TOOLFLEET_MODULE_HEADERS"
HIDDEN = "[hidden]"

_SHORTEST_SECRET = 8  # characters: what is shorter stands in many texts by chance
_REFUSALS = frozenset({401, 403})


def check_headers(value: Any) -> dict[str, dict[str, SecretStr]]:
    """Return the fields of each module.

    Raises `ValueError`, in one sentence, for an invalid or reserved header field.
    """
    if not isinstance(value, Mapping):
        raise ValueError(_SHAPE)
    return {_module(name): _fields(name, fields) for name, fields in value.items()}


def _module(name: Any) -> str:
    if not isinstance(name, str) or not is_module_name(name):
        raise ValueError("a module's name may have letters, digits, '_' and '-' only")
    return name


def _fields(module: str, fields: Any) -> dict[str, SecretStr]:
    if not isinstance(fields, Mapping):
        raise ValueError(f"{_SHAPE}; what module {module!r} has is no such object")
    found, seen = dict[str, SecretStr](), set[str]()
    for name, value in fields.items():
        if not isinstance(name, str) or not re.fullmatch(
            _FIELD_NAME, name
        ):  # and is not shown: it may be what should be its value
            raise ValueError(f"module {module!r} has a header whose name no header can have")
        place = f"header {name!r} of module {module!r}"
        if fault := _name_fault(name.lower()) or _value_fault(value):
            raise ValueError(f"{place} {fault}")
        if name.lower() in seen:
            raise ValueError(f"{place} is there twice: upper and lower case are the same")
        seen.add(name.lower())
        found[name] = SecretStr(_plain(value))
    return found


def _name_fault(name: str) -> str:
    if name.startswith("toolfleet-") or name in _OURS:
        return "is not to be set: the fleet sends it itself"
    return "is not to be set: it is the protocol's own" if name in _PROTOCOL else ""


def _value_fault(value: Any) -> str:
    text = _plain(value)
    if not isinstance(text, str):
        return "needs a text as its value"
    if not text:
        return "has an empty value"
    if re.search("[\r\n\0]", text):
        return "has a line break or a null byte in its value"
    if len(text) > _MOST_CHARACTERS:
        return f"has a value of more than {_MOST_CHARACTERS} characters"
    return (
        ""
        if re.fullmatch(_VALUE, text)
        else "has a value with other than visible ASCII characters, or a blank at an end"
    )


def _plain(value: Any) -> Any:
    return value.get_secret_value() if isinstance(value, SecretStr) else value


class ModuleHeaders:
    """The fields of one module. Its repr shows their names; it is false without any."""

    def __init__(self, fields: Mapping[str, SecretStr]) -> None:
        self._fields = dict(fields)

    def __repr__(self) -> str:
        return f"ModuleHeaders({', '.join(self._fields)})"

    def __bool__(self) -> bool:
        return bool(self._fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModuleHeaders) and self._fields == other._fields

    def __hash__(self) -> int:
        return hash(tuple(self._fields))

    def has(self, name: str) -> bool:
        """Return whether there is a field of this name, ignoring case."""
        return name.lower() in {field.lower() for field in self._fields}

    def plain(self) -> dict[str, str]:
        """Return the fields as they are sent; for nothing else."""
        return {name: value.get_secret_value() for name, value in self._fields.items()}

    def hide(self, text: bytes) -> bytes:
        """Return the text without these values, for a module may quote its request; the same object if none is in it."""
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, HIDDEN.encode())
        return text

    def hide_text(self, text: str) -> str:
        """Return the same of a text that is read already."""
        return self.hide(text.encode(errors="surrogatepass")).decode(errors="surrogatepass") if self._fields else text

    def advice(self, status: int) -> str:
        """Return what an operator can do about this status of a module; empty if it is not about credentials."""
        if status not in _REFUSALS:
            return ""
        if self:
            return f"it does not accept what {SETTING} has for it: correct that where the workers run, and restart them"
        return f"if it wants a token, give the workers a header for it in {SETTING}"

    @cached_property
    def _secrets(self) -> tuple[bytes, ...]:
        """All values, and what follows a scheme such as `Bearer`; as they are and as in JSON, the longest first."""
        values = {value.get_secret_value() for value in self._fields.values()}
        parts = values | {value.partition(" ")[2] for value in values}
        quoted = {json.dumps(part)[1:-1] for part in parts}
        every = parts | quoted | {text.replace("/", "\\/") for text in quoted}
        return tuple(sorted((one.encode() for one in every if len(one) >= _SHORTEST_SECRET), key=len, reverse=True))


NO_HEADERS = ModuleHeaders({})
"""Of a module for which none are set."""


def headers_by_module(setting: Mapping[str, Mapping[str, SecretStr]]) -> dict[str, ModuleHeaders]:
    """Return the setting's headers by module."""
    return {module: ModuleHeaders(fields) for module, fields in setting.items() if fields}
