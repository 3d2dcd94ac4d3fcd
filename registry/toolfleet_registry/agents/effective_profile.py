"""Narrows what a caller may do to what its agent's profiles leave of it."""

from collections.abc import Sequence

from toolfleet_registry.agents.tool_rules import NamedProfile, ToolRules, rules_of
from toolfleet_registry.config.agents.middleware_specs import PiiSpec
from toolfleet_registry.contracts import Caller, ToolDefinition
from toolfleet_registry.permissions import Modules, level_of_caller
from toolfleet_registry.policy.reach import modules_of

_MOST_TOOLS = 20_000  # whose rules are kept; those of one take some µs to make


class EffectiveProfile:
    """The combined rules of all profiles of one agent; `digest` changes with the rules. Immutable."""

    def __init__(self, agent: str, profiles: Sequence[NamedProfile]) -> None:
        self.agent = agent
        self.profiles = tuple(profiles)
        self.digest = "+".join(named.profile.digest for named in profiles)
        specs = (spec for named in profiles for spec in named.profile.middleware)
        self.personal_data = tuple(spec for spec in specs if isinstance(spec, PiiSpec))
        self._rules = dict[str, tuple[ToolDefinition, ToolRules]]()

    def narrowed(self, caller: Caller, guest_modules: frozenset[str]) -> Caller:
        """The caller with no more than the profiles leave, and with this agent's name."""
        permission, modules = caller.permission, modules_of(caller, guest_modules)
        for named in self.profiles:
            permission = min(permission, named.profile.permission_at_most, key=level_of_caller)
            modules = _shared(modules, named.profile.allowed_modules)
        return caller.model_copy(update={"permission": permission, "allowed_modules": modules, "agent": self.agent})

    def rules(self, tool: ToolDefinition) -> ToolRules:
        """Return the rules for calls of the tool."""
        known = self._rules.get(tool.name)
        if known is not None and known[0] is tool:
            return known[1]
        if len(self._rules) >= _MOST_TOOLS:
            self._rules.clear()
        made = rules_of(self.profiles, tool)
        self._rules[tool.name] = tool, made
        return made

    def denial(self, tool: ToolDefinition) -> str | None:
        """Return why the agent may not use the tool, or `None` if its profiles allow it."""
        named = self.rules(tool).refused_by
        return None if named is None else f"Tool {tool.name!r} is not among those of agent {named.agent!r}."


def _shared(one: Modules, other: Modules) -> Modules:
    if one == "*" or other == "*":
        return other if one == "*" else one
    return frozenset(one) & frozenset(other)
