"""Knows an identity as one who decides about calls, which calls are theirs to see, and takes what a request decides."""

from toolfleet_gateway.approvals.bodies import ApprovalDecision
from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.http.problems import Problem
from toolfleet_registry.errors import ApprovalNotTaken
from toolfleet_tasks.approvals.approvers import Approver
from toolfleet_tasks.approvals.records import ListedApproval, StoredApproval
from toolfleet_tasks.approvals.shown import may_see
from toolfleet_tasks.client.namespaces.approvals import FleetApprovals


def approver_of(who: Identity) -> Approver:
    """Return the sender of a request as an approver."""
    return Approver(who.name, who.caller.user_id, who.caller.permission, who.key_id)


def is_theirs(found: ListedApproval, who: Identity) -> bool:
    """Return whether a user may see an approval: viewers see all."""
    return who.has_role("viewer") or may_see(found, approver_of(who))


async def take_decision(
    approvals: FleetApprovals, approval_id: str, approver: Approver, said: ApprovalDecision
) -> StoredApproval:
    """Take a decision about a call. Raises `Problem` if it is not accepted."""
    try:
        if said.decision == "reject":
            return await approvals.reject(approval_id, approver, reason=said.reason, seen=said.seen)
        return await approvals.approve(
            approval_id, approver, arguments=said.arguments, reason=said.reason, seen=said.seen
        )
    except ApprovalNotTaken as exc:
        status, kind = (403, "approval_forbidden") if exc.reason == "forbidden" else (409, "approval_not_taken")
        raise Problem(status, kind, str(exc), hint=exc.hint) from exc
    except ValueError as exc:
        raise Problem(422, "invalid_arguments", str(exc)) from exc
