"""How a model sees tools, and how its answer becomes a call."""

from collections.abc import Iterable, Mapping
from typing import Any

from toolfleet_registry.bodies import loads_strict
from toolfleet_registry.contracts import ToolCall, ToolDefinition
from toolfleet_registry.names import provider_name, provider_names
from toolfleet_registry.schema import input_schema


def tools_to_openai_format(tools: Iterable[ToolDefinition]) -> list[dict[str, Any]]:
    """OpenAI's Chat Completions format, under names that it accepts, sorted so that prompt caches hold."""
    return [
        {
            "type": "function",
            "function": {
                "name": provider_name(tool.name),
                "description": tool.description,
                "parameters": input_schema(tool),
            },
        }
        for tool in sorted(tools, key=lambda tool: tool.name)
    ]


def call_from_openai(tool_call: Mapping[str, Any], tools: Iterable[ToolDefinition]) -> ToolCall:
    """The call that a model's `{"id", "function": {"name", "arguments"}}` asks for.

    `tools` are those that the model was offered. Takes any nonsense: a name that was not offered and arguments
    that are not JSON go on as they are, for `ToolFleet.call` to refuse. No arguments at all are an empty object.
    """
    function = tool_call.get("function")
    if not isinstance(function, Mapping):
        return ToolCall(tool_name="")
    name = function.get("name")
    spoken = name if isinstance(name, str) else ""
    our_names = provider_names(tool.name for tool in tools)
    return ToolCall(tool_name=our_names.get(spoken, spoken), arguments=_arguments(function.get("arguments")))


def _arguments(spoken: Any) -> Any:
    if spoken is None or spoken == "":
        return {}
    if not isinstance(spoken, str):
        return spoken
    try:
        return loads_strict(spoken.encode())
    except ValueError:
        return spoken
