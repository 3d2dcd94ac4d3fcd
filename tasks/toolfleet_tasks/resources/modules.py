"""Lists the modules that a caller reaches; shows where each is and which workers serve it, adds modules, and removes them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field
from redis.exceptions import RedisError

from toolfleet_registry.access import has_role
from toolfleet_registry.contracts import ModuleStatus, ToolDefinition
from toolfleet_registry.directory.directory import ModuleDirectory
from toolfleet_registry.directory.entries import ModuleEntry, plain_url
from toolfleet_registry.directory.hosts import RefusedHost
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.errors import FleetUnavailable, InvalidQuestion
from toolfleet_registry.permissions import reaches
from toolfleet_registry.policy.call_faults import modules_of
from toolfleet_registry.redis.servers import reason_of
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.offload import aside
from toolfleet_tasks.operations.changes import DRAIN_SECONDS, ModuleChanges
from toolfleet_tasks.operations.fleet_status import ModuleTrouble, read_status
from toolfleet_tasks.presence import ReplicaCount, replica_counts, workers_by_queue
from toolfleet_tasks.queue_states import QueueStateStore
from toolfleet_tasks.queues import lane_of, queue_of
from toolfleet_tasks.resources.operation import AnswerModel, BodyModel, OperationRequest, QueryModel, operation
from toolfleet_tasks.resources.tools import MANY_TOOLS, ShownLoadError, ShownTool, places_of

_LIST, _ONE = "/operations/modules", "/operations/modules/{module}"

_OF_ALL = ("module", "ok", "age_seconds", "is_stale")
_OF_VIEWERS = (*_OF_ALL, "tools", "error", "closed_tools", "disabled", "withheld", "drifted")


class NewModule(BodyModel):
    """A module that is to be in the fleet."""

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


class PlacedModule(AnswerModel):
    """The place of a module, and the workers that serve it."""

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


class PlacedModuleList(AnswerModel):
    """All modules of the fleet's directory."""

    modules: list[PlacedModule]
    """By name."""
    count: int
    """How many there are."""


class DrainQuery(QueryModel):
    """A query with the time for draining a removed module."""

    drain_seconds: float = Field(
        DRAIN_SECONDS, ge=0, le=86_400, description="For how long calls that wait are run, before the rest are ended."
    )


@dataclass(frozen=True, slots=True)
class ModuleOverview:
    """The facts by module.

    `entries` are those of the directory, and `ignored` says why others do not count, as `refused` do of hosts.

    `counts`: the findings of all workers about each host, by its id, of modules with several. `queue_states`: the
    operators' states of its queue, `paused` or `draining`, if any. `conflicts`: how many different entries live
    processes have in their settings, if more than one. `lanes` and `workers` say who runs a module's calls; `troubles`
    are those that a fleet's status shows.
    """

    entries: Mapping[str, ModuleEntry]
    ignored: Mapping[str, str]
    conflicts: Mapping[str, int]
    lanes: Mapping[str, str]
    workers: Mapping[str, int]
    troubles: Mapping[str, ModuleTrouble]
    refused: Sequence[RefusedHost] = ()
    counts: Mapping[str, Mapping[str, ReplicaCount]] = field(default_factory=dict[str, Mapping[str, ReplicaCount]])
    queue_states: Mapping[str, str] = field(default_factory=dict[str, str])


@operation("GET", _LIST, role="viewer", answers="All of them.")
async def list_placed_modules(asked: OperationRequest[None, None]) -> PlacedModuleList:
    """List all modules: where each is, and how many workers serve it."""
    found = await read_overview(asked.settings)
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
    return PlacedModuleList(modules=modules, count=len(modules))


@operation("POST", _LIST, role="operator", answers="What is stored.", problems=(409,))
async def add_module(asked: OperationRequest[NewModule, None]) -> PlacedModule:
    """Add a module to the running fleet."""
    # The command line may add a module at a private address: its user reaches the directory in Redis anyway.
    public_only = not asked.operator.may_reach_private
    try:
        entry = ModuleEntry(**asked.body.model_dump(), public_only=public_only)
    except ValueError:
        raise InvalidQuestion("The module's name or URL is none.") from None
    async with ModuleChanges.of(asked.settings, by=asked.operator.actor) as changes:
        return _placed(await changes.add(entry))


@operation("DELETE", _ONE, role="operator", answers="What is stored.", problems=(409,))
async def remove_module(asked: OperationRequest[None, DrainQuery]) -> PlacedModule:
    """Remove a module: it takes no more calls."""
    async with ModuleChanges.of(asked.settings, by=asked.operator.actor) as changes:
        gone = await changes.remove(asked.path["module"], drain_seconds=asked.query.drain_seconds)
    return _placed(gone).model_copy(update={"drain_seconds": gone.drain_seconds})


class ShownModule(AnswerModel):
    """A module as it is known. Only viewers see its errors."""

    module: str
    """Its name."""
    ok: bool
    """Whether the last probe found a good manifest."""
    tools: int
    """How many tools it has; to others than viewers, how many of them they may use."""
    age_seconds: float | None = None
    """The age of its last good manifest, if it has one."""
    is_stale: bool = False
    """Whether that one is too old."""
    error: str | None = None
    """Why the last probe failed."""
    closed_tools: list[str] | None = None
    """The tools that no caller can use because of their own declarations."""
    disabled: int | None = None
    """How many tools an operator has switched off."""
    withheld: int | None = None
    """How many tools no operator has approved, of a pinned module."""
    drifted: int | None = None
    """How many tools have other content than was registered under the same version."""
    load_errors: list[ShownLoadError] | None = None
    """The tool files that are not served in their present form."""


