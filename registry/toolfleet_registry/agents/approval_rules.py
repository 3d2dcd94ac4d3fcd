"""Makes the rules that an agent's profile has for approvals, and binds a call to what people see of it."""

import hashlib
import json
from collections.abc import Sequence

from toolfleet_registry.config.agents.middleware_specs import HumanInTheLoopSpec
from toolfleet_registry.contracts import PublishedCall, ToolDefinition
from toolfleet_registry.contracts.approval_terms import ApprovalRule, ApprovalTerms
from toolfleet_registry.contracts.tool_definition import approvers_of
from toolfleet_registry.manifests.definitions import spec_of
from toolfleet_registry.manifests.digests import digest_of


def approval_rule(spec: HumanInTheLoopSpec) -> ApprovalRule:
    """The rule that an entry of a profile stands for. Its digest is the same wherever the entry is the same."""
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
