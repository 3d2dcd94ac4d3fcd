"""Shows the profiles of agents, in the settings and in the registry, and which parts are in effect; and changes those in the registry."""

import asyncio
import contextlib
import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from pydantic import Field
from redis.exceptions import RedisError

from toolfleet_registry.agents.known_profiles import KnownProfiles
from toolfleet_registry.agents.profile_rules import EffectiveProfile, NamedProfile
from toolfleet_registry.agents.stored_profiles import ProfileCopy, ProfileVersion, StoredProfiles, is_elsewhere
from toolfleet_registry.catalog.operator import fleets_registry, operating
from toolfleet_registry.config.agent_profile import AgentProfile, ToolRetrySpec, selects
from toolfleet_registry.config.setting_sources import setting_place
from toolfleet_registry.contracts import Caller, Level, ToolDefinition
from toolfleet_registry.errors import FleetError, FleetUnavailable, NoSuchProfile, OperationRefused, SettingsError
from toolfleet_registry.permissions import reaches
from toolfleet_registry.policy.hints import UNDECLARED_LINES
from toolfleet_registry.redis.servers import sync_client
from toolfleet_registry.redis.urls import fleet_url
from toolfleet_registry.settings import Settings
from toolfleet_registry.specs import effect_of
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.operations.change_trail import ChangeKind
from toolfleet_tasks.resources.operation import AnswerModel, BodyModel, OperationRequest, operation

B = TypeVar("B")
T = TypeVar("T")

_ALL: Final = "/operations/agents"
_ONE: Final = "/operations/agents/{name}"

_log = get_logger(__name__)


class PlacedProfile(AnswerModel):
    """One profile of an agent, and where it stands."""

    place: str
    """A line of a file, a variable, or `registry, version 3`."""
    profile: AgentProfile
    """What it says."""
    at: float | None = None
    """When it was stored, in seconds since the epoch, if it is in the registry."""
    by: str | None = None
    """Who has stored it."""


class PlacedMiddleware(AnswerModel):
    """One entry of what stands around an agent's calls."""

    place: str
    """Where its profile stands."""
    spec: dict[str, Any]
    """What it says."""


class AgentOverview(AnswerModel):
    """The most that an agent may do: all of its profiles hold together."""

    name: str
    """The agent."""
    version: int
    """Of the profile that the registry keeps, 0 for none: what `If-Match` takes, in quotation marks."""
    fault: str | None = None
    """Why the agent may do nothing, if it may not."""
    permission_at_most: Level | None = None
    """The lowest of all profiles."""
    allowed_modules: list[str] | str | None = None
    """Those that all profiles have; `*` for all."""
    tools: list[tuple[str, ...]] = Field(default=[])
    """The selectors of each profile that has some: a tool must be taken by each of them."""
    middleware: list[PlacedMiddleware] = Field(default=[])
    """In their order, the outermost first."""
    profiles: list[PlacedProfile] = Field(default=[])
    """All of them; the one of the settings first."""
    notes: list[str] = Field(default=[])
    """The parts of it that have no effect, in sentences; only where one agent is asked for."""


class AgentVersions(AnswerModel):
    """The versions of a profile that the registry keeps."""

    versions: list[ProfileVersion]
    """The latest first."""


class AgentList(AnswerModel):
    """All agents that have a profile."""

    agents: list[AgentOverview]
    """By name."""
    count: int
    """How many there are."""


class StoredVersion(AnswerModel):
    """The version that was stored."""

    version: int
    """Its number."""
    notes: list[str] | None = None
    """The parts of it that have no effect, in sentences."""


class ProfileRollback(BodyModel):
    """The version to put in force again."""

    version: int = Field(ge=1, le=2**53)
    """Its number."""


@operation("GET", _ALL, role="viewer", answers="By name.")
async def list_agents(asked: OperationRequest[None, None]) -> AgentList:
    """List the agents that have a profile, and what each may do at most."""
    agents = await asyncio.to_thread(agents_of, asked.settings)
    return AgentList(agents=agents, count=len(agents))


@operation("GET", _ONE, role="viewer", answers="The agent.", problems=(404,), is_versioned=True)
async def get_agent(asked: OperationRequest[None, None]) -> AgentOverview:
    """Return what an agent may do at most, and which profile says it."""
    name, settings = asked.path["name"], asked.settings
    found = await asyncio.to_thread(agent_of, name, settings)
    return found.model_copy(update={"notes": [note.text for note in await profile_notes(settings, name)]})


@operation("GET", f"{_ONE}/versions", role="viewer", answers="The latest first.", problems=(404,))
async def list_agent_versions(asked: OperationRequest[None, None]) -> AgentVersions:
    """List the last 20 versions of a profile in the registry."""
    found = await asyncio.to_thread(_in_store, asked.settings, lambda stored: stored.versions(asked.path["name"]))
    return AgentVersions(versions=found[::-1])


