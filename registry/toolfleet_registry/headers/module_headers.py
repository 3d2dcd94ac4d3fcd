"""Holds the header fields that go with every request to one module, and keeps their values out of what is shown."""

import json
from collections.abc import Mapping
from functools import cached_property
from http import HTTPStatus

from pydantic import SecretStr

SETTING = "TOOLFLEET_MODULE_HEADERS"
HIDDEN = "[hidden]"

_SHORTEST_SECRET = 8  # characters: what is shorter stands in many texts by chance
_REFUSALS = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})


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
        """Whether there is a field of this name, in upper or lower case."""
        return name.lower() in {field.lower() for field in self._fields}

    def plain(self) -> dict[str, str]:
        """The fields as they are sent; for nothing else."""
        return {name: value.get_secret_value() for name, value in self._fields.items()}

    def hide(self, text: bytes) -> bytes:
        """The text without these values, for a module may quote its request; the same object if none is in it."""
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, HIDDEN.encode())
        return text

    def hide_text(self, text: str) -> str:
        """The same of a text that is read already."""
        return self.hide(text.encode(errors="surrogatepass")).decode(errors="surrogatepass") if self._fields else text

    def advice(self, status: int) -> str:
        """What an operator can do about a module that answers so; empty if that has nothing to do with credentials."""
        if status not in _REFUSALS:
            return ""
        if self:
            return f"it does not accept what {SETTING} has for it: correct that where the workers run, and restart them"
        return f"if it wants a token, give the workers a header for it in {SETTING}"

    @cached_property
    def _secrets(self) -> tuple[bytes, ...]:
        """Each value, and what follows a scheme such as `Bearer`; as they are and as JSON has them, the longest first."""
        values = {value.get_secret_value() for value in self._fields.values()}
        parts = values | {value.partition(" ")[2] for value in values}
        quoted = {json.dumps(part)[1:-1] for part in parts}
        every = parts | quoted | {text.replace("/", "\\/") for text in quoted}
        return tuple(sorted((one.encode() for one in every if len(one) >= _SHORTEST_SECRET), key=len, reverse=True))


NO_HEADERS = ModuleHeaders({})
"""Of a module for which none are set."""


def headers_by_module(setting: Mapping[str, Mapping[str, SecretStr]]) -> dict[str, ModuleHeaders]:
    """What the setting says, by module."""
    return {module: ModuleHeaders(fields) for module, fields in setting.items() if fields}
