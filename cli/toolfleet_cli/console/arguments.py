"""Parses a tool's arguments from words: `query=owls max_results:=3`."""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import typer

from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.schemas.definition import input_schema

_WORD = re.compile(r"(?P<name>[^=:]+)(?P<sign>:?=)(?P<value>.*)", re.DOTALL)


def read_arguments(words: Sequence[str], whole: str | None, tool: ToolDefinition | None) -> Any:
    """The arguments: those of `whole`, a JSON document, and over them those of the words.

    `name:=value` is JSON. `name=value` is text, unless the tool takes no text under this name: then it is JSON if it
    can be read as such, and what cannot be is left for the fleet to judge. Raises `typer.BadParameter`.
    """
    base = {} if whole is None else _json(whole, "--args")
    if not words:
        return base
    if not isinstance(base, dict):
        raise typer.BadParameter("--args must be a JSON object if there are name=value arguments as well.")
    return base | dict(_read(word, tool) for word in words)


def _read(word: str, tool: ToolDefinition | None) -> tuple[str, Any]:
    match = _WORD.fullmatch(word)
    if match is None:
        raise typer.BadParameter(f"{word!r} is neither name=text nor name:=JSON.")
    name, sign, value = match["name"], match["sign"], match["value"]
    if sign == ":=":
        return name, _json(value, name)
    if tool is None or _takes_text(tool, name):
        return name, value
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as exc:
        raise typer.BadParameter(f"the value of {name} is not JSON: {exc}.") from exc


def _takes_text(tool: ToolDefinition, name: str) -> bool:
    """Return whether text may be meant: also if the tool does not declare the type."""
    properties = input_schema(tool)["properties"]
    types = set(_types(properties.get(name))) if isinstance(properties, dict) else set[str]()
    return not types or not types <= _OTHER_TYPES


def _types(schema: Any) -> Iterable[str]:
    """The JSON types that a schema names, itself or as alternatives."""
    if not isinstance(schema, dict):
        return
    named = schema.get("type", [])
    yield from [named] if isinstance(named, str) else named
    for alternative in [*schema.get("anyOf", []), *schema.get("oneOf", [])]:
        yield from _types(alternative)


_OTHER_TYPES = {"integer", "number", "boolean", "array", "object", "null"}
