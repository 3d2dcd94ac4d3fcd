"""Binds a call to the approval that its tool, or its agent's profile, has people give before it begins."""

from toolfleet_registry.agents import approval_rules as rules_of
from toolfleet_registry.agents.approval_rules import terms_of_approval
from toolfleet_registry.agents.reach import Reach
from toolfleet_registry.catalog.catalog import Judged
from toolfleet_registry.contracts import PublishedCall, ToolDefinition
from toolfleet_registry.contracts.approval_terms import ApprovalRule


def approval_rules(tool: ToolDefinition, reach: Reach) -> tuple[ApprovalRule, ...]:
    """The rules that have people approve calls of the tool: its own, and those of the profile, if there is one."""
    specs = () if reach.profile is None else reach.profile.rules(tool).approvals
    return rules_of.approval_rules(tool, specs)


def with_approval(call: PublishedCall, judged: Judged, asked_by: tuple[str, ...]) -> PublishedCall:
    """The call with what people have to approve of it, if they have to, and by which credentials it was asked for."""
    rules = approval_rules(judged.tool, judged.reach)
    if not rules:
        return call
    return call.model_copy(update={"approval": terms_of_approval(call, judged.tool, rules), "asked_by": asked_by})
