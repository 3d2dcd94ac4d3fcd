"""Tells of each rule that has a say in a call: whether it lets the call pass, and where it stands.

It decides nothing by itself: each rule is asked as it is where calls are judged, and the whole by `Catalog.usable`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from toolfleet_registry.agents.known_profiles import KnownProfiles
from toolfleet_registry.agents.profile_rules import EffectiveProfile, NamedProfile, selected
from toolfleet_registry.config.agent_profile import (
    GateSpec,
    HumanInTheLoopSpec,
    MiddlewareBase,
    ToolRetrySpec,
    selects,
)
from toolfleet_registry.config.run_file import unknown_module
from toolfleet_registry.config.setting_sources import setting_place
from toolfleet_registry.contracts import Caller, ToolDefinition
from toolfleet_registry.contracts.limits import limits_in
from toolfleet_registry.contracts.message import DEFERS_BUILD
from toolfleet_registry.contracts.names import ToolName
from toolfleet_registry.errors import InvalidToolName, UnknownAgent
from toolfleet_registry.manifests.manifest_cache import SeenTool
from toolfleet_registry.permissions import module_denial, permits, reaches, tool_denial
from toolfleet_registry.policy.call_faults import modules_of
from toolfleet_registry.policy.hints import UNDECLARED_LINES
from toolfleet_registry.policy.turns import words_of
from toolfleet_registry.settings import Settings
from toolfleet_registry.specs import effect_of

Subject = Literal[
    "name",
    "module",
    "agent",
    "reach",
    "permission",
    "open",
    "tools",
    "limits",
    "gate",
    "approval",
    "pii",
    "retry",
    "own",
]
"""What a rule is about, in the order in which calls are judged."""

_ORDER: tuple[Subject, ...] = ("limits", "gate", "approval", "pii", "retry", "own")
_SUBJECTS: dict[str, Subject] = {
    "tool_call_limit": "limits",
    "limits": "limits",
    "gate": "gate",
    "human_in_the_loop": "approval",
    "pii": "pii",
    "tool_retry": "retry",
}


class ToolRule(BaseModel):
    """One rule that has a say."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True, defer_build=DEFERS_BUILD)

    about: Subject
    """What it is about."""
    passes: bool
    """Whether it lets the call pass, or get on to what it asks for."""
    says: str
    """What it says, in a sentence."""
    place: str
    """Where it stands: a line of a file, a variable, a version in the registry, the module's manifest, the caller."""


