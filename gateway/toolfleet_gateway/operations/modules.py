"""Adds modules to the fleet and removes them, and shows where each is, for operators."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from toolfleet_gateway.http.answers import json_answer
from toolfleet_gateway.http.problems import invalid_request
from toolfleet_gateway.http.routes import Answer, AnyRoute, Route, RouteRequest
from toolfleet_gateway.operations.actors import actor_of
from toolfleet_gateway.operations.refusals import refusals
from toolfleet_gateway.roles import needing
from toolfleet_registry.directory.entries import ModuleEntry, plain_url
from toolfleet_registry.settings import Settings
from toolfleet_tasks.operations.module_changes import DRAIN_SECONDS, ModuleChanges
from toolfleet_tasks.operations.module_overview import read_overview

_LIST, _ONE = "/operations/modules", "/operations/modules/{module}"


class NewModule(BaseModel):
    """A module that is to be in the fleet."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    module: str = Field(pattern=r"^[A-Za-z0-9_-]{1,100}$")
    """Its name."""
    url: str = Field(pattern=r"^https?://[^\s]+$", max_length=2_000)
    """Where the workers reach it."""
    slow: bool = False
    """Whether the slow lane serves it."""
    timeout_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """The limit of its calls, instead of the lane's."""
    scales_from_zero: bool = False
    """Whether its lane may have no worker at times, and calls wait for one."""


class PlacedModule(BaseModel):
    """Where a module is, and who serves it."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    module: str
    """Its name."""
    url: str | None = None
    """Where the workers reach it, without a password, if it is not in the workers themselves."""
    origin: str | None = None
    """`settings`, `added` or `announced`."""
    lane: Literal["fast", "slow"]
    """The lane that serves it."""
    workers: int
    """How many workers take its calls."""
    queue: Literal["open", "paused", "draining"] = "open"
    """What operators have done to its queue."""
    trouble: str | None = None
    """What is wrong with it: `away`, `recovering`, `failing`, `not ready`, `stale`, `unreachable` and the like."""
    reason: str | None = None
    """The reason, in words."""
    ignored: str | None = None
    """Why its entry does not count."""
    drain_seconds: float | None = None
    """Of a module that was removed: for how long calls that wait are run."""


class PlacedModuleList(BaseModel):
    """All modules of the fleet's directory."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    modules: list[PlacedModule]
    """By name."""
    count: int
    """How many there are."""


class DrainQuery(BaseModel):
    """A query with the time for draining a removed module."""

    model_config = ConfigDict(extra="forbid")

    drain_seconds: float = Field(
        DRAIN_SECONDS, ge=0, le=86_400, description="For how long calls that wait are run, before the rest are ended."
    )


def operated_module_routes(settings: Settings) -> list[AnyRoute]:
    """Return the routes of operators for modules."""
    about = _AboutOperatedModules(settings)
    return [
        Route(
            method="GET",
            path=_LIST,
            name="listPlacedModules",
            summary="Where each module is, and who serves it; for viewers",
            handle=needing("viewer", about.listed),
            answers={200: Answer("All of them.", PlacedModuleList)},
            tag="operations",
        ),
        Route(
            method="POST",
            path=_LIST,
            name="addModule",
            summary="Add a module to the running fleet; for operators",
            handle=needing("operator", about.added),
            body=NewModule,
            answers={200: Answer("What is stored.", PlacedModule)},
            problems=(409,),
            tag="operations",
        ),
        Route(
            method="DELETE",
            path=_ONE,
            name="removeModule",
            summary="Remove a module: it takes no more calls; for operators",
            handle=needing("operator", about.removed),
            query=DrainQuery,
            answers={200: Answer("What is stored.", PlacedModule)},
            problems=(409,),
            tag="operations",
        ),
    ]


class _AboutOperatedModules:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def listed(self, request: RouteRequest[None, None]) -> Response:
        del request
        found = await read_overview(self._settings)
        modules = [
            PlacedModule(
                module=name,
                url=None if (entry := found.entries.get(name)) is None or entry.url is None else plain_url(entry.url),
                origin=None if entry is None else entry.origin,
                lane="slow" if lane == "slow" else "fast",
                workers=found.workers.get(name, 0),
                queue=_queue_state(found.queue_states.get(name)),
                trouble=None if (trouble := found.troubles.get(name)) is None else trouble.trouble,
                reason=None if trouble is None else trouble.words or None,
                ignored=found.ignored.get(name),
            )
            for name, lane in sorted(found.lanes.items())
        ]
        return json_answer(PlacedModuleList(modules=modules, count=len(modules)))

    async def added(self, request: RouteRequest[NewModule, None]) -> Response:
        body = request.body
        try:
            entry = ModuleEntry(**body.model_dump(), public_only=True)
        except ValueError:
            raise invalid_request("The module's name or URL is none.") from None
        with refusals():
            async with ModuleChanges.of(self._settings, by=actor_of(request.who)) as changes:
                return json_answer(_placed(await changes.add(entry)))

    async def removed(self, request: RouteRequest[None, DrainQuery]) -> Response:
        with refusals():
            async with ModuleChanges.of(self._settings, by=actor_of(request.who)) as changes:
                gone = await changes.remove(request.path["module"], drain_seconds=request.query.drain_seconds)
        return json_answer(_placed(gone).model_copy(update={"drain_seconds": gone.drain_seconds}))


def _queue_state(state: str | None) -> Literal["open", "paused", "draining"]:
    return "paused" if state == "paused" else "draining" if state == "draining" else "open"


def _placed(entry: ModuleEntry) -> PlacedModule:
    url = None if entry.url is None else plain_url(entry.url)
    return PlacedModule(module=entry.module, url=url, origin=entry.origin, lane=entry.lane, workers=0)
