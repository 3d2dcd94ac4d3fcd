"""Describes the state of tools that callers are not shown: pending approvals, and earlier versions."""

from dataclasses import dataclass
from typing import Any, TypeAlias

from toolfleet_registry.manifests.overrides import Pending

FieldChanges: TypeAlias = dict[str, tuple[Any, Any]]
"""What differs, by field: as registered, and as offered."""


@dataclass(frozen=True, slots=True)
class PendingTool:
    """A tool whose offer is not in effect. `digest` and `version` are those of the offer."""

    tool_name: str
    kind: Pending
    digest: str
    version: str | None
    is_new: bool
    """Whether none is registered."""
    registered_version: str | None
    fields: FieldChanges


@dataclass(frozen=True, slots=True)
class ToolVersion:
    """A specification of a tool that the registry keeps; `spec` is the whole of it, as JSON."""

    version: str | None
    digest: str
    created_at: str | None
    enabled: bool
    is_in_force: bool
    rolled_back_from: str | None
    spec: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rollback:
    """A rollback that was done: until a later version than `since` is offered, or workers of earlier releases undo it."""

    since: str | None
    undone_by: tuple[str, ...] = ()
