"""Defines what a registry holds: specifications of tools, each with its state, digest and version.

A specification says what a tool is, not how it is run. Names are any text: `module.method` is the fleet's rule, not the
registry's.
"""

import hashlib
import json
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, JsonValue

from toolfleet_registry.contracts import Effect, Message, Since, ToolAnnotations, ToolDefinition
from toolfleet_registry.contracts.tool_definition import EventKind, FindingKind

if TYPE_CHECKING:
    from semver import Version

_LONGEST_SEMVER = 128  # characters: a longer one is a mistake, and its numbers would take long to read

_PREFIX = "sha256:"

_IN_A_VERSION = 12  # hex digits

_IN_SPEC = {"name", "version", "description", "input_schema", "output_schema", "tags", "deprecated", "successor"}

_FLAT = "has_flat_parameters"


def version_key(version: str | None) -> tuple[Any, ...]:
    """Return a key that sorts versions: no version first, then semantic ones, then all others as text.

    Build numbers (`1.0.0+7`), of which Semantic Versioning says nothing, are compared as text: no two versions are
    equal.
    """
    if version is None:
        return (0,)
    semantic = _semantic(version)
    return (2, version) if semantic is None else (1, semantic, version)


def compare_versions(one: str | None, other: str | None) -> int:
    """Compare two versions. None is the earliest, semantic versions follow, then all others as text.

    Args:
        one: A version.
        other: Another version.

    Returns:
        -1 if the first one is earlier, 0 if they are the same, 1 if it is later.

    """
    left, right = version_key(one), version_key(other)
    return (left > right) - (left < right)


def is_later(version: str | None, than: str | None) -> bool:
    """Return whether a version is later than another one.

    Args:
        version: A version.
        than: The version to compare it with.

    """
    return compare_versions(version, than) > 0


def ends_rollback(version: str | None, rolled_back_from: str) -> bool:
    """Return whether a tool that was rolled back takes this version: a later one, or any other one if they cannot be compared."""
    if version is not None and _semantic(version) and _semantic(rolled_back_from):
        return is_later(version, rolled_back_from)
    return version != rolled_back_from


def _semantic(version: str) -> "Version | None":
    from semver import Version  # an agent and a worker compare no versions

    if len(version) > _LONGEST_SEMVER:
        return None
    try:
        return Version.parse(version)
    except ValueError:
        return None


def effect_of(tool: ToolDefinition) -> Effect | None:
    """Return the tool's effect; `None` if its manifest says nothing about it.

    The first of these rules that fits:
    1. `effect` is there: that.
    2. Some field says that a repeat does more (`idempotent` is false, or `idempotentHint` is, of a tool that is not
       read-only), or calls a reader destructive: `once`. Of two contradicting fields the more careful one counts.
    3. `readOnlyHint` is true: `read`.
    4. `idempotent` or `idempotentHint` is true: `idempotent`, also of a tool that is destructive, such as a deletion.
    5. `destructiveHint` is true: `once`.

    A hint that is absent says nothing, despite the protocol's defaults: it may have been forgotten.
    """
    if tool.effect is not None:
        return tool.effect
    hints = tool.annotations or ToolAnnotations()
    if _is_doubtful(tool, hints):
        return "once"
    if hints.readOnlyHint:
        return "read"
    if tool.idempotent or hints.idempotentHint:
        return "idempotent"
    return "once" if hints.destructiveHint else None


def _is_doubtful(tool: ToolDefinition, hints: ToolAnnotations) -> bool:
    if tool.idempotent is False:
        return True
    # The protocol gives the other two hints no meaning where this one is true. That search results change from day to
    # day makes many a reader "not idempotent"; but a reader is never called destructive on purpose.
    return bool(hints.destructiveHint) if hints.readOnlyHint else hints.idempotentHint is False


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
    """Further data of its owner, such as the rest of a module's definition."""


def digest_of(spec: ToolSpec) -> str:
    """`sha256:` and 64 hex digits: of the specification as JSON with sorted names, without its version.

    The version is left out, for it is a name that the content is given: a new one alone changes nothing.
    """
    content = spec.model_dump(mode="json", exclude={"version"})
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return _PREFIX + hashlib.sha256(text.encode()).hexdigest()


def version_from(digest: str) -> str:
    """Return the version of a specification that has none of its own: `sha256:` and the first 12 digits of its digest."""
    return digest[: len(_PREFIX) + _IN_A_VERSION]


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
    """A finding about a tool of a module that was checked. It changes no registration."""

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


def spec_of(tool: ToolDefinition) -> ToolSpec:
    """Return the specification of a tool. Without a version of its own its digest names it.

    The flat form of the arguments is kept as it came: how it becomes a JSON Schema may change with us, and a digest must
    change with the module only. For the same reason fields that have their default are left out.
    """
    details: dict[str, Any] = tool.model_dump(mode="json", exclude=_IN_SPEC, exclude_defaults=True)
    if tool.input_schema is None:
        details[_FLAT] = True
        schema: dict[str, Any] = {parameter.name: parameter.type for parameter in tool.parameters}
    else:
        schema = tool.input_schema
    spec = ToolSpec(
        tool_name=tool.name,
        version=tool.version or None,
        description=tool.description,
        input_schema=schema,
        output_schema=tool.output_schema or {},
        tags=tool.tags,
        deprecated=tool.deprecated,
        successor=tool.successor,
        details=details,
    )
    return spec if spec.version else spec.model_copy(update={"version": version_from(digest_of(spec))})


def definition_of(spec: ToolSpec) -> ToolDefinition:
    """Return the tool of a specification made by `spec_of`.

    Raises `ValueError` if it has another origin, and is invalid.
    """
    details: dict[str, Any] = dict(spec.details)
    is_flat = details.pop(_FLAT, False)
    own = {
        "name": spec.tool_name,
        "version": None if spec.version == version_from(digest_of(spec)) else spec.version,
        "description": spec.description or "",
        "input_schema": None if is_flat else dict(spec.input_schema),
        "output_schema": dict(spec.output_schema) or None,
        "tags": spec.tags,
        "deprecated": spec.deprecated,
        "successor": spec.successor,
    }
    return ToolDefinition.model_validate(details | own)


def arguments_of(spec: ToolSpec) -> dict[str, Any]:
    """Return a specification's arguments, by name; empty if it is not a module's tool and describes them in another way."""
    flat = spec.details.get("parameters")
    if spec.details.get(_FLAT) and isinstance(flat, list):
        return {str(one["name"]): one for one in flat if isinstance(one, dict) and "name" in one}
    properties = spec.input_schema.get("properties")
    return properties if isinstance(properties, dict) else {}
