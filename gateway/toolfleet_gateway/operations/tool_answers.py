"""Describes what operators see of tools: what is offered and not in effect, what was, and what has changed."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from toolfleet_registry.catalog.operator import Difference
from toolfleet_registry.manifests.digests import digest_of
from toolfleet_registry.manifests.specs import RegistryEvent, ToolRegistration, ToolSpec


class ShownDifference(BaseModel):
    """A tool that its module offers otherwise than it is in effect, or was accepted."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    tool_name: str
    """The tool's name."""
    kind: str
    """`drifted`, `withheld` or `rolled_back`; `changed`: it is in effect, and no operator has accepted it."""
    digest: str
    """That of what is offered, which an approval may name."""
    registered_digest: str | None = None
    """That of what is registered, if it is."""
    is_new: bool
    """Whether none is registered that can be read."""
    version: str | None = None
    """The version that is offered."""
    registered_version: str | None = None
    """The version that is registered."""
    fields: dict[str, tuple[Any, Any]]
    """What differs: as registered, and as offered."""

    @classmethod
    def of(cls, one: Difference) -> "ShownDifference":
        """The difference, as it is sent."""
        return cls(
            tool_name=one.tool_name,
            kind=one.kind,
            digest=one.digest,
            registered_digest=one.registered_digest,
            is_new=one.registered is None,
            version=one.offered.version,
            registered_version=None if one.registered is None else one.registered.version,
            fields=one.fields(),
        )


class ToolState(BaseModel):
    """What is offered and not in effect, and what nobody may use."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    pending: list[ShownDifference]
    """By tool."""
    closed: dict[str, str]
    """Tools that nobody may use now, and why."""
    pinned: list[str]
    """Modules of which only what was approved takes effect."""
    stale: dict[str, float]
    """Modules whose last good manifest is too old, and its age in seconds."""


class ShownToolEvent(BaseModel):
    """One change of the registry."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    id: str
    """Grows from event to event."""
    kind: str
    """What happened."""
    tool_name: str
    """To which tool."""
    version: str | None = None
    """The version after it, if there is one."""
    digest: str | None = None
    """That of the specification after it, if there is one."""
    at: datetime
    """When."""

    @classmethod
    def of(cls, event: RegistryEvent) -> "ShownToolEvent":
        """The event, as it is sent."""
        return cls(**event.model_dump())


class ToolEventList(BaseModel):
    """Changes of the registry."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    events: list[ShownToolEvent]
    """The latest last."""
    count: int
    """How many these are."""
    found: dict[str, int]
    """How many tools were ever found added, changed, removed and drifted."""


class ShownVersion(BaseModel):
    """A specification of a tool that the registry keeps."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    version: str | None = None
    """Its version."""
    digest: str
    """Its digest."""
    created_at: str | None = None
    """When it was registered, or put in force again: ISO 8601, UTC."""
    enabled: bool
    """Whether no operator has switched the tool off."""
    is_in_force: bool
    """Whether callers are listed this one."""
    rolled_back_from: str | None = None
    """The version that an operator has rolled back from."""
    spec: ToolSpec
    """The specification."""

    @classmethod
    def of(cls, one: ToolRegistration, version_in_force: str | None) -> "ShownVersion":
        """The registration, as it is sent."""
        return cls(
            version=one.spec.version,
            digest=digest_of(one.spec),
            created_at=one.created_at,
            enabled=one.enabled,
            is_in_force=one.spec.version == version_in_force,
            rolled_back_from=one.rolled_back_from,
            spec=one.spec,
        )


class ToolVersionList(BaseModel):
    """The last specifications of a tool."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    versions: list[ShownVersion]
    """The latest first; the registry keeps 20."""
    count: int
    """How many these are."""


class ApprovalRequest(BaseModel):
    """What is approved."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    digest: str | None = Field(default=None, max_length=100)
    """Only if it is offered with this one."""


class ApprovedTool(BaseModel):
    """A tool that takes effect as it is offered."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    tool_name: str
    """The tool's name."""
    digest: str
    """What was approved."""


class RollbackRequest(BaseModel):
    """What a tool is to be again."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    version: str = Field(max_length=256)
    """One of its versions."""


class RolledBackTool(BaseModel):
    """A tool of which an earlier version is in force."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    tool_name: str
    """The tool's name."""
    version: str
    """The version that is in force."""
    rolled_back_from: str | None = None
    """Until its module offers a later version than this one; `None`: it was in force already."""
    undone_by: list[str]
    """Workers of an earlier release, which undo it when they next ask the module."""


class PinnedModule(BaseModel):
    """A module of which only what was approved takes effect."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    module: str
    """Its name."""
    digests: dict[str, str]
    """What is approved, by tool."""
