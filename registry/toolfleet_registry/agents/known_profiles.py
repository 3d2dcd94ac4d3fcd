"""Finds the profile of an agent, in memory, and decides whether a caller may use a tool."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from toolfleet_registry.agents.data_guards import DataGuards
from toolfleet_registry.agents.own_classes import OwnClasses
from toolfleet_registry.agents.profile_rules import EffectiveProfile, NamedProfile
from toolfleet_registry.config.agent_profile import AGENT_NAME, AgentProfile, PiiSpec
from toolfleet_registry.contracts import Caller, ToolDefinition
from toolfleet_registry.contracts.calls import CONVERSATION, USER
from toolfleet_registry.errors import UnknownAgent
from toolfleet_registry.manifests.manifest_cache import SeenTool
from toolfleet_registry.permissions import Modules, denial
from toolfleet_registry.policy.call_faults import modules_of
from toolfleet_registry.settings import Settings

MOST_AGENTS = 8
"""In one name, from the first to the one that asks: `primary/subagent`."""

_NO_VERSIONS: Mapping[str, int] = MappingProxyType({})
_NOTHING_REFUSED: Mapping[str, str] = MappingProxyType({})
_NAME = re.compile(AGENT_NAME)
_MOST_KEPT = 1_000  # effective profiles: agents' names, and chains of them

_MISPLACED = {
    "subagent": "{name!r} is a subagent, so it stands behind another: 'primary/{name}'",
    "primary": "{name!r} is a primary agent, so none stands before it",
}


class KnownProfiles:
    """The agents' profiles that one process knows. `take` adds those of the registry; all other methods only read.

    `own` are the classes of operators that run in this process, as profiles name them; `None`: none do.
    """

    def __init__(self, settings: Settings, *, own: OwnClasses | None = None) -> None:
        self._configured = settings.agents
        self._default = settings.default_agent
        self.guards = DataGuards(settings)
        """What hides personal data as profiles say."""
        self.own = own
        """What runs the classes that profiles name."""
        self._stored: Mapping[str, AgentProfile] = {}
        self._versions, self._refused = _NO_VERSIONS, _NOTHING_REFUSED
        self._made = dict[str, EffectiveProfile]()
        self.revision = object()
        """Another object after each change."""
        self.is_empty = not (self._configured or self._default)
        """Whether there are no profiles, and none is needed."""

    @property
    def names(self) -> list[str]:
        """The agents that have a profile, also one that does not count, sorted."""
        return sorted({*self._configured, *self._stored, *self._refused})

    def take(
        self,
        stored: Mapping[str, AgentProfile],
        *,
        versions: Mapping[str, int] = _NO_VERSIONS,
        refused: Mapping[str, str] = _NOTHING_REFUSED,
    ) -> None:
        """Take over what the registry keeps now, and its `versions`. `refused`: why what it keeps of others counts for nothing."""
        if (stored, versions, refused) == (self._stored, self._versions, self._refused):
            return
        self._stored, self._versions, self._refused = dict(stored), dict(versions), dict(refused)
        self._made, self.revision = {}, object()
        self.is_empty = not (self._configured or self._stored or self._refused or self._default)

    def fault_here(self, profile: AgentProfile) -> str | None:
        """Return why a profile cannot be applied in this process, or `None` if it can.

        Imports the classes that it names.
        """
        own = None if self.own is None else self.own.fault(profile)
        return own or self.guards.fault(profile)

    def fault(self, name: str) -> str | None:
        """Return why the registry's profile of an agent is ignored here, or `None` if it is in effect or there is none."""
        return self._refused.get(name)

    def of(self, caller: Caller) -> EffectiveProfile | None:
        """Return the caller's profile; `None` for one that names no agent, where none is the default. Raises `UnknownAgent`."""
        agent = caller.agent or self._default
        if agent is None:
            return None
        found = self._made.get(agent)
        if found is None:
            made = self._made  # `take` may come meanwhile
            found = EffectiveProfile(agent, list(self._named(agent)))
            if len(made) >= _MOST_KEPT:
                made.clear()
                self.revision = object()  # so that no copy is kept elsewhere
            made[agent] = found
        return found

    def shown_ids(self, caller: Caller, user_id: str | None, conversation_id: str | None) -> dict[str, str]:
        """Return how audit and logs name a caller's user and conversation; nothing where no profile hides personal data.

        Which tool is called does not matter: a user has one name there.
        """
        if not (specs := self.personal_data(caller)):  # nearly every call
            return {}
        ids = {USER: user_id, CONVERSATION: conversation_id}
        return {name: self.guards.shown_id(specs, name, value) for name, value in ids.items() if value}

    def personal_data(self, caller: Caller) -> tuple[PiiSpec, ...]:
        """Return the kinds of personal data to hide for the caller's agent, in any tool; empty for an agent that may call none."""
        try:
            profile = None if self.is_empty else self.of(caller)
        except UnknownAgent:
            profile = None
        return () if profile is None else profile.personal_data

    def _named(self, agent: str) -> Iterator[NamedProfile]:
        names = agent.split("/")
        if len(names) > MOST_AGENTS:
            raise UnknownAgent(agent, f"{MOST_AGENTS} agents at most stand one behind the other")
        for place, name in enumerate(names):
            if (fault := self._refused.get(name)) is not None:
                raise UnknownAgent(agent, f"its profile in the registry does not count: {fault}")
            found = list(self._profiles(name)) if _NAME.fullmatch(name) else []
            if not found:
                raise UnknownAgent(agent, f"there is no profile of {name[:80]!r}")
            wrong = "subagent" if place == 0 else "primary"
            if any(each.profile.mode == wrong for each in found):
                raise UnknownAgent(agent, _MISPLACED[wrong].format(name=name))
            yield from found

    def _profiles(self, name: str) -> Iterator[NamedProfile]:
        if (configured := self._configured.get(name)) is not None:
            yield NamedProfile(name, "settings", configured)
        if (stored := self._stored.get(name)) is not None:
            version = self._versions.get(name)
            yield NamedProfile(name, "registry" if version is None else f"registry, version {version}", stored)


