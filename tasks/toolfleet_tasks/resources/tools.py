"""Shows which tools are in effect and what modules offer otherwise, and changes that: approvals, disabling, pins, rollbacks."""

import contextlib
from datetime import datetime
from typing import Any

from pydantic import Field
from redis.exceptions import RedisError

from toolfleet_registry.catalog.operator import Difference, operating
from toolfleet_registry.specs import ToolRegistration, ToolSpec, digest_of
from toolfleet_tasks.presence import KEEPS_ROLLBACKS, older_workers
from toolfleet_tasks.resources.operation import AnswerModel, BodyModel, OperationRequest, QueryModel, operation

_ALL, _TOOL, _MODULE = "/operations/tools", "/operations/tools/{name}", "/operations/modules/{module}"


class ShownDifference(AnswerModel):
    """A tool that its module offers otherwise than it is in effect, or was accepted."""

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


class ToolState(AnswerModel):
    """What is offered and not in effect, and what nobody may use."""

    pending: list[ShownDifference]
    """By tool."""
    closed: dict[str, str]
    """Tools that nobody may use now, and why."""
    pinned: list[str]
    """Modules of which only what was approved takes effect."""
    stale: dict[str, float]
    """Modules whose last good manifest is too old, and its age in seconds."""


class ShownToolEvent(AnswerModel):
    """One change of the registry."""

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


class ToolEventList(AnswerModel):
    """Changes of the registry."""

    events: list[ShownToolEvent]
    """The latest last."""
    count: int
    """How many these are."""
    found: dict[str, int]
    """How many tools were ever found added, changed, removed and drifted."""


class ShownVersion(AnswerModel):
    """A specification of a tool that the registry keeps."""

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


class ToolVersionList(AnswerModel):
    """The last specifications of a tool."""

    versions: list[ShownVersion]
    """The latest first; the registry keeps 20."""
    count: int
    """How many these are."""


class ApprovalRequest(BodyModel):
    """What is approved."""

    digest: str | None = Field(default=None, max_length=100)
    """Only if it is offered with this one."""


class ApprovedTool(AnswerModel):
    """A tool that takes effect as it is offered."""

    tool_name: str
    """The tool's name."""
    digest: str
    """What was approved."""


class RollbackRequest(BodyModel):
    """What a tool is to be again."""

    version: str = Field(max_length=256)
    """One of its versions."""


class RolledBackTool(AnswerModel):
    """A tool of which an earlier version is in force."""

    tool_name: str
    """The tool's name."""
    version: str
    """The version that is in force."""
    rolled_back_from: str | None = None
    """Until its module offers a later version than this one; `None`: it was in force already."""
    undone_by: list[str]
    """Workers of an earlier release, which undo it when they next ask the module."""


class PinnedModule(AnswerModel):
    """A module of which only what was approved takes effect."""

    module: str
    """Its name."""
    digests: dict[str, str]
    """What is approved, by tool."""


class ToolStateQuery(QueryModel):
    """A query for the state of tools."""

    module: str | None = Field(None, max_length=256, description="What is `pending` of this module only.")


class ToolEventQuery(QueryModel):
    """A query for changes of tools."""

    limit: int = Field(100, ge=1, le=10_000, description="The latest so many.")


@operation("GET", _ALL, role="viewer", answers="What there is.", problems=(409,))
async def get_tool_state(asked: OperationRequest[None, ToolStateQuery]) -> ToolState:
    """Show what modules offer that is not in effect, and which tools no caller may use."""
    async with operating(asked.settings) as operator:
        return ToolState(
            pending=[ShownDifference.of(one) for one in await operator.differences(asked.query.module)],
            closed=await operator.closed(),
            pinned=sorted(await operator.pins()),
            stale=await operator.stale(),
        )


