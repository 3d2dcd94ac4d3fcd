"""Reads an agent's profile out of a file, TOML, YAML or JSON, and says on which line it is wrong."""

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from pydantic import ValidationError

from toolfleet_registry.config.agent_profile import AgentProfile
from toolfleet_registry.config.setting_sources import line_of
from toolfleet_registry.errors import SettingsError

_TABLE = "agents"
_YAML = (".yaml", ".yml")


def read_profile_file(path: Path, name: str | None) -> tuple[str, AgentProfile]:
    """Return the agent's name, and the profile that the file is, or that it has of `name` in its table `agents`.

    A file that is a profile may say the `name`. Raises `BadParameter`, or `SettingsError` for a wrong one.
    """
    try:
        text = path.read_text(encoding="utf-8")
        document = _document_of(path, text)
    except (OSError, ValueError, RecursionError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else exc
        raise typer.BadParameter(f"{path}: {reason}.", param_hint="--file") from exc
    name, document = _named(document, name)
    found, where = _profile_in(document, name)
    try:
        return name, AgentProfile.model_validate(found)
    except ValidationError as exc:
        error = exc.errors(include_url=False)[0]
        said = ".".join(str(part) for part in error["loc"])
        reason = "there is no such field" if error["type"] == "extra_forbidden" else error["msg"]
        place = _place(path, text, (*where, *error["loc"]))
        raise SettingsError(f"{place}{said and f' at {said}'}: {reason.removeprefix('Value error, ')}.") from exc


def _document_of(path: Path, text: str) -> Any:
    """Parse a profile's file. Raises `ValueError`."""
    if path.suffix == ".json":
        return json.loads(text)
    if path.suffix not in _YAML:
        return tomllib.loads(text)
    try:
        import yaml
    except ImportError:
        raise ValueError("YAML needs pyyaml: pip install 'toolfleet[hosts]'") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        raise ValueError(f"no YAML{'' if mark is None else f' (line {mark.line + 1})'}") from exc


def _named(document: Any, name: str | None) -> tuple[str, Any]:
    """Return the agent's name, and the document without it."""
    said = document.get("name") if isinstance(document, dict) and _TABLE not in document else None
    if said is not None and name not in {None, said}:
        raise typer.BadParameter(f"it is the profile of {said!r}, and not of {name!r}.", param_hint="--file")
    if (name := name or said) is None:
        raise typer.BadParameter("say the agent's NAME, or `name` in the file.", param_hint="NAME")
    return str(name), document if said is None else {key: value for key, value in document.items() if key != "name"}


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
    find = {".json": None, **dict.fromkeys(_YAML, _yaml_line)}.get(path.suffix, line_of)
    lines = () if find is None else (find(at[:length], text) for length in range(len(at), 0, -1))
    line = next((one for one in lines if one is not None), None)
    return f"{path}:" if line is None else f"{path}, line {line}:"


def _yaml_line(at: Sequence[str | int], text: str) -> int | None:
    import yaml

    node, line = yaml.compose(text, yaml.SafeLoader), None
    for each in at:
        if isinstance(node, yaml.MappingNode):
            key, node = next((pair for pair in node.value if pair[0].value == each), (None, None))
        elif isinstance(node, yaml.SequenceNode) and isinstance(each, int):
            key = node = node.value[each]
        else:
            key = None
        if key is None:
            return None
        line = key.start_mark.line + 1
    return line
