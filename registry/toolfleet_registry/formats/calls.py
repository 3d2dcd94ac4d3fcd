"""Reads a provider's tool call as a call of ours."""

from collections.abc import Iterable, Mapping
from typing import Any

from toolfleet_registry.contracts import ToolCall, ToolDefinition
from toolfleet_registry.contracts.calls import Spoken
from toolfleet_registry.contracts.names import provider_name
from toolfleet_registry.formats.dialects import Format, dialect_of, meant_tool, near_names, offered_name
from toolfleet_registry.formats.offers import shown_schema, strict_form
from toolfleet_registry.formats.references import localized
from toolfleet_registry.formats.relaxing import Notes, renamed_properties, rooted
from toolfleet_registry.formats.strictness import without_nulls
from toolfleet_registry.schemas.definition import input_schema
from toolfleet_registry.system.http_bodies import MAX_DEPTH, loads_strict


def to_call(
    obj: Any,
    format: Format,
    tools: Iterable[ToolDefinition],
    *,
    dotted: bool = False,
) -> ToolCall:
    """Return the call that a model asks for, with the names that its tool has in the fleet.

    A name that was not offered and arguments that are not JSON are passed on: `ToolFleet.call` refuses them, in the names
    that the model knows. If a tool can be offered as strict, a null is removed where an argument can be left out and
    cannot be null.

    Args:
        obj: One tool call, as the provider's package or its JSON has it. OpenAI: an element of `tool_calls`, or an output
            item of type `function_call`. Anthropic: a `tool_use` block. Gemini: a function call, or the part that holds it.
            MCP: a `tools/call` request, or its parameters.
        format: The provider's format.
        tools: The tools that the model was offered.
        dotted: Whether they were offered with dots in their names.

    Returns:
        The call, ready for `ToolFleet.call`. Absent arguments become an empty object.

    Raises:
        ValueError: The format is unknown.

    """
    dialect_of(format)
    name, spoken = spoken_call(obj, format)
    return named_call(name, spoken, format, tools, dotted=dotted)


def spoken_call(obj: Any, format: Format) -> tuple[str, Any]:
    """Return the name in a provider's tool call, "" without one, and its arguments as they were written."""
    return _READERS[format](obj)


def named_call(
    name: str, spoken: Any, format: Format, tools: Iterable[ToolDefinition], *, dotted: bool = False
) -> ToolCall:
    """Return the call of the tool that was offered under `name`; otherwise as `to_call`."""
    arguments = spoken_arguments(spoken)
    offered = list(tools)
    tool = meant_tool(name, offered) if name else None
    if tool is None:
        near = near_names(name, offered, format, dotted=dotted)
        return ToolCall(tool_name=name, arguments=arguments, spoken=Spoken(format, name, None, near))
    # Who calls a tool by its own name was offered that, as by `tools_to_openai_format(dotted=True)`.
    known_as = offered_name(tool.name, format, dotted=dotted) if name == provider_name(tool.name) else name
    spoken = Spoken(format, known_as, tool)
    return ToolCall(tool_name=tool.name, arguments=_restored(arguments, tool, format), spoken=spoken)


def call_from_openai(tool_call: Mapping[str, Any], tools: Iterable[ToolDefinition]) -> ToolCall:
    """Return the call that a model asks for in OpenAI's Chat Completions format: `to_call(…, "openai_chat", …)`.

    Args:
        tool_call: An element of `tool_calls`: `{"id", "function": {"name", "arguments"}}`.
        tools: The tools that the model was offered.

    Returns:
        The call, ready for `ToolFleet.call`.

    """
    return to_call(tool_call, "openai_chat", tools)


def spoken_arguments(spoken: Any) -> Any:
    """Return a model's arguments: an object, or its JSON.

    No arguments are an empty object; a text that is no JSON is returned unchanged.
    """
    if spoken is None or spoken == "":
        return {}
    if not isinstance(spoken, str):
        return spoken
    try:
        return loads_strict(spoken.encode())
    except ValueError:
        return spoken


def _restored(arguments: Any, tool: ToolDefinition, format: Format) -> Any:
    if not isinstance(arguments, dict) or format == "mcp":
        return arguments
    dialect = dialect_of(format)
    rules = dialect.strictness
    if rules is not None and rules.optional_is_null and _has_null(arguments, 0):
        schema = shown_schema(tool, dialect, Notes(tool.name))
        if strict_form(schema, rules, tool.name)[0] is not None:
            arguments = without_nulls(arguments, schema, schema.get("$defs", {}))
    if dialect.property_name is not None:
        shown = rooted(localized(input_schema(tool)), Notes(tool.name))
        own = {other: name for name, other in renamed_properties(shown, dialect.property_name).items()}
        arguments = _renamed(arguments, own, 0) if own else arguments
    return arguments


def _renamed(value: Any, own: Mapping[str, str], depth: int) -> Any:
    if depth > MAX_DEPTH:
        return value
    if isinstance(value, dict):
        return {own.get(name, name): _renamed(inner, own, depth + 1) for name, inner in value.items()}
    return [_renamed(inner, own, depth + 1) for inner in value] if isinstance(value, list) else value


def _has_null(value: Any, depth: int) -> bool:
    if depth > MAX_DEPTH or not isinstance(value, dict | list):
        return value is None
    return any(_has_null(inner, depth + 1) for inner in (value.values() if isinstance(value, dict) else value))


def _openai_chat(obj: Any) -> tuple[str, Any]:
    function = field_of(obj, "function")
    if function is None and (custom := field_of(obj, "custom")) is not None:
        return _name(custom), field_of(custom, "input")
    return _name(function), field_of(function, "arguments")


def _openai_responses(obj: Any) -> tuple[str, Any]:
    arguments = field_of(obj, "arguments")
    return _name(obj), field_of(obj, "input") if arguments is None else arguments


def _anthropic(obj: Any) -> tuple[str, Any]:
    return _name(obj), field_of(obj, "input")


def _gemini(obj: Any) -> tuple[str, Any]:
    call = field_of(obj, "function_call") or field_of(obj, "functionCall") or obj
    return _name(call), field_of(call, "args")


def _mcp(obj: Any) -> tuple[str, Any]:
    request = field_of(obj, "params") or obj
    return _name(request), field_of(request, "arguments")


def _name(obj: Any) -> str:
    name = field_of(obj, "name")
    return name if isinstance(name, str) else ""


def field_of(obj: Any, name: str) -> Any:
    """Return a member of a provider's object or of its JSON; `None` without one."""
    return obj.get(name) if isinstance(obj, Mapping) else getattr(obj, name, None)


_READERS = {
    "openai_chat": _openai_chat,
    "openai_responses": _openai_responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
    "mcp": _mcp,
}
