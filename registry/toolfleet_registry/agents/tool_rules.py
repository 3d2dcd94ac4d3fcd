"""Combines what an agent's profiles say of one tool: where several do, the strictest counts."""

import hashlib
import json
from collections.abc import Iterator, Sequence
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
from toolfleet_registry.contracts import RetryTerms, Terms, ToolDefinition
from toolfleet_registry.contracts.terms import CallTotal
from toolfleet_registry.policy.limits import fewest_retries, lowest, strictest

S = TypeVar("S", bound=MiddlewareBase)


@dataclass(frozen=True, slots=True)
class NamedProfile:
    """A profile, by which agent's name, and where it stands: a line of a file, or the registry."""

    agent: str
    place: str
    profile: AgentProfile


@dataclass(frozen=True, slots=True)
class ToolRules:
    """The rules for an agent's calls of one tool. `refused_by`: the first profile that does not allow the tool.

    `terms` add to the tool's own, with the total calls of a run and a thread; `call_limits` are the entries that set
    these totals.
    """

    refused_by: NamedProfile | None = None
    retry: RetryTerms | None = None
    terms: Terms | None = None
    gate_fails_closed: bool = False
    call_limits: tuple[ToolCallLimitSpec, ...] = ()
    personal_data: tuple[PiiSpec, ...] = ()
    approvals: tuple[HumanInTheLoopSpec, ...] = ()
    own: tuple[OwnMiddlewareSpec, ...] = ()


NO_RULES = ToolRules()
"""For callers without a profile."""


def rules_of(profiles: Sequence[NamedProfile], tool: ToolDefinition) -> ToolRules:
    """Return the combined rules of these profiles for the tool."""
    gates = _specs(profiles, GateSpec, tool)
    return ToolRules(
        refused_by=next((named for named in profiles if not named.profile.takes(tool)), None),
        retry=_retry(_specs(profiles, ToolRetrySpec, tool)),
        terms=_terms(_specs(profiles, LimitsSpec, tool), lowest(_totals(profiles, tool)), is_gated=bool(gates)),
        gate_fails_closed=any(gate.fails == "closed" for gate in gates),
        call_limits=tuple(dict.fromkeys(_specs(profiles, ToolCallLimitSpec, tool))),
        personal_data=tuple(_specs(profiles, PiiSpec, tool)),
        approvals=tuple(
            spec
            for spec in _specs(profiles, HumanInTheLoopSpec, tool)
            if selects(spec.approve_tools, tool.names, tool.tags)
        ),
        own=tuple(_specs(profiles, OwnMiddlewareSpec, tool)),
    )


def selected(named: NamedProfile, tool: ToolDefinition) -> list[MiddlewareBase]:
    """Return the middleware of one profile around calls of the tool, the outermost first."""
    return [spec for spec in named.profile.middleware if selects(spec.tools, tool.names, tool.tags)]


def _specs(profiles: Sequence[NamedProfile], kind: type[S], tool: ToolDefinition) -> list[S]:
    return [spec for named in profiles for spec in selected(named, tool) if isinstance(spec, kind)]


def _retry(specs: Sequence[ToolRetrySpec]) -> RetryTerms | None:
    found: RetryTerms | None = None
    for spec in specs:
        said = spec.model_dump(exclude={"name", "tools", "retry_on"})
        codes = None if spec.retry_on is None else tuple(sorted(spec.retry_on))
        terms = RetryTerms(**said, retry_on=codes)
        found = terms if found is None else fewest_retries(found, terms)
    return found


def _totals(profiles: Sequence[NamedProfile], tool: ToolDefinition) -> Iterator[CallTotal]:
    """Yield the totals of each profile separately: calls of subagents also count towards their parent agent's totals."""
    for named in profiles:
        for spec in _specs([named], ToolCallLimitSpec, tool):
            text = json.dumps([named.agent, sorted(spec.tools)])
            name = hashlib.sha256(text.encode()).hexdigest()[:32]
            if spec.run_limit is not None:
                yield CallTotal(kind="run", name=name, most=spec.run_limit, exit_behavior=spec.exit_behavior)
            if spec.thread_limit is not None:
                yield CallTotal(kind="thread", name=name, most=spec.thread_limit, exit_behavior=spec.exit_behavior)


def _terms(limits: Sequence[LimitsSpec], totals: tuple[CallTotal, ...], *, is_gated: bool) -> Terms | None:
    terms = Terms(requires_gate=is_gated, totals=totals) if is_gated or totals else None
    for spec in limits:
        said = Terms(cooldown_seconds=spec.cooldown_seconds, daily_limit=spec.daily_limit, cost=spec.cost)
        terms = strictest(terms, said)
    return terms
