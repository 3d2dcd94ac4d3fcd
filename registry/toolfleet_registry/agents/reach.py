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


def reach_of(caller: Caller, profiles: KnownProfiles, guest_modules: frozenset[str]) -> Reach:
    """Return what the caller can reach. Raises `UnknownAgent`."""
    profile = profiles.of(caller)
    if profile is not None:
        caller = profile.narrowed(caller, guest_modules)
    return Reach(caller, modules_of(caller, guest_modules), profile)
