"""Says which header fields may be set for modules. The reasons never repeat a value: it may be a token."""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr

from toolfleet_registry.contracts.names import is_module_name

_MOST_CHARACTERS = 8192  # of a value: usual servers take no more of a whole head
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")  # what RFC 9110 lets a field's name be
_VALUE = re.compile(r"[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?")
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


def check_headers(value: Any) -> dict[str, dict[str, SecretStr]]:
    """The fields of each module. Raises `ValueError`, in one sentence, for what is no header field or not to be set."""
    if not isinstance(value, Mapping):
        raise ValueError(_SHAPE)  # noqa: TRY004 - as pydantic wants it
    return {_module(name): _fields(name, fields) for name, fields in value.items()}


def _module(name: Any) -> str:
    if not isinstance(name, str) or not is_module_name(name):
        raise ValueError("a module's name may have letters, digits, '_' and '-' only")
    return name


def _fields(module: str, fields: Any) -> dict[str, SecretStr]:
    if not isinstance(fields, Mapping):
        raise ValueError(f"{_SHAPE}; what module {module!r} has is no such object")  # noqa: TRY004 - as above
    found, seen = dict[str, SecretStr](), set[str]()
    for name, value in fields.items():
        if not isinstance(name, str) or not _TOKEN.fullmatch(
            name
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
        "" if _VALUE.fullmatch(text) else "has a value with other than visible ASCII characters, or a blank at an end"
    )


def _plain(value: Any) -> Any:
    return value.get_secret_value() if isinstance(value, SecretStr) else value
