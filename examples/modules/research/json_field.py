"""Finds one field in a page of JSON, for who waits until it has some value."""

import json
from typing import Any, NoReturn

from modules.research.fetch import Page
from toolfleet.sdk import ToolError

_MOST_CHARACTERS = 10_000  # of the value, as JSON
_LONGEST_INDEX = 6  # digits


def field_of(page: Page, path: str) -> Any:
    """The value at `a.b.0`; `None` if it is not there, or the page is no JSON. Raises `ToolError` for one that is too large."""
    try:
        value = json.loads(page.body, parse_constant=_refuse)
        for step in path.split("."):
            value = _below(value, step)
        size = len(json.dumps(value))
    except (ValueError, RecursionError):
        return None
    if size > _MOST_CHARACTERS:
        raise ToolError(f"What is at {path!r} has more than {_MOST_CHARACTERS:,} characters.", effect_state="none")
    return value


def _below(value: Any, step: str) -> Any:
    if isinstance(value, dict):
        return value.get(step)
    is_index = step.isascii() and step.isdigit() and len(step) <= _LONGEST_INDEX
    return value[int(step)] if isinstance(value, list) and is_index and int(step) < len(value) else None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