@operation("GET", f"{_ALL}/events", role="viewer", answers="The latest last.")
async def list_tool_events(asked: OperationRequest[None, ToolEventQuery]) -> ToolEventList:
    """List the latest changes of the registry, by all operators and modules."""
    async with operating(asked.settings) as operator:
        events = [ShownToolEvent(**event.model_dump()) for event in await operator.events(asked.query.limit)]
        return ToolEventList(events=events, count=len(events), found=await operator.counted())


@operation("GET", f"{_TOOL}/versions", role="viewer", answers="The latest first.", problems=(409,))
async def list_tool_versions(asked: OperationRequest[None, None]) -> ToolVersionList:
    """List a tool's latest specifications."""
    name = asked.path["name"]
    async with operating(asked.settings) as operator:
        found, in_force = await operator.versions(name), await operator.version_in_force(name)
    versions = [ShownVersion.of(one, in_force) for one in reversed(found)]
    return ToolVersionList(versions=versions, count=len(versions))


@operation("POST", f"{_TOOL}/disable", role="operator", answers="It is done.", problems=(409,))
async def disable_tool(asked: OperationRequest[None, None]) -> None:
    """Disable a tool for all callers, until it is enabled."""
    name = asked.path["name"]
    async with operating(asked.settings) as operator, asked.change("tool_disabled", name):
        await operator.disable(name)


@operation("POST", f"{_TOOL}/enable", role="operator", answers="It is done.", problems=(409,))
async def enable_tool(asked: OperationRequest[None, None]) -> None:
    """Enable a disabled tool."""
    name = asked.path["name"]
    async with operating(asked.settings) as operator, asked.change("tool_enabled", name):
        await operator.enable(name)


@operation("POST", f"{_TOOL}/forget", role="operator", answers="It is done.", problems=(409,))
async def forget_tool(asked: OperationRequest[None, None]) -> None:
    """Remove a tool from the registry: if its module offers it again, it is new."""
    name = asked.path["name"]
    async with operating(asked.settings) as operator, asked.change("tool_forgotten", name):
        await operator.forget(name)


@operation("POST", f"{_TOOL}/approve", role="operator", answers="What was approved.", problems=(409,))
async def approve_tool(asked: OperationRequest[ApprovalRequest, None]) -> ApprovedTool:
    """Approve what a module offers of a tool, so that it takes effect."""
    name = asked.path["name"]
    async with operating(asked.settings) as operator, asked.change("tool_approved", name) as change:
        found = await operator.approve(name, digest=asked.body.digest)
        change.facts["digest"] = found.digest
    return ApprovedTool(tool_name=found.tool_name, digest=found.digest)


@operation("POST", f"{_TOOL}/rollback", role="operator", answers="What is in force.", problems=(409,))
async def roll_back_tool(asked: OperationRequest[RollbackRequest, None]) -> RolledBackTool:
    """Put an earlier version of a tool in force."""
    name, version = asked.path["name"], asked.body.version
    async with operating(asked.settings) as operator, asked.change("tool_rolled_back", name, version=version):
        since = (await operator.rollback(name, version)).rolled_back_from
    older = list[str]()
    with contextlib.suppress(RedisError, OSError):  # the rollback is done
        older += await older_workers(asked.settings, KEEPS_ROLLBACKS) if since else []
    return RolledBackTool(tool_name=name, version=version, rolled_back_from=since, undone_by=older)


@operation("POST", f"{_MODULE}/pin", role="operator", answers="What is approved.", problems=(409,))
async def pin_module(asked: OperationRequest[None, None]) -> PinnedModule:
    """Approve a module's tools as they are in effect, and no later change without an approval of its own."""
    module = asked.path["module"]
    async with operating(asked.settings) as operator, asked.change("module_pinned", module):
        return PinnedModule(module=module, digests=await operator.pin(module))


@operation("POST", f"{_MODULE}/unpin", role="operator", answers="It is not pinned any more.", problems=(409,))
async def unpin_module(asked: OperationRequest[None, None]) -> None:
    """Let what a module offers take effect without an approval."""
    module = asked.path["module"]
    async with operating(asked.settings) as operator, asked.change("module_unpinned", module):
        await operator.unpin(module)
