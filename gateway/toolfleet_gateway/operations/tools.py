"""Changes which tools are in effect, and shows offers that are not, for operators."""

import contextlib
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from redis.exceptions import RedisError
from starlette.responses import Response

from toolfleet_gateway.http.answers import json_answer, nothing
from toolfleet_gateway.http.routes import Answer, AnyRoute, Route, RouteRequest
from toolfleet_gateway.operations.actors import actor_of
from toolfleet_gateway.operations.refusals import refusals
from toolfleet_gateway.roles import needing
from toolfleet_registry.catalog.operator import Difference, operating
from toolfleet_registry.manifests.digests import digest_of
from toolfleet_registry.manifests.specs import RegistryEvent, ToolRegistration, ToolSpec
from toolfleet_registry.settings import Settings
from toolfleet_tasks.operations.tool_changes import ToolChanges
from toolfleet_tasks.presence.fleet_versions import KEEPS_ROLLBACKS, older_workers

_TOOL, _MODULE = "/operations/tools/{name}", "/operations/modules/{module}"


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


class ToolStateQuery(BaseModel):
    """A query for the state of tools."""

    model_config = ConfigDict(extra="forbid")

    module: str | None = Field(None, max_length=256, description="What is `pending` of this module only.")


class ToolEventQuery(BaseModel):
    """A query for changes of tools."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(100, ge=1, le=10_000, description="The latest so many.")


def operated_tool_routes(settings: Settings) -> list[AnyRoute]:
    """Return the routes of operators for tools."""
    about = _AboutOperatedTools(settings)
    return [*_routes_of_state(about), *_routes_of_tools(about), *_routes_of_versions(about), *_routes_of_pins(about)]


def _routes_of_state(about: "_AboutOperatedTools") -> list[AnyRoute]:
    return [
        Route(
            method="GET",
            path="/operations/tools",
            name="getToolState",
            summary="What is offered and not in effect, and what nobody may use; for viewers",
            handle=needing("viewer", about.state),
            query=ToolStateQuery,
            answers={200: Answer("What there is.", ToolState)},
            problems=(409,),
            tag="operations",
        ),
        Route(
            method="GET",
            path="/operations/tools/events",
            name="listToolEvents",
            summary="The last changes of the registry, whoever has made them; for viewers",
            handle=needing("viewer", about.events),
            query=ToolEventQuery,
            answers={200: Answer("The latest last.", ToolEventList)},
            tag="operations",
        ),
    ]


def _routes_of_tools(about: "_AboutOperatedTools") -> list[AnyRoute]:
    return [
        about.change("disable", "Let nobody use a tool, until it is enabled", ToolChanges.disable),
        about.change("enable", "Take a disabling back", ToolChanges.enable),
        about.change("forget", "Let the registry know nothing of a tool: offered again it is new", ToolChanges.forget),
        Route(
            method="POST",
            path=f"{_TOOL}/approve",
            name="approveTool",
            summary="Let what a module offers of a tool take effect; for operators",
            handle=needing("operator", about.approve),
            body=ApprovalRequest,
            answers={200: Answer("What was approved.", ApprovedTool)},
            problems=(409,),
            tag="operations",
        ),
    ]


def _routes_of_versions(about: "_AboutOperatedTools") -> list[AnyRoute]:
    return [
        Route(
            method="GET",
            path=f"{_TOOL}/versions",
            name="listToolVersions",
            summary="A tool's last specifications; for viewers",
            handle=needing("viewer", about.versions),
            answers={200: Answer("The latest first.", ToolVersionList)},
            problems=(409,),
            tag="operations",
        ),
        Route(
            method="POST",
            path=f"{_TOOL}/rollback",
            name="rollBackTool",
            summary="Put an earlier version of a tool in force; for operators",
            handle=needing("operator", about.rollback),
            body=RollbackRequest,
            answers={200: Answer("What is in force.", RolledBackTool)},
            problems=(409,),
            tag="operations",
        ),
    ]


def _routes_of_pins(about: "_AboutOperatedTools") -> list[AnyRoute]:
    return [
        Route(
            method="POST",
            path=f"{_MODULE}/pin",
            name="pinModule",
            summary="Approve a module's tools as they are in effect, and nothing else from now on; for operators",
            handle=needing("operator", about.pin),
            answers={200: Answer("What is approved.", PinnedModule)},
            problems=(409,),
            tag="operations",
        ),
        Route(
            method="POST",
            path=f"{_MODULE}/unpin",
            name="unpinModule",
            summary="Take in what a module offers without an approval; for operators",
            handle=needing("operator", about.unpin),
            answers={204: Answer("It is not pinned any more.")},
            problems=(409,),
            tag="operations",
        ),
    ]


class _AboutOperatedTools:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def change(self, verb: str, summary: str, work: Callable[[ToolChanges, str], Awaitable[None]]) -> AnyRoute:
        """A route that does something about one tool, and has nothing to answer."""

        async def changed(request: RouteRequest[None, None]) -> Response:
            with refusals():
                async with ToolChanges.of(self._settings, actor_of(request.who)) as changes:
                    await work(changes, request.path["name"])
            return nothing()

        return Route(
            method="POST",
            path=f"{_TOOL}/{verb}",
            name=f"{verb}Tool",
            summary=f"{summary}; for operators",
            handle=needing("operator", changed),
            answers={204: Answer("It is done.")},
            problems=(409,),
            tag="operations",
        )

    async def state(self, request: RouteRequest[None, ToolStateQuery]) -> Response:
        with refusals():
            async with operating(self._settings) as operator:
                state = ToolState(
                    pending=[ShownDifference.of(one) for one in await operator.differences(request.query.module)],
                    closed=await operator.closed(),
                    pinned=sorted(await operator.pins()),
                    stale=await operator.stale(),
                )
        return json_answer(state)

    async def events(self, request: RouteRequest[None, ToolEventQuery]) -> Response:
        async with operating(self._settings) as operator:
            events = [ShownToolEvent.of(event) for event in await operator.events(request.query.limit)]
            found = await operator.counted()
        return json_answer(ToolEventList(events=events, count=len(events), found=found))

    async def versions(self, request: RouteRequest[None, None]) -> Response:
        name = request.path["name"]
        with refusals():
            async with operating(self._settings) as operator:
                found, in_force = await operator.versions(name), await operator.version_in_force(name)
        versions = [ShownVersion.of(one, in_force) for one in reversed(found)]
        return json_answer(ToolVersionList(versions=versions, count=len(versions)))

    async def rollback(self, request: RouteRequest[RollbackRequest, None]) -> Response:
        name, version = request.path["name"], request.body.version
        with refusals():
            async with ToolChanges.of(self._settings, actor_of(request.who)) as changes:
                since = (await changes.rollback(name, version)).rolled_back_from
        older = list[str]()
        with contextlib.suppress(RedisError, OSError):  # the rollback is done
            older += await older_workers(self._settings, KEEPS_ROLLBACKS) if since else []
        return json_answer(RolledBackTool(tool_name=name, version=version, rolled_back_from=since, undone_by=older))

    async def approve(self, request: RouteRequest[ApprovalRequest, None]) -> Response:
        with refusals():
            async with ToolChanges.of(self._settings, actor_of(request.who)) as changes:
                found = await changes.approve(request.path["name"], digest=request.body.digest)
        return json_answer(ApprovedTool(tool_name=found.tool_name, digest=found.digest))

    async def pin(self, request: RouteRequest[None, None]) -> Response:
        module = request.path["module"]
        with refusals():
            async with ToolChanges.of(self._settings, actor_of(request.who)) as changes:
                digests = await changes.pin(module)
        return json_answer(PinnedModule(module=module, digests=digests))

    async def unpin(self, request: RouteRequest[None, None]) -> Response:
        with refusals():
            async with ToolChanges.of(self._settings, actor_of(request.who)) as changes:
                await changes.unpin(request.path["module"])
        return nothing()
