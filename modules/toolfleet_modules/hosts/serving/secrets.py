"""Holds named secrets of a host, fills them in where they are sent, and hides them in whatever leaves it."""

import json
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from urllib.parse import quote

_SHORTEST = 8  # characters: what is shorter stands in many texts by chance, and could not be hidden
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

    def __repr__(self) -> str:
        return f"Secrets({', '.join(self._values)})"

    def __bool__(self) -> bool:
        return bool(self._values)

    def plain(self, names: Iterable[str]) -> dict[str, str]:
        """The values of these, for whoever uses them. Raises `SecretUnknown`."""
        return {name: self._value(name) for name in names}

    def fill(self, text: str) -> str:
        """The text with each `${NAME}` replaced by the secret of this name. Raises `SecretUnknown`."""
        return _PLACE.sub(lambda place: self._value(place[1]), text)

    def hide(self, text: str) -> str:
        """The text with `[secret NAME]` in the place of each value: as it is, as JSON has it, and as a URL does."""
        for form, name in self._forms:
            if form in text:
                text = text.replace(form, f"[secret {name}]")
        return text

    def hide_bytes(self, data: bytes) -> bytes:
        """The same of UTF-8; the same object if no value is in it."""
        for form, name in self._forms:
            if (bare := form.encode()) in data:
                data = data.replace(bare, f"[secret {name}]".encode())
        return data

    def _value(self, name: str) -> str:
        try:
            return self._values[name]
        except KeyError:
            raise SecretUnknown(f"There is no secret named {name!r} here: name it in `secrets`.") from None

    @cached_property
    def _forms(self) -> tuple[tuple[str, str], ...]:
        """The longest first: one value may be a part of another."""
        found = dict[str, str]()
        for name, value in self._values.items():
            quoted = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
            escaped = {text.replace("/", "\\/") for text in quoted}
            for form in {value, quote(value, safe=""), *quoted, *escaped}:
                found.setdefault(form, name)
        return tuple(sorted(found.items(), key=lambda item: (-len(item[0]), item)))