@operation("PUT", _ONE, role="admin", answers="It is in force.", problems=(409, 412), is_versioned=True)
async def put_agent(asked: OperationRequest[AgentProfile, None]) -> StoredVersion:
    """Store a profile in the registry, in the place of the one that is there."""
    name, profile, expected = asked.path["name"], asked.body, asked.expected_version
    try:
        profile.check_selectors()
    except ValueError as exc:
        raise OperationRefused(f"{exc}.") from exc
    version = await _changed(asked, "agent_put", lambda stored, by: stored.put(name, profile, by=by, expected=expected))
    notes = [note.text for note in await profile_notes(asked.settings, name)]
    return StoredVersion(version=version, notes=notes or None)


@operation(
    "POST", f"{_ONE}/rollback", role="admin", answers="It is in force.", problems=(404, 409, 412), is_versioned=True
)
async def roll_back_agent(asked: OperationRequest[ProfileRollback, None]) -> StoredVersion:
    """Put an earlier version of a profile in force again, as a new one."""
    name, earlier, expected = asked.path["name"], asked.body.version, asked.expected_version
    version = await _changed(
        asked,
        "agent_rolled_back",
        lambda stored, by: stored.rollback(name, earlier, by=by, expected=expected),
        to_version=earlier,
    )
    return StoredVersion(version=version)


@operation(
    "DELETE",
    _ONE,
    role="admin",
    answers="The registry has none any more; its versions are kept.",
    problems=(404, 409, 412),
    is_versioned=True,
)
async def remove_agent(asked: OperationRequest[None, None]) -> None:
    """Remove a profile from the registry."""
    name, expected = asked.path["name"], asked.expected_version
    await _changed(asked, "agent_removed", lambda stored, by: stored.remove(name, by=by, expected=expected))


async def _changed(
    asked: OperationRequest[B, None],
    kind: ChangeKind,
    change: Callable[[StoredProfiles, str], ProfileVersion],
    **facts: int,
) -> int:
    """Change the profiles in the registry, and return the new version. Agents have it at once, workers within two seconds.

    `change` takes the profiles, and the author as the versions name them. Raises as it does, and `RegistryAway` if the
    registry is not the fleet's.
    """
    settings, actor = asked.settings, asked.operator.actor
    by = actor.by if actor.user_id is None else f"{actor.user_id} ({actor.by})"
    async with asked.change(kind, asked.path["name"], **facts) as noted:
        if is_elsewhere(settings):  # else the lines of another fleet's registry would rule here
            async with fleets_registry(settings):
                pass
        made = await asyncio.to_thread(_in_store, settings, lambda stored: change(stored, by))
        noted.facts["version"] = made.version
    if is_elsewhere(settings):
        await _copy(settings)
    return made.version


async def _copy(settings: Settings) -> None:
    """Bring a change to the fleet's Redis. Fails open: it is stored, and the next refresh of the fleet does it."""
    try:
        async with settings.redis_client() as redis:
            await ProfileCopy(redis, settings).renew()
    except FleetUnavailable as exc:
        _log.warning("agent_profiles_not_copied", error=str(exc))


def _in_store(settings: Settings, work: Callable[[StoredProfiles], T]) -> T:
    """Use the store, which is synchronous, and limits the time of each answer itself."""
    with contextlib.closing(StoredProfiles.of(settings)) as stored:
        return work(stored)


def agents_of(settings: Settings) -> list[AgentOverview]:
    """All of them, by name, with what processes cannot apply of them. Synchronous; raises `FleetUnavailable`."""
    found = _in_store(settings, StoredProfiles.read)
    known = KnownProfiles(settings)
    known.take(
        {name: one.profile for name, one in found.items() if isinstance(one, ProfileVersion) and one.profile},
        versions={name: one.version for name, one in found.items() if isinstance(one, ProfileVersion)},
        refused={name: one for name, one in found.items() if isinstance(one, str)},
    )
    faults = _reported_faults(settings)
    return [_overview(name, known, settings, found.get(name), faults) for name in known.names]


def agent_of(name: str, settings: Settings) -> AgentOverview:
    """One of them. Raises as `agents_of`, and `NoSuchProfile`."""
    found = next((one for one in agents_of(settings) if one.name == name), None)
    if found is None:
        raise NoSuchProfile(f"Neither the settings nor the registry have a profile of agent {name[:80]!r}.")
    return found


class ProfileNote(NamedTuple):
    """A part of a profile that has no effect: a sentence, and why it matters."""

    text: str
    why: str


