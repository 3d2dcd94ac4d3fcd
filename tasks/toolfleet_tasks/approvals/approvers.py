"""Judges who may decide about a call, and whether enough have. Pure functions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from toolfleet_registry.contracts import Level
from toolfleet_registry.contracts.approvals.terms import ApprovalRule
from toolfleet_registry.permissions import level_of_caller, level_of_tool
from toolfleet_tasks.approvals.request import ApprovalVote, AskedApproval


@dataclass(frozen=True, slots=True)
class Approver:
    """Who decides."""

    by: str
    """By what they are known: `key <id>`, `token <subject>`, `webhook <name>` or `command line`."""
    user_id: str | None
    """The user that they are, if that is known."""
    permission: Level
    """What they may do."""
    key_id: str | None = None
    """The id of the API key that they hold."""
    delivery: str | None = None
    """Of a decision that a signed request brings: what is the same in each repeat of it, and in no other."""

    @property
    def name(self) -> str:
        """One for each person, as far as that is known."""
        return self.by if self.user_id is None else f"user {self.user_id}"


def refusal_of_approver(request: AskedApproval, approver: Approver, votes: Iterable[ApprovalVote]) -> str | None:
    """Why they may not decide about the call, in a sentence; `None`: they may."""
    accepting = [
        rule for rule in request.rules if _accepts(rule, approver.user_id, approver.permission, approver.key_id)
    ]
    if not accepting:
        return f"{approver.name} is none of those who may decide about this call."
    asks = {request.user_id, request.caller.user_id} - {None}
    if approver.user_id in asks and not any(rule.self_approval for rule in accepting):
        return "Nobody approves a call of their own."
    if any(_name_of(vote) == approver.name for vote in votes):
        return f"{approver.name} has approved this call already: it waits for others."
    return None


def may_decide(request: AskedApproval, approver: Approver) -> bool:
    """Whether they are among those who may decide about the call at all."""
    return refusal_of_approver(request, approver, ()) is None


def is_approved(rules: Sequence[ApprovalRule], binding: str, votes: Iterable[ApprovalVote]) -> bool:
    """Whether each rule has as many different approvers as it wants, who have seen this very call."""
    counting = [vote for vote in votes if vote.verdict == "approve" and vote.binding == binding]
    return all(
        len({_name_of(vote) for vote in counting if _accepts(rule, vote.user_id, vote.permission, vote.key_id)})
        >= rule.quorum
        for rule in rules
    )


def missing_votes(rules: Sequence[ApprovalRule], binding: str, votes: Sequence[ApprovalVote]) -> int:
    """How many more have to approve, at least."""
    counting = [vote for vote in votes if vote.verdict == "approve" and vote.binding == binding]
    return max(
        (
            rule.quorum
            - len({_name_of(vote) for vote in counting if _accepts(rule, vote.user_id, vote.permission, vote.key_id)})
            for rule in rules
        ),
        default=0,
    )


def _accepts(rule: ApprovalRule, user_id: str | None, permission: Level, key_id: str | None) -> bool:
    if rule.permission is not None:
        needed = level_of_tool(rule.permission)
        if needed is not None and level_of_caller(permission) >= needed:
            return True
    return user_id in rule.users or key_id in rule.keys


def _name_of(vote: ApprovalVote) -> str:
    return vote.by if vote.user_id is None else f"user {vote.user_id}"
