"""Describes in a sentence for whom a call waits, and until when."""

from collections.abc import Sequence
from datetime import UTC, datetime

from toolfleet_registry.contracts.approval_terms import ApprovalRule
from toolfleet_tasks.approvals.approvers import missing_votes
from toolfleet_tasks.approvals.records import StoredApproval

_MOST_NAMED = 5  # users, and keys: a sentence is no list


def waits_for(found: StoredApproval) -> str:
    """The sentence: who may approve, how many have to, and until when."""
    request = found.request
    who = "; and ".join(dict.fromkeys(map(_approvers_of, request.rules)))
    missing = missing_votes(request, found.votes)
    more = f", {missing} of them" if missing > 1 else ""
    until = datetime.fromtimestamp(request.expires_at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return f"A person has to approve it first, until {until}: {who}{more}."


def _approvers_of(rule: ApprovalRule) -> str:
    ways = []
    if rule.permission is not None:
        ways.append(f"whoever has the permission {rule.permission!r} or more")
    if rule.users:
        ways.append(_named("user", sorted(rule.users)))
    if rule.keys:
        ways.append(_named("the holder of key", sorted(rule.keys)))
    said = " or ".join(ways) or "nobody"
    return said if rule.self_approval else f"{said}, but not who asks"


def _named(kind: str, names: Sequence[str]) -> str:
    more = f" or {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return " or ".join(f"{kind} {name}" for name in names[:_MOST_NAMED]) + more
