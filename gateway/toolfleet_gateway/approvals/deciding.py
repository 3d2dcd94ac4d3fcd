"""Knows an identity as one who decides about calls, and which calls are theirs to see."""

from toolfleet_gateway.auth.identity import Identity
from toolfleet_tasks.approvals.approvers import Approver
from toolfleet_tasks.approvals.records import StoredApproval
from toolfleet_tasks.approvals.shown import may_see


def approver_of(who: Identity) -> Approver:
    """Whoever sends a request, as one who decides."""
    return Approver(who.name, who.caller.user_id, who.caller.permission, who.key_id)


def is_theirs(found: StoredApproval, who: Identity) -> bool:
    """Whether an approval is theirs to see: viewers see all."""
    return who.has_role("viewer") or may_see(found, approver_of(who))
