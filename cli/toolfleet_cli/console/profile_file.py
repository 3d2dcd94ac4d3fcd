"""Reads an agent's profile out of a file, TOML or JSON, and says on which line it is wrong."""

import json
import tomllib
from pathlib import Path
from typing import Any

import typer
from pydantic import ValidationError

from toolfleet_registry.config.agents.agent_profile import AgentProfile
from toolfleet_registry.config.toml.lines import line_of
from toolfleet_registry.errors import SettingsError

_TABLE = "agents"


def read_profile_file(path: Path, name: str) -> AgentProfile:
    """The profile that the file is, or that it has of `name` in its table `agents`. Raises `BadParameter`, or `SettingsError` for a wrong one."""
    try:
        text = path.read_text(encoding="utf-8")
        document = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else exc
        raise typer.BadParameter(f"{path}: {reason}.", param_hint="--file") from exc
    found, where = _profile_in(document, name)
    try:
        return AgentProfile.model_validate(found)
    except ValidationError as exc:
        error = exc.errors(include_url=False)[0]
        said = ".".join(str(part) for part in error["loc"])
        reason = "there is no such field" if error["type"] == "extra_forbidden" else error["msg"]
        place = _place(path, text, (*where, *error["loc"]))
        raise SettingsError(f"{place}{said and f' at {said}'}: {reason.removeprefix('Value error, ')}.") from exc


def _profile_in(document: Any, name: str) -> tuple[Any, tuple[str, ...]]:
    """The profile, and where in the document it stands."""
    table = document.get(_TABLE) if isinstance(document, dict) else None
    if not isinstance(table, dict):
        return document, ()
    if name not in table:
        there = ", ".join(map(str, table)) or "none"
        raise typer.BadParameter(f"it has no agent {name!r}; there are: {there}.", param_hint="--file")
    return table[name], (_TABLE, name)


def _place(path: Path, text: str, at: tuple[int | str, ...]) -> str:
    lines = (line_of(at[:length], text) for length in range(len(at), 0, -1)) if path.suffix != ".json" else ()
    line = next((one for one in lines if one is not None), None)
    return f"{path}:" if line is None else f"{path}, line {line}:"
