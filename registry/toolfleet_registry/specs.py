"""What a registry holds: specifications of tools, each with its state; frozen, and strict about their fields.

A specification says what a tool is, not how it is run. Names are any text: `module.method` is the fleet's rule, not the
registry's.
"""

from datetime import datetime
from typing import Literal

from pydantic import Field, JsonValue

from toolfleet_registry.contracts import Message

EventKind = Literal["registered", "changed", "enabled", "disabled", "removed"]
"""What happened to a tool: it is new, it has another specification, …"""


class ToolSpec(Message):
    """The specification of a tool. `tool_name` is its key; `input_schema` and `output_schema` are any JSON objects.

    `version` names the specification: two that differ must not have the same one, nor both have none. `deprecated` tools
    may name their `successor`. `details` is what their owner keeps beside, such as the rest of a module's definition.
    """

    tool_name: str = Field(min_length=1)
    version: str | None = None
    description: str | None = None
    input_schema: dict[str, JsonValue]
    output_schema: dict[str, JsonValue]
    tags: list[str] = Field(default=[])
    deprecated: bool = False
    successor: str | None = None
    details: dict[str, JsonValue] = Field(default={})


class ToolRegistration(Message):
    """A specification in a registry. `created_at` (ISO 8601, UTC) is when this specification was registered there."""

    spec: ToolSpec
    enabled: bool = True
    created_at: str | None = None


class ToolRegistrySnapshot(Message):
    """All that a registry holds, by tool name; `pins` are the digests that operators have approved, by module and tool."""

    tools: list[ToolRegistration] = Field(default=[])
    pins: dict[str, dict[str, str]] = Field(default={})


class RegistryEvent(Message):
    """One change of a registry. Ids grow; `digest` and `version` are those of the specification after it, if there is one."""

    id: str
    kind: EventKind
    tool_name: str
    version: str | None = None
    digest: str | None = None
    at: datetime
