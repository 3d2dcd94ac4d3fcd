"""Writes tables of what can be set in one part of `toolfleet.toml`, which the guides show: field, meaning and default."""

import functools
import inspect
from pathlib import Path
from typing import Any, Final

import griffe
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from toolfleet_registry.config.agent_profile import AgentProfile, HumanInTheLoopSpec, PiiSpec, ToolRetrySpec
from toolfleet_registry.config.host_settings import FencedSpec, McpSpec, OAuthSpec, OpenApiSpec

_TABLES: Final[dict[str, type[BaseModel]]] = {
    "approval": HumanInTheLoopSpec,
    "fence": FencedSpec,
    "mcp": McpSpec,
    "oauth": OAuthSpec,
    "openapi": OpenApiSpec,
    "pii": PiiSpec,
    "profile": AgentProfile,
    "retry": ToolRetrySpec,
}
_LEFT_OUT: Final = {"name", "description"}
"""Fields that a guide's examples explain."""


def field_tables() -> dict[str, str]:
    """Return the tables, by the names of their files."""
    return {f"fields_{name}.md": _table(owner) for name, owner in _TABLES.items()}


def _table(owner: type[BaseModel]) -> str:
    meanings = _meanings(owner)
    names = [name for name in owner.__annotations__ if name in owner.model_fields and name not in _LEFT_OUT]
    rows = [f"| `{name}` | {meanings[name]} | {_default(owner.model_fields[name])} |" for name in names]
    return "\n".join(["| field | meaning | default |", "|---|---|---|", *rows, ""])


def _default(field: FieldInfo) -> str:
    value: Any = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, BaseModel):
        return ", ".join(f"`{name} = {_shown(each)}`" for name, each in value if each)
    return "none" if value is None or value in ({}, "", frozenset(), ()) else f"`{_shown(value)}`"


def _shown(value: Any) -> str:
    """Return the value as `toolfleet.toml` has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | frozenset):
        return f"[{', '.join(_shown(each) for each in (sorted(value) if isinstance(value, frozenset) else value))}]"
    return f'"{value}"' if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)


@functools.cache
def _meanings(owner: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings below the fields of a class. A `|` would end a table's cell."""
    path = Path(inspect.getfile(owner))
    declared = griffe.visit(owner.__module__, filepath=path, code=path.read_text())[owner.__qualname__]
    return {
        name: " ".join(one.docstring.value.split()).replace("|", "\\|").rstrip(".")
        for name, one in declared.members.items()
        if one.docstring is not None
    }