class ToolExplanation(BaseModel):
    """Why a caller may call a tool, or may not."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True, defer_build=DEFERS_BUILD)

    tool_name: str
    """The tool."""
    caller: Caller
    """Who asks."""
    is_allowed: bool
    """Whether a call would be published, as far as its arguments, a gate and people have nothing against it."""
    reason: str | None = None
    """What the call is refused with."""
    rules: tuple[ToolRule, ...] = ()
    """Those that have a say, in their order; the first that does not pass decides."""

    @property
    def decided_by(self) -> ToolRule | None:
        """The first rule that does not pass."""
        return next((rule for rule in self.rules if not rule.passes), None)

    def for_outsiders(self) -> "ToolExplanation":
        """Return what callers who are no operators may see: nothing that comes after the deciding rule."""
        decided = self.decided_by
        if decided is None:
            return self
        return self.model_copy(update={"rules": self.rules[: self.rules.index(decided) + 1]})


@dataclass(frozen=True, slots=True)
class ExplainedTool:
    """The tool that is asked about: `seen` as it is in effect, if it is; `is_served`: whether there is its module."""

    name: str
    is_served: bool
    seen: SeenTool | None


def rules_about(tool: ExplainedTool, caller: Caller, profiles: KnownProfiles, settings: Settings) -> Iterator[ToolRule]:
    """Yield the rules that apply, in the order of the checks."""
    try:
        module = ToolName.parse(tool.name).module
    except InvalidToolName as exc:
        yield ToolRule(about="name", passes=False, says=str(exc), place="the call")
        return
    known = f"There is a module {module!r}." if tool.is_served else unknown_module(module, settings.redis_url)
    yield ToolRule(about="module", passes=tool.is_served, says=known, place="the directory of modules")
    try:
        profile = profiles.of(caller)
    except UnknownAgent as exc:
        place = _settings_place("default_agent") if caller.agent is None else "the caller"
        yield ToolRule(about="agent", passes=False, says=str(exc), place=place)
        return
    named = () if profile is None else profile.profiles
    yield from _agents(profile, caller)
    yield from _reaches(module, caller, named, settings)
    if tool.seen is None:
        says = f"Nothing is offered as {tool.name!r}, as far as is known."
        yield ToolRule(about="open", passes=False, says=says, place="the module's manifest")
        return
    yield from _permissions(tool.seen, caller, named)
    yield _openness(tool.seen)
    yield from _selections(tool.seen.definition, named)
    yield from _surroundings(tool.seen.definition, named, settings)


def _agents(profile: EffectiveProfile | None, caller: Caller) -> Iterator[ToolRule]:
    if profile is None:
        return
    place = _settings_place("default_agent") if caller.agent is None else "the caller"
    says = (
        f"The caller is agent {profile.agent!r}, with {len(profile.profiles)} profiles, each of which takes something."
    )
    yield ToolRule(about="agent", passes=True, says=says, place=place)


def _reaches(module: str, caller: Caller, named: Sequence[NamedProfile], settings: Settings) -> Iterator[ToolRule]:
    modules = modules_of(caller, settings.default_guest_modules)
    passes = reaches(module, modules) or module in settings.open_modules
    is_guests = caller.allowed_modules is None and modules != "*"
    yield ToolRule(
        about="reach",
        passes=passes,
        says=f"The caller reaches module {module!r}." if passes else module_denial(module),
        place=_settings_place("default_guest_modules") if is_guests else "the caller",
    )
    for one in named:
        if one.profile.allowed_modules != "*":
            passes = reaches(module, one.profile.allowed_modules) or module in settings.open_modules
            says = f"Agent {one.agent!r} {'reaches' if passes else 'does not reach'} module {module!r}."
            yield ToolRule(about="reach", passes=passes, says=says, place=_place(one, "allowed_modules"))


def _permissions(tool: SeenTool, caller: Caller, named: Sequence[NamedProfile]) -> Iterator[ToolRule]:
    required = tool.access.required_permission
    passes = permits(caller.permission, required)
    says = f"It needs {required!r}, and the caller is {caller.permission!r}."
    denied = tool_denial(tool.access.tool_name, caller.permission, required)
    yield ToolRule(about="permission", passes=passes, says=says if passes else denied, place="the module's manifest")
    for one in named:
        most = one.profile.permission_at_most
        if most != "owner":
            says = f"Agent {one.agent!r} is at most {most!r}, and the tool needs {required!r}."
            yield ToolRule(
                about="permission", passes=permits(most, required), says=says, place=_place(one, "permission_at_most")
            )


def _openness(tool: SeenTool) -> ToolRule:
    closed = tool.access.closed
    says = closed or "It is neither disabled nor withheld."
    return ToolRule(about="open", passes=closed is None, says=says, place="the registry")


def _selections(tool: ToolDefinition, named: Sequence[NamedProfile]) -> Iterator[ToolRule]:
    for one in named:
        if one.profile.tools is not None:
            passes = one.profile.takes(tool)
            says = f"Tool {tool.name!r} is {'' if passes else 'not '}among those of agent {one.agent!r}."
            yield ToolRule(about="tools", passes=passes, says=says, place=_place(one, "tools"))


def _surroundings(tool: ToolDefinition, named: Sequence[NamedProfile], settings: Settings) -> Iterator[ToolRule]:
    """Yield the limits and approvals that apply once the caller may use the tool; none of them decides access."""
    found = [*_of_tool(tool, settings), *_of_profiles(tool, named)]
    yield from sorted(found, key=lambda rule: _ORDER.index(rule.about))


def _of_tool(tool: ToolDefinition, settings: Settings) -> Iterator[ToolRule]:
    words = ", ".join(f"{name}={value}" for name, value in limits_in(tool).items())
    if words:
        yield ToolRule(
            about="limits", passes=True, says=f"Its calls are limited: {words}.", place="the module's manifest"
        )
    if turns := words_of(tool):
        place = "the module's manifest, or settings"
        yield ToolRule(about="limits", passes=True, says=f"Its calls run {turns}.", place=place)
    if tool.cost in settings.cost_budgets:
        says = f"A user has {settings.cost_budgets[tool.cost]} calls a day of {tool.cost!r} tools."
        yield ToolRule(about="limits", passes=True, says=says, place=_settings_place("cost_budgets"))
    if tool.approval:
        says = "People have to approve each call before it begins."
        yield ToolRule(about="approval", passes=True, says=says, place="the module's manifest, or settings")
    if tool.requires_gate:
        yield ToolRule(about="gate", passes=True, says="The agent's gate is asked.", place="the module's manifest")


def _of_profiles(tool: ToolDefinition, named: Sequence[NamedProfile]) -> Iterator[ToolRule]:
    for one in named:
        for place, spec in enumerate(one.profile.middleware):
            if spec in selected(one, tool) and _counts(spec, tool):
                name = str(getattr(spec, "name", ""))
                yield ToolRule(
                    about=_SUBJECTS.get(name, "own"),
                    passes=True,
                    says=_said(name, spec, tool),
                    place=_place(one, "middleware", place),
                )


def _counts(spec: MiddlewareBase, tool: ToolDefinition) -> bool:
    return not isinstance(spec, HumanInTheLoopSpec) or selects(spec.approve_tools, tool.names, tool.tags)


def _said(name: str, spec: MiddlewareBase, tool: ToolDefinition) -> str:
    if isinstance(spec, GateSpec):
        otherwise = "is refused" if spec.fails == "closed" else "is made"
        return f"The agent's gate is asked; a call whose gate fails, is late, or is not there, {otherwise}."
    given = spec.model_dump(mode="json", exclude_defaults=True, exclude={"name", "tools", "approve_tools"})
    words = ", ".join(f"{field}={value!r}" for field, value in given.items())
    said = f"{name}({words}) stands around its calls."
    is_never_repeated = isinstance(spec, ToolRetrySpec) and not spec.undeclared and effect_of(tool) is None
    return (
        f"{said} The tool declares no effect, and is never repeated: {UNDECLARED_LINES}." if is_never_repeated else said
    )


def _place(named: NamedProfile, *path: str | int) -> str:
    if named.place != "settings":
        return named.place
    return setting_place(("agents", named.agent, *path), start=Path.cwd())


def _settings_place(name: str) -> str:
    return setting_place((name,), start=Path.cwd())
