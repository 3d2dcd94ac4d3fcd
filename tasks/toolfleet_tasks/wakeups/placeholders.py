"""Fills the places of a job's messages: `{job_id}`, `{result}` and `{result.a.b}`, from what its last call has brought.

A place names fields and items of JSON, and nothing of Python's. All are filled in one go: braces in a value are text.
"""

import json
import re
from typing import Any

from toolfleet_registry.policy.redaction import REDACTED

# One way only to read each text, so that it takes no longer than the text is.
_PLACE = re.compile(r"\{([A-Za-z_]\w*(?:\.[^\s{}.]+)*)\}")
_LONGEST_VALUE = 4_000  # characters
_MOST_CHARACTERS = 16_000  # of all values of one message: a model has to read it
_LONGEST_INDEX = 6  # digits
_MOST_NAMED = 10  # places that are not filled, of which it is told
_LONGEST_NAMED = 100  # characters of one

_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


class _Nothing(Exception):
    """There is no such value."""


def has_places(*texts: str | None) -> bool:
    """Return whether any of the texts has a place that may be filled."""
    return any(text and _PLACE.search(text) for text in texts)


def filled_in(text: str, job_id: str, result: Any, *, has_result: bool, is_hidden: bool) -> tuple[str, tuple[str, ...]]:
    """The text with its values, and the first places for which there is none: these stay as they stand. Never fails.

    A text is filled in as it is, other values as JSON, and too long ones only with their beginning. `is_hidden`: the result
    is sensitive, and shown as such.
    """
    filling = _Filling(job_id, REDACTED if is_hidden else result, has_result=has_result, is_hidden=is_hidden)
    return _PLACE.sub(filling, text), tuple(filling.unknown)[:_MOST_NAMED]


class _Filling:
    """The values of all places, as long as there is room."""

    def __init__(self, job_id: str, result: Any, *, has_result: bool, is_hidden: bool) -> None:
        self._job_id, self._result, self._has_result, self._is_hidden = job_id, result, has_result, is_hidden
        self._left = _MOST_CHARACTERS
        self.unknown = dict[str, None]()

    def __call__(self, place: re.Match[str]) -> str:
        if self._left <= 0:  # nor is anything large written out again and again
            return "…"
        try:
            value = self._value_of(place[1])
        except _Nothing:
            self.unknown[place[1][:_LONGEST_NAMED]] = None
            return place[0]
        shown = _cut(value, min(_LONGEST_VALUE, self._left))
        self._left -= len(shown)
        return shown

    def _value_of(self, named: str) -> str:
        name, *path = named.split(".")
        if name == "job_id" and not path:
            return self._job_id
        if name != "result" or not (self._has_result or self._is_hidden):
            raise _Nothing
        return _written(self._result if self._is_hidden else _found(self._result, path))


def _found(value: Any, path: list[str]) -> Any:
    for step in path:
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and _index(step) < len(value):
            value = value[_index(step)]
        else:
            raise _Nothing
    return value


def _index(step: str) -> int:
    if not (step.isascii() and step.isdigit() and len(step) <= _LONGEST_INDEX):
        raise _Nothing
    return int(step)


def _written(value: Any) -> str:
    """The value as JSON, as far as it may be shown: a result of megabytes would hold the loop."""
    if isinstance(value, str):
        return value
    parts, length = list[str](), 0
    try:
        for part in _JSON.iterencode(value):
            parts.append(part)
            if (length := length + len(part)) > _LONGEST_VALUE:
                break
    except (ValueError, TypeError, RecursionError):
        raise _Nothing from None
    return "".join(parts)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
