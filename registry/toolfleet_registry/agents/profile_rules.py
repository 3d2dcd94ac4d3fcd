"""Combines what an agent's profiles say of a tool and its approvals: where several do, the strictest counts."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from toolfleet_registry.config.agent_profile import (
    AgentProfile,
    GateSpec,
    HumanInTheLoopSpec,
    LimitsSpec,
    MiddlewareBase,
    OwnMiddlewareSpec,
    PiiSpec,
    ToolCallLimitSpec,
    ToolRetrySpec,
    selects,
)
from toolfleet_registry.contracts import Caller, PublishedCall, RetryTerms, Terms, ToolDefinition
from toolfleet_registry.contracts.calls import ApprovalRule, ApprovalTerms
from toolfleet_registry.contracts.limits import CallTotal, limits_in
from toolfleet_registry.contracts.tool_definition import approvers_of
from toolfleet_registry.permissions import Modules, level_of_caller
from toolfleet_registry.policy.call_faults import modules_of
from toolfleet_registry.policy.limits import fewest_retries, lowest, strictest
from toolfleet_registry.specs import digest_of, spec_of

_MOST_TOOLS = 20_000  # whose rules are kept; those of one take some µs to make

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

    `terms` add to the tool's own, with the total calls of a run and a thread.
    """

    refused_by: NamedProfile | None = None
    retry: RetryTerms | None = None
    terms: Terms | None = None
    gate_fails_closed: bool = False
    personal_data: tuple[PiiSpec, ...] = ()
    approvals: tuple[HumanInTheLoopSpec, ...] = ()
    own: tuple[OwnMiddlewareSpec, ...] = ()


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
        """Return the caller with no more than the profiles leave, and with this agent's name."""
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


def approval_rule(spec: HumanInTheLoopSpec) -> ApprovalRule:
    """Return the rule that an entry of a profile stands for. Its digest is the same wherever the entry is the same."""
    who = spec.approvers
    return ApprovalRule(
        digest=_digest(spec.model_dump()),
        permission=who.permission,
        users=who.users,
        keys=who.keys,
        quorum=spec.quorum,
        expires_seconds=spec.expires_seconds,
        self_approval=spec.self_approval,
    )


def approval_rules(tool: ToolDefinition, specs: Sequence[HumanInTheLoopSpec]) -> tuple[ApprovalRule, ...]:
    """Return the rules that have people approve calls of the tool: its own, those of settings, and those of a profile (`specs`)."""
    own = (
        ApprovalRule(
            digest=_digest(["tool", who.model_dump()]), permission=who.permission, users=who.users, keys=who.keys
        )
        for who in approvers_of(tool.approval)
    )
    return (*own, *map(approval_rule, specs))


def terms_of_approval(
    call: PublishedCall, tool: ToolDefinition, rules: Sequence[ApprovalRule], *, asked: str | None = None
) -> ApprovalTerms:
    """Return the approval terms that travel with the call; its remaining time is the one it had when it was published."""
    tool_digest, digests = digest_of(spec_of(tool)), tuple(sorted(rule.digest for rule in rules))
    return ApprovalTerms(
        binding=binding_of(call, tool_digest, digests),
        tool_digest=tool_digest,
        rules=digests,
        expires_seconds=min(rule.expires_seconds for rule in rules),
        seconds=max(call.deadline_at - call.published_at, 0.001),
        asked=asked,
        by_tool=bool(tool.approval),
    )


def approval_fault(call: PublishedCall, tool: ToolDefinition, rules: Sequence[ApprovalRule]) -> str | None:
    """Return why the call differs from the one that may have been approved, or needs an approval that it does not name; else `None`.

    `rules` are the approval rules in force here. Whether the approval was given is in the ledger.
    """
    terms = call.approval
    if terms is None:
        return "a person has to approve it first" if rules else None
    if missing := [rule for rule in rules if rule.digest not in terms.rules]:
        return f"changed: {len(missing)} more rules ask for an approval now"
    if terms.tool_digest != digest_of(spec_of(tool)):
        return "changed: the tool is another one than was approved"
    if terms.binding != binding_of(call, terms.tool_digest, terms.rules):
        return "changed: the call is another one than was approved"
    return None


def binding_of(call: PublishedCall, tool_digest: str, rules: Sequence[str]) -> str:
    """Return the SHA-256 of what people approve: tool and definition, arguments, caller and rights, and the rules that ask for it."""
    caller, modules = call.caller, call.caller.allowed_modules
    return _digest(
        [
            call.tool_name,
            tool_digest,
            call.arguments,
            call.user_id,
            [caller.user_id, caller.permission, caller.agent, modules],
            sorted(rules),
        ]
    )


def _digest(content: object) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=sorted)
    return hashlib.sha256(text.encode()).hexdigest()


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
        terms = strictest(terms, Terms(**limits_in(spec)))
    return terms
