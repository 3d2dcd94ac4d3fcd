"""A tool's arguments as JSON Schema."""

import copy
from typing import Any

from toolfleet_registry.contracts import ToolDefinition, ToolParameter


def input_schema(tool: ToolDefinition) -> dict[str, Any]:
    """The schema of the object that a call's arguments are: the module's own, else made of the flat parameters.

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


def _property(parameter: ToolParameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": parameter.type, "description": parameter.description}
    if parameter.type == "array":
        schema["items"] = {}  # says nothing, but OpenAI refuses an array without it
    if parameter.enum:
        schema["enum"] = copy.deepcopy(parameter.enum)
    return schema