async def profile_notes(settings: Settings, name: str | None = None) -> list[ProfileNote]:
    """Say what does not act in the profiles of each agent, or of one: selectors without a tool, and retries that are never made.

    Fails open: where the fleet does not answer, nothing is said.
    """
    try:
        agents = await asyncio.to_thread(agents_of, settings)
        async with operating(settings) as operator:
            tools = await operator.tools()
    except FleetError:
        return []
    profiles = [(one.name, placed.profile) for one in agents if name in {None, one.name} for placed in one.profiles]
    unmatched = [note for each in profiles for note in _unmatched(*each, tools)]
    repeats = [said for each in profiles if (said := _unrepeated(*each, tools)) is not None]
    return list(dict.fromkeys([*unmatched, *(ProfileNote(said, _ONCE) for said in repeats)]))


def _unmatched(name: str, profile: AgentProfile, tools: Sequence[ToolDefinition]) -> Iterator[ProfileNote]:
    for selector in profile.selectors:
        meant = selector.removeprefix("!")
        if any(selects((meant,), tool.names, tool.tags) for tool in tools):
            continue
        last = meant.rpartition(".")[2]
        named = [tool.name for tool in tools if tool.name.rpartition(".")[2] == last]
        near = named[:3] or difflib.get_close_matches(meant, [tool.name for tool in tools])
        text = f"{selector!r} in the profile of agent {name!r} matches no tool that the fleet knows now"
        yield ProfileNote(f"{text}; did you mean {' or '.join(near)}?" if near else f"{text}.", _NO_TOOL)


def _unrepeated(name: str, profile: AgentProfile, tools: Iterable[ToolDefinition]) -> str | None:
    retries = [spec for spec in profile.middleware if isinstance(spec, ToolRetrySpec) and spec.max_retries]
    selected = {
        tool.name: effect_of(tool)
        for tool in tools
        if profile.takes(tool)
        and reaches(tool.name.partition(".")[0], profile.allowed_modules)
        and any(selects(spec.tools, tool.names, tool.tags) for spec in retries if not spec.undeclared)
    }
    undeclared = sum(effect is None for effect in selected.values())
    return (
        f"{undeclared} of the {len(selected)} tools in the tool_retry of agent {name!r} declare no effect, and are never repeated: "
        f"{UNDECLARED_LINES}."
        if undeclared
        else None
    )


_NO_TOOL = "The rest of the profile holds without it: a tool may be missing, or a rule stand around none."
_ONCE = "Calls of them are made once, however often the profile says."


def _overview(
    name: str, known: KnownProfiles, settings: Settings, stored: ProfileVersion | str | None, faults: Mapping[str, str]
) -> AgentOverview:
    placed = list(_placed(name, settings, stored))
    version = stored.version if isinstance(stored, ProfileVersion) else 0
    if (fault := known.fault(name) or faults.get(f"{name} {version}")) is not None:
        return AgentOverview(name=name, version=version, fault=fault, profiles=placed)
    effective = EffectiveProfile(name, [NamedProfile(name, one.place, one.profile) for one in placed])
    left = effective.narrowed(Caller(permission="owner", allowed_modules="*"), frozenset())
    modules = left.allowed_modules
    return AgentOverview(
        name=name,
        version=version,
        permission_at_most=left.permission,
        allowed_modules=sorted(modules) if isinstance(modules, frozenset) else modules,
        tools=[one.profile.tools for one in placed if one.profile.tools is not None],
        middleware=[
            PlacedMiddleware(place=one.place, spec=spec.model_dump(mode="json", exclude_defaults=True))
            for one in placed
            for spec in one.profile.middleware
        ],
        profiles=placed,
    )


def _reported_faults(settings: Settings) -> dict[str, str]:
    """Return the faults that processes of the fleet have reported, by name and version.

    Fails open: they are additional information.
    """
    try:
        with sync_client(fleet_url(settings.redis_url), master=settings.sentinel_master, timeout_seconds=2) as redis:
            found: Any = redis.hgetall(settings.keys.registry.agent_faults)
    except (RedisError, OSError, SettingsError):
        return {}
    return {_text(name): _text(fault) for name, fault in found.items()}


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _placed(name: str, settings: Settings, stored: ProfileVersion | str | None) -> Iterator[PlacedProfile]:
    if (configured := settings.agents.get(name)) is not None:
        yield PlacedProfile(place=setting_place(("agents", name), start=Path.cwd()), profile=configured)
    if isinstance(stored, ProfileVersion) and stored.profile is not None:
        place = f"registry, version {stored.version}"
        yield PlacedProfile(place=place, profile=stored.profile, at=stored.at, by=stored.by)
