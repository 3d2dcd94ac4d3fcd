"""Defines what a registry holds: specifications of tools, each with its state; frozen, and strict about their fields.

A specification says what a tool is, not how it is run. Names are any text: `module.method` is the fleet's rule, not the
registry's.
"""

from datetime import datetime
from typing import Annotated

from pydantic import Field, JsonValue

from toolfleet_registry.contracts import Message, Since
from toolfleet_registry.contracts.event_kinds import EventKind, FindingKind


class ToolSpec(Message):
    """The specification of a tool."""

    tool_name: str = Field(min_length=1)
    """Its key."""
    version: str | None = None
    """Names the specification: two that differ must not have the same one, nor both have none."""
    description: str | None = None
    """What the tool does."""
    input_schema: dict[str, JsonValue]
    """Any JSON object: what the tool takes."""
    output_schema: dict[str, JsonValue]
    """Any JSON object: what it returns."""
    tags: list[str] = Field(default=[])
    """What it can be searched by."""
    deprecated: bool = False
    """Whether it should not be used any more."""
    successor: str | None = None
    """The tool to use instead of a deprecated one."""
    details: dict[str, JsonValue] = Field(default={})
    """What its owner keeps beside, such as the rest of a module's definition."""


class ToolRegistration(Message):
    """A specification in a registry."""

    spec: ToolSpec
    """The specification."""
    enabled: bool = True
    """Whether no operator has switched the tool off."""
    created_at: str | None = None
    """When this specification was registered there, or put in force again: ISO 8601, UTC."""
    rolled_back_from: Annotated[str | None, Since(2)] = None
    """The version that an operator has rolled back from; `None`: what is registered is what came last."""


class ToolRegistrySnapshot(Message):
    """All that a registry holds."""

    tools: list[ToolRegistration] = Field(default=[])
    """The registrations, by tool name."""
    pins: dict[str, dict[str, str]] = Field(default={})
    """The digests that operators have approved, by module and tool."""


class ToolFinding(Message):
    """What a look at a module has found about a tool, and what changes no registration."""

    kind: FindingKind
    """What was found."""
    tool_name: str
    """About which tool."""
    version: str | None = None
    """That of what is offered."""
    digest: str | None = None
    """That of what is offered."""


class RegistryEvent(Message):
    """One change of a registry, or something that was found and changes nothing in it: of `drifted` and `withheld`, `version` and `digest` are those of what is offered."""

    id: str
    """Grows from event to event."""
    kind: EventKind
    """What happened."""
    tool_name: str
    """To which tool."""
    version: str | None = None
    """That of the specification after it, if there is one."""
    digest: str | None = None
    """That of the specification after it, if there is one."""
    at: datetime
    """When."""
