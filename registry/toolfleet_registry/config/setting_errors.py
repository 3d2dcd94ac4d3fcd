"""Words what is wrong with a setting, in one sentence that names the place where it was written."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from toolfleet_registry.config import setting_sources

_KINDS = frozenset({"folder", "mcp", "openapi"})  # of a host, which pydantic puts into the place


def sentence_of(error: Any, fields: Mapping[str, FieldInfo], overrides: Mapping[str, Any]) -> str:
    """Return a sentence for one of pydantic's errors in a setting; `overrides` were given as arguments.

    Shows no secret.
    """
    reason = error["msg"].removeprefix("Value error, ")
    if not error["loc"]:
        return f"{reason}."
    name, *inner = (str(part) for part in error["loc"])
    shown = _shown(error["loc"], overrides)
    if error["type"] == "extra_forbidden" and not inner:
        like = setting_sources.likeliest(name, fields)
        return f"{shown}: there is no such setting{'.' if like is None else f'; did you mean {like}?'}"
    if place := ".".join(part for part in inner if part not in _KINDS):
        shown = f"{shown}, at {place}"
    if error["type"] == "extra_forbidden":
        return f"{shown}: there is no such field."
    # Our own words say enough; and a URL, or a table, may hold a password that must not be shown.
    if error["type"] == "value_error" or inner or not fields[name].repr:
        return f"{shown}: {reason}."
    return f"{shown}: {reason}, not {error['input']!r}."


def _shown(path: Sequence[str | int], overrides: Mapping[str, Any]) -> str:
    """Return the name of a wrong setting as it was written, and the line of the mistake in it."""
    name = str(path[0])
    if name not in overrides and setting_sources.origin_of(name, start=Path.cwd()).source == "file":
        return f"{setting_sources.setting_place(path, start=Path.cwd())}: {name}"
    return setting_sources.PREFIX + name.upper()
