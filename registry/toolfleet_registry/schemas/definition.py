"""Writes a tool's arguments as JSON Schema."""

import copy
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from toolfleet_registry.contracts import ToolDefinition, ToolParameter


def input_schema(tool: ToolDefinition) -> dict[str, Any]:
    """Return the schema of the object that a call's arguments are: the module's own, else made of the flat parameters.

    Always says `type: object` and has `properties`, without which some providers refuse a tool. The caller owns it.
    """
    if tool.input_schema is not None:
        return {"type": "object", "properties": {}, **copy.deepcopy(tool.input_schema)}
    parameters = {parameter.name: parameter for parameter in tool.parameters}
    return {
        "type": "object",
        "properties": {name: _property(parameter) for name, parameter in parameters.items()},
        "required": [name for name, parameter in parameters.items() if parameter.required],
    }


def unknown_types(tools: Iterable[ToolDefinition], *, most: int) -> list[str]:
    """Return the first types of flat parameters that mean nothing to us, as `name: type`, shortened: they constrain nothing."""
    found = dict[str, None]()
    for tool in tools:
        for parameter in tool.parameters if tool.input_schema is None else ():
            if _types(parameter.type) is None:
                found[f"{parameter.name[:_SHOWN]}: {parameter.type[:_SHOWN]}"] = None
            if len(found) >= most:
                return list(found)
    return list(found)


def _property(parameter: ToolParameter) -> dict[str, Any]:
    types = _types(parameter.type)
    schema: dict[str, Any] = {}
    if types:
        schema["type"] = types[0] if len(types) == 1 else list(types)
    schema["description"] = parameter.description
    if types and "array" in types:
        schema["items"] = {}  # says nothing, but OpenAI refuses an array without it
    if parameter.enum:
        schema["enum"] = copy.deepcopy(parameter.enum)
    return schema


def _types(text: str) -> tuple[str, ...] | None:
    """Return the JSON Schema types of a type's text; an empty tuple for any value, `None` if unknown."""
    return None if len(text) > _LONGEST else _types_of(text.strip())


@lru_cache(maxsize=1000)
def _types_of(text: str) -> tuple[str, ...] | None:
    if optional := re.fullmatch(r"(?i:(?:typing\.)?optional)\[(.*)\]", text):
        text = f"{optional[1]}|null"
    # What stands in brackets says of what a container is made, which we do not go into.
    for _ in range(_DEEPEST):
        text = re.sub(r"\[[^\[\]]+\]|<[^<>]+>", "", text)
    found = dict[str, None]()
    for part in text.split("|"):
        name = "array" if part.strip().endswith("[]") else part.strip().lower()
        if name not in _ALIASES:
            return None
        if (alias := _ALIASES[name]) is None:
            return ()
        found[alias] = None
    return tuple(found)


_SHOWN = 60  # characters of foreign text
_LONGEST = 200  # characters of a type: no name is longer
_DEEPEST = 8  # brackets in each other

# What people write for a type in their own language; `None` is for any value.
_ALIASES: Mapping[str, str | None] = {
    **{name: name for name in ("string", "integer", "number", "boolean", "array", "object", "null")},
    **dict.fromkeys(("str", "text"), "string"),
    **dict.fromkeys(("int", "int32", "int64", "long"), "integer"),
    **dict.fromkeys(("float", "double", "decimal"), "number"),
    "bool": "boolean",
    **dict.fromkeys(("list", "tuple", "sequence"), "array"),
    **dict.fromkeys(("dict", "map", "mapping"), "object"),
    **dict.fromkeys(("none", "nonetype"), "null"),
    **dict.fromkeys(("any", "typing.any", "json", "value"), None),
}
