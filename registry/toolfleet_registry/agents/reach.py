"""Decides whether a caller may use a tool: by its permission and modules, and by what its agent's profile leaves of them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from toolfleet_registry.agents.effective_profile import EffectiveProfile
from toolfleet_registry.agents.known_profiles import KnownProfiles
from toolfleet_registry.contracts import Caller, ToolDefinition
from toolfleet_registry.manifests.overrides import SeenTool
from toolfleet_registry.permissions import Modules, denial
from toolfleet_registry.policy.reach import modules_of


@dataclass(frozen=True, slots=True)
class Reach:
    """What a caller reaches who asks now. `caller` is the one that is left by the `profile`, if it has one."""

    caller: Caller
    modules: Modules
    profile: EffectiveProfile | None

    def denial(self, tool: SeenTool) -> str | None:
        """Why the caller may not use the tool; `None`: they may."""
        reason = denial(tool.access, self.caller.permission, self.modules)
        if reason is not None or self.profile is None:
            return reason
        return self.profile.denial(tool.definition)

    def hides(self, tool: SeenTool) -> bool:
        """Whether the caller must not tell the tool from one that does not exist: that one is closed to all is no secret."""
        opened = replace(tool.access, closed=None)
        if denial(opened, self.caller.permission, self.modules) is not None:
            return True
        return self.profile is not None and self.profile.denial(tool.definition) is not None

    def among(self, tools: Iterable[ToolDefinition]) -> list[ToolDefinition]:
        """Those of tools that the caller reaches by permission and modules that its profile takes, too."""
        if self.profile is None:
            return list(tools)
        return [tool for tool in tools if self.profile.denial(tool) is None]


def reach_of(caller: Caller, profiles: KnownProfiles, guest_modules: frozenset[str]) -> Reach:
    """What the caller reaches. Raises `UnknownAgent`."""
    profile = profiles.of(caller)
    if profile is not None:
        caller = profile.narrowed(caller, guest_modules)
    return Reach(caller, modules_of(caller, guest_modules), profile)
