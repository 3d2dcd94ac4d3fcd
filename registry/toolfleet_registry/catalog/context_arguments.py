"""Checks a call's arguments together with what its module is told of the conversation."""

from collections.abc import Mapping
from typing import Any

from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.schemas.validation import Checked, checked


def checked_with(
    context: Mapping[str, Any] | None,
    tool: ToolDefinition,
    arguments: dict[str, Any],
    *,
    coerces_numbers: bool,
    are_small: bool = False,
) -> Checked:
    """The arguments with all that is `context`; where the tool's schema has no room for that, with what it names at its top.

    `are_small`: whether the arguments are known to be small values.
    """
    if not context:
        return checked(tool, arguments, coerces_numbers=coerces_numbers, are_small=are_small)
    whole = checked(tool, {**arguments, **context}, coerces_numbers=coerces_numbers)
    if whole.arguments is not None:
        return whole
    properties = {} if tool.input_schema is None else tool.input_schema.get("properties")
    names = {*(properties if isinstance(properties, dict) else ()), *(parameter.name for parameter in tool.parameters)}
    named = {name: value for name, value in context.items() if name in names}
    part = checked(tool, {**arguments, **named}, coerces_numbers=coerces_numbers)
    rest = {name: value for name, value in context.items() if name not in named}
    return part if part.arguments is None else Checked({**part.arguments, **rest})
