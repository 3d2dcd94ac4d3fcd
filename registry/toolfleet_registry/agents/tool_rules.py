"""Combines what an agent's profiles say of one tool: where several do, the strictest counts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from toolfleet_registry.config.agents.agent_profile import AgentProfile
from toolfleet_registry.config.agents.middleware_specs import (
    GateSpec,
    HumanInTheLoopSpec,
    LimitsSpec,
    MiddlewareBase,
    OwnMiddlewareSpec,
    PiiSpec,
    ToolCallLimitSpec,
    ToolRetrySpec,
)
from toolfleet_registry.config.agents.tool_selectors import selects
from toolfleet_registry.contracts import Terms, ToolDefinition
from toolfleet_registry.policy.limits import strictest

S = TypeVar("S", bound=MiddlewareBase)


@dataclass(frozen=True, slots=True)
class NamedProfile:
    """A profile, by which agent's name, and where it stands: a line of a file, or the registry."""

    agent: str
    place: str
    profile: AgentProfile


@dataclass(frozen=True, slots=True)
class ToolRules:
    """What holds for an agent's calls of one tool. `refused_by`: the first profile that does not take the tool."""

    refused_by: NamedProfile | None = None
    retry: ToolRetrySpec | None = None
    terms: Terms | None = None
    gate_fails_closed: bool = False
    call_limits: tuple[ToolCallLimitSpec, ...] = ()
    personal_data: tuple[PiiSpec, ...] = ()
    approvals: tuple[HumanInTheLoopSpec, ...] = ()
    own: tuple[OwnMiddlewareSpec, ...] = ()


NO_RULES = ToolRules()
"""For callers without a profile."""


def rules_of(profiles: Sequence[NamedProfile], tool: ToolDefinition) -> ToolRules:
    """What these profiles say of the tool, all of them together."""
    gates = _specs(profiles, GateSpec, tool)
    return ToolRules(
        refused_by=next((named for named in profiles if not named.profile.takes(tool)), None),
        retry=min(_specs(profiles, ToolRetrySpec, tool), key=lambda spec: spec.max_retries, default=None),
        terms=_terms(_specs(profiles, LimitsSpec, tool), is_gated=bool(gates)),
        gate_fails_closed=any(gate.fails == "closed" for gate in gates),
        call_limits=tuple(dict.fromkeys(_specs(profiles, ToolCallLimitSpec, tool))),
        personal_data=tuple(_specs(profiles, PiiSpec, tool)),
        approvals=tuple(
            spec
            for spec in _specs(profiles, HumanInTheLoopSpec, tool)
            if selects(spec.approve_tools, tool.name, tool.tags)
        ),
        own=tuple(_specs(profiles, OwnMiddlewareSpec, tool)),
    )


def selected(named: NamedProfile, tool: ToolDefinition) -> list[MiddlewareBase]:
    """What stands around calls of the tool by one profile, the outermost first."""
    return [spec for spec in named.profile.middleware if selects(spec.tools, tool.name, tool.tags)]


def _specs(profiles: Sequence[NamedProfile], kind: type[S], tool: ToolDefinition) -> list[S]:
    return [spec for named in profiles for spec in selected(named, tool) if isinstance(spec, kind)]


def _terms(limits: Sequence[LimitsSpec], *, is_gated: bool) -> Terms | None:
    terms = Terms(requires_gate=True) if is_gated else None
    for spec in limits:
        said = Terms(cooldown_seconds=spec.cooldown_seconds, daily_limit=spec.daily_limit, cost=spec.cost)
        terms = strictest(terms, said)
    return terms