@dataclass(frozen=True, slots=True)
class Reach:
    """The tools that a caller can use now. `caller` is the caller as narrowed by the `profile`, if there is one."""

    caller: Caller
    modules: Modules
    profile: EffectiveProfile | None

    def denial(self, tool: SeenTool) -> str | None:
        """Return why the caller may not use the tool, or `None` if it may."""
        reason = denial(tool.access, self.caller.permission, self.modules)
        if reason is not None or self.profile is None:
            return reason
        return self.profile.denial(tool.definition)

    def hides(self, tool: SeenTool) -> bool:
        """Return whether the tool must look nonexistent to the caller.

        A tool that is closed to all callers is no secret.
        """
        opened = replace(tool.access, closed=None)
        if denial(opened, self.caller.permission, self.modules) is not None:
            return True
        return self.profile is not None and self.profile.denial(tool.definition) is not None

    def among(self, tools: Iterable[ToolDefinition]) -> list[ToolDefinition]:
        """Return the tools that the caller's profile allows, of tools that its permission and modules allow."""
        if self.profile is None:
            return list(tools)
        return [tool for tool in tools if self.profile.denial(tool) is None]


def reach_of(
    caller: Caller, profiles: KnownProfiles, guest_modules: frozenset[str], open_modules: frozenset[str] = frozenset()
) -> Reach:
    """Return what the caller can reach, with modules that are open to all. Raises `UnknownAgent`."""
    profile = profiles.of(caller)
    if profile is not None:
        caller = profile.narrowed(caller, guest_modules)
    modules = modules_of(caller, guest_modules)
    if open_modules and modules != "*":
        modules |= open_modules
    return Reach(caller, modules, profile)
