"""Remembers how a model has named the tool of a call, so that it is answered in the names that its provider uses."""

from dataclasses import dataclass, field

from toolfleet_registry.contracts.tool_definition import ToolDefinition


@dataclass(frozen=True, slots=True)
class Spoken:
    """The call as a model wrote it. All compare equal: calls that differ only in this are the same."""

    format: str = field(default="", compare=False)
    """The provider's format; empty: no model has asked for the call."""
    name: str = field(default="", compare=False)
    """The name under which the tool was offered; of a tool that was not, what the model said."""
    tool: ToolDefinition | None = field(default=None, compare=False)
    """The tool that was meant; `None` if it was not offered."""
    near: tuple[str, ...] = field(default=(), compare=False)
    """The offered names that are most like one that was not."""


UNSPOKEN = Spoken()
"""Of a call that a program has made by itself."""
