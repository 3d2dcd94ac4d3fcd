"""Shows the profiles of agents, in the settings and in the registry, and which parts are in effect."""

import asyncio
import contextlib
import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict
from redis.exceptions import RedisError

from toolfleet_registry.agents.effective_profile import EffectiveProfile
from toolfleet_registry.agents.known_profiles import KnownProfiles
from toolfleet_registry.agents.stored.entries import ProfileVersion
from toolfleet_registry.agents.stored.profiles import StoredProfiles
from toolfleet_registry.agents.tool_rules import NamedProfile
from toolfleet_registry.catalog.operator import operating
from toolfleet_registry.config.agents.agent_profile import AgentProfile
from toolfleet_registry.config.agents.middleware_specs import ToolRetrySpec
from toolfleet_registry.config.agents.tool_selectors import selects
from toolfleet_registry.config.setting_sources import setting_place
from toolfleet_registry.contracts import Caller, Level, ToolDefinition
from toolfleet_registry.errors import FleetError, NoSuchProfile, SettingsError
from toolfleet_registry.manifests.effects import effect_of
from toolfleet_registry.permissions import reaches
from toolfleet_registry.policy.hints import UNDECLARED_LINES
from toolfleet_registry.redis.servers import sync_client
from toolfleet_registry.redis.urls import fleet_url
from toolfleet_registry.settings import Settings


class _Shown(BaseModel):
    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class PlacedProfile(_Shown):
    """One profile of an agent, and where it stands."""

    place: str
    """A line of a file, a variable, or `registry, version 3`."""
    profile: AgentProfile
    """What it says."""
    at: float | None = None
    """When it was stored, in seconds since the epoch, if it is in the registry."""
    by: str | None = None
    """Who has stored it."""


class PlacedMiddleware(_Shown):
    """One entry of what stands around an agent's calls."""

    place: str
    """Where its profile stands."""
    spec: dict[str, Any]
    """What it says."""


class AgentOverview(_Shown):
    """What an agent may do at most: all of its profiles hold together."""

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
    tools: list[tuple[str, ...]] = []
    """The selectors of each profile that has some: a tool must be taken by each of them."""
    middleware: list[PlacedMiddleware] = []
    """In their order, the outermost first."""
    profiles: list[PlacedProfile] = []
    """All of them; the one of the settings first."""
    notes: list[str] = []
    """The parts of it that have no effect, in sentences; only where one agent is asked for."""


class AgentVersions(_Shown):
    """The versions of a profile that the registry keeps."""

    versions: list[ProfileVersion]
    """The latest first."""


class AgentList(_Shown):
    """All agents that have a profile."""

    agents: list[AgentOverview]
    """By name."""
    count: int
    """How many there are."""


def agents_of(settings: Settings) -> list[AgentOverview]:
    """All of them, by name, with what processes cannot apply of them. Synchronous; raises `FleetUnavailable`."""
    with contextlib.closing(StoredProfiles.of(settings)) as stored:
        found = stored.read()
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


def versions_of(name: str, settings: Settings) -> AgentVersions:
    """Return the versions that the registry keeps of one agent.

    Synchronous; raises `FleetUnavailable` and `NoSuchProfile`.
    """
    with contextlib.closing(StoredProfiles.of(settings)) as stored:
        return AgentVersions(versions=stored.versions(name)[::-1])


class ProfileNote(NamedTuple):
    """A part of a profile that has no effect: a sentence, and why it matters."""

    text: str
    why: str


async def shown_agent(name: str, settings: Settings) -> AgentOverview:
    """Return one of them with its notes. Raises as `agent_of`."""
    found = await asyncio.to_thread(agent_of, name, settings)
    return found.model_copy(update={"notes": [note.text for note in await profile_notes(settings, name)]})


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
