"""Holds named secrets of a host, fills them in where they are sent, and hides them in whatever leaves it."""

import base64
import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any
from urllib.parse import quote

_SHORTEST = 8  # characters: what is shorter stands in many texts by chance, and could not be hidden
_KEPT = 4  # values of one name that pass
_PLACE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]{0,99})\}")


class SecretUnknown(Exception):
    """A secret is not there, or cannot be one. The message says which, and no value."""


class Secrets:
    """Values by name. Its repr shows names only. Raises `SecretUnknown` for a value of less than 8 characters."""

    def __init__(self, values: Mapping[str, str]) -> None:
        for name, value in values.items():
            if len(value) < _SHORTEST:
                raise SecretUnknown(f"The secret {name} has less than {_SHORTEST} characters: it could not be hidden.")
        self._values = dict(values)
        self._passing = dict[str, deque[str]]()

    def __repr__(self) -> str:
        return f"Secrets({', '.join(self._values)})"

    def __bool__(self) -> bool:
        return bool(self._values) or bool(self._passing)

    @property
    def names(self) -> list[str]:
        """Which there are."""
        return list(self._values)

    def with_values(self, values: Mapping[str, str]) -> "Secrets":
        """These, and what was made of them, which is hidden as they are. What is too short to be hidden is left out."""
        made = {name: value for name, value in values.items() if len(value) >= _SHORTEST}
        return Secrets({**self._values, **made})

    def hide_also(self, name: str, value: str) -> None:
        """Hide one more value from now on, which is filled in nowhere. Of each name the last few are hidden: what is replaced may still come back."""
        known = self._passing.setdefault(name, deque(maxlen=_KEPT))
        if value not in known and len(value) >= _SHORTEST:
            known.append(value)
            self.__dict__.pop("forms", None)

    def plain(self, names: Iterable[str]) -> dict[str, str]:
        """The values of these, for whoever uses them. Raises `SecretUnknown`."""
        return {name: self._value(name) for name in names}

    def fill(self, text: str) -> str:
        """The text with each `${NAME}` replaced by the secret of this name. Raises `SecretUnknown`."""
        return _PLACE.sub(lambda place: self._value(place[1]), text)

    def hide(self, text: str) -> str:
        """The text with `[secret NAME]` in the place of each value: as it is, as JSON, Python, a URL and base64 have it, and each line of it."""
        for form, name in self.forms:
            if form in text:
                text = text.replace(form, f"[secret {name}]")
        return text

    def hide_json(self, data: bytes) -> bytes:
        """The same of JSON in UTF-8, which stays JSON also where a value is a number there; the same object if no value is in it."""
        hidden = self.hide_bytes(data)
        if hidden is data:
            return data
        try:
            return json.dumps(self._hidden(json.loads(data)), ensure_ascii=False, separators=(",", ":")).encode()
        except (ValueError, RecursionError):  # no JSON: whoever reads it says so
            return hidden

    def hide_bytes(self, data: bytes) -> bytes:
        """The same of UTF-8; the same object if no value is in it."""
        for form, name in self.forms:
            if (bare := form.encode()) in data:
                data = data.replace(bare, f"[secret {name}]".encode())
        return data

    def _value(self, name: str) -> str:
        try:
            return self._values[name]
        except KeyError:
            raise SecretUnknown(f"There is no secret named {name!r} here: name it in `secrets`.") from None

    def _hidden(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self.hide(key): self._hidden(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self._hidden(each) for each in value]
        if isinstance(value, str):
            return self.hide(value)
        written = json.dumps(value)
        return value if (hidden := self.hide(written)) == written else hidden

    @cached_property
    def forms(self) -> tuple[tuple[str, str], ...]:
        """What is hidden, each with its secret's name; the longest first: one value may be a part of another."""
        found = dict[str, str]()
        passing = ((name, value) for name, values in self._passing.items() for value in values)
        for name, value in (*self._values.items(), *passing):
            for text in (value, *(line for line in value.splitlines() if len(line) >= _SHORTEST)):
                for form in _forms_of(text):
                    found.setdefault(form, name)
        return tuple(sorted(found.items(), key=lambda item: (-len(item[0]), item)))


def _forms_of(value: str) -> set[str]:
    quoted = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    escaped = {text.replace("/", "\\/") for text in quoted}
    python = repr(value)[1:-1]
    return {value, quote(value, safe=""), python, python.replace('"', '\\"'), *quoted, *escaped, *_in_base64(value)}


def _in_base64(value: str) -> Iterator[str]:
    """What the value is in the base64 of a text around it, but for the characters that it shares with its neighbours."""
    data = value.encode("utf-8", "replace")
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + data).decode()
        first = -(-before * 8 // 6)
        form = encoded[first : (before + len(data)) * 8 // 6]
        if len(form) >= _SHORTEST:
            yield form
            yield form.replace("+", "-").replace("/", "_")