class ModuleList(AnswerModel):
    """The modules that a caller reaches."""

    modules: list[ShownModule]
    """By name."""
    count: int
    """How many there are."""


class ModuleWithTools(ShownModule):
    """A module, and what it offers to the caller."""

    offers: list[ShownTool]
    """The tools that the caller may use, by name."""


class ModuleToolsList(AnswerModel):
    """The modules that a caller reaches, each with its tools."""

    modules: list[ModuleWithTools]
    """By name."""
    count: int
    """How many there are."""


@operation("GET", "/modules", role="none", answers="What is known of each.")
async def list_modules(asked: OperationRequest[None, None]) -> ModuleList:
    """List the modules that the caller reaches; asks none of them."""
    return await _listed(asked, await (await asked.fleet()).modules.statuses())


def _is_long(found: ModuleToolsList) -> bool:
    return sum(len(module.offers) for module in found.modules) > MANY_TOOLS


@operation("GET", "/api/modules", role="none", answers="Each with its tools.", tag="modules", is_long=_is_long)
async def list_modules_with_tools(asked: OperationRequest[None, None]) -> ModuleToolsList:
    """List the modules that the caller reaches, each with the tools that they may use."""
    fleet = await asked.fleet()
    statuses, tools = await fleet.modules.statuses(), await fleet.tools(asked.operator.caller_for())

    def made() -> ModuleToolsList:
        places, offers = places_of(statuses), _by_module(tools)
        modules = [
            ModuleWithTools(**facts, offers=[ShownTool.of(tool, places) for tool in offers[facts["module"]]])
            for facts in _reached(asked, statuses, offers)
        ]
        return ModuleToolsList(modules=modules, count=len(modules))

    return await aside(made, is_large=len(tools) > MANY_TOOLS)


@operation("POST", "/refresh-tools", role="operator", answers="The outcome.", tag="modules")
async def refresh_tools(asked: OperationRequest[None, None]) -> ModuleList:
    """Have all modules asked now for what they offer."""
    return await _listed(asked, await (await asked.fleet()).modules.refresh())


async def _listed(asked: OperationRequest[None, None], statuses: Mapping[str, ModuleStatus]) -> ModuleList:
    offers = _by_module(await (await asked.fleet()).tools(asked.operator.caller_for()))
    modules = [ShownModule(**facts) for facts in _reached(asked, statuses, offers)]
    return ModuleList(modules=modules, count=len(modules))


def _by_module(tools: Iterable[ToolDefinition]) -> Mapping[str, list[ToolDefinition]]:
    found = defaultdict[str, list[ToolDefinition]](list)
    for tool in tools:
        found[tool.name.partition(".")[0]].append(tool)
    return found


def _reached(
    asked: OperationRequest[None, None],
    statuses: Mapping[str, ModuleStatus],
    offers: Mapping[str, list[ToolDefinition]],
) -> Iterator[dict[str, Any]]:
    """Yield the facts of each module that the caller may see: a viewer may see all, and their errors."""
    if has_role(asked.operator.maker.role, "viewer"):
        for status in statuses.values():
            yield {**{name: getattr(status, name) for name in _OF_VIEWERS}, "load_errors": ShownLoadError.of(status)}
        return
    modules = modules_of(asked.operator.caller_for(), asked.settings.default_guest_modules)
    for name, status in statuses.items():
        if reaches(name, modules):
            yield {**{fact: getattr(status, fact) for fact in _OF_ALL}, "tools": len(offers[name])}


async def read_overview(settings: Settings) -> ModuleOverview:
    """Return the facts about all modules of the fleet. Raises `FleetUnavailable` within some seconds, or `SettingsError`."""
    async with settings.redis_client() as redis:
        directory = ModuleDirectory(redis, settings)
        listing, fed = await directory.read(), await directory.fed()
        states = await QueueStateStore(redis, settings).read()
    known = KnownModules(settings)
    known.take(listing.entries)
    status = await read_status(settings)
    troubles = {one.module: one for one in status.troubles if one.trouble != "unknown"}  # it has not been asked yet
    names = known.names | listing.entries.keys() | troubles.keys()
    workers, lanes = await workers_by_queue(settings), {name: lane_of(name, known.settings) for name in names}
    return ModuleOverview(
        entries=listing.entries,
        ignored=listing.ignored,
        conflicts={name: count for name, count in fed.items() if count > 1},
        lanes=lanes,
        queue_states={
            name: state.state for name, lane in lanes.items() if (state := states.of(name, lane)) is not None
        },
        workers={name: workers[queue_of(name)] for name in names},
        troubles=troubles,
        refused=listing.hosts.refused,
        counts=await _counts(settings),
    )


async def _counts(settings: Settings) -> Mapping[str, Mapping[str, ReplicaCount]]:
    try:
        return await replica_counts(settings)
    except (RedisError, OSError) as exc:
        raise FleetUnavailable(f"Redis does not say how hosts fare: {reason_of(exc, 'no answer')}") from exc


def _queue_state(state: str | None) -> Literal["open", "paused", "draining"]:
    return "paused" if state == "paused" else "draining" if state == "draining" else "open"


def _placed(entry: ModuleEntry) -> PlacedModule:
    url = None if entry.url is None else plain_url(entry.url)
    return PlacedModule(module=entry.module, url=url, origin=entry.origin, lane=entry.lane, workers=0)
