"""Who may decide about a call, and whose votes count."""

from typing import Any

import pytest

from toolfleet_registry.contracts import Caller
from toolfleet_registry.contracts.calls import ApprovalRule
from toolfleet_tasks.approvals.approvers import (
    ApprovalVote,
    Approver,
    AskedApproval,
    has_asked,
    missing_votes,
    refusal_of_approver,
)

ADMINS = ApprovalRule(digest="1", permission="admin", quorum=1)
OWN_TOO = ApprovalRule(digest="2", permission="admin", quorum=1, self_approval=True)
BY_KEY = ("key k1", "user dave")


def asked(*rules: ApprovalRule, user: str | None = "puppet", by: tuple[str, ...] = BY_KEY) -> AskedApproval:
    """A call that waits, asked for in this user's name."""
    return AskedApproval(
        approval_id="call-1",
        tool_name="bank.pay",
        tool_version=None,
        arguments={},
        sensitive=(),
        caller=Caller(user_id=user, permission="user"),
        user_id=user,
        rules=rules or (ADMINS,),
        binding="b",
        requested_at=0,
        expires_at=60,
        asked_by=by,
    )


def vote(approver: Approver) -> ApprovalVote:
    """The approver's vote about the call."""
    who: dict[str, Any] = {name: getattr(approver, name) for name in ("by", "user_id", "permission", "key_id")}
    return ApprovalVote(approval_id="call-1", binding="b", verdict="approve", at=1, **who)


@pytest.mark.parametrize(
    ("request_", "approver", "is_own"),
    [
        (asked(), Approver("key k1", "dave", "admin", "k1"), True),
        (asked(), Approver("key k2", "dave", "admin", "k2"), True),
        (asked(), Approver("key k3", "puppet", "admin", "k3"), True),
        (asked(), Approver("key k4", "ada", "admin", "k4"), False),
        (asked(), Approver("command line", "dave", "owner"), True),
        (asked(), Approver("command line", None, "owner"), False),
        (asked(by=("token dave", "user dave")), Approver("token dave", "dave", "admin"), True),
        (asked(user=None, by=("key k1",)), Approver("key k1", None, "admin", "k1"), True),
        (asked(user=None, by=("key k1",)), Approver("key k2", None, "admin", "k2"), False),
        (asked(user=None, by=()), Approver("key k1", None, "admin", "k1"), False),
        (asked(by=()), Approver("key k1", "dave", "admin", "k1"), False),
    ],
    ids=[
        "the key that asked",
        "another key of its user",
        "the call's user",
        "another user",
        "its user at the command line",
        "a command line without a user",
        "the token's subject",
        "the key without a user",
        "another key without a user",
        "nobody is known",
        "a record of an older version",
    ],
)
def test_whose_call_it_is(request_: AskedApproval, approver: Approver, is_own: bool) -> None:
    """It is that of its user, and of the credential that has asked, with its user; what is not known equals nothing."""
    assert has_asked(request_, approver) == is_own
    refusal = refusal_of_approver(request_, approver, ())
    assert (refusal is not None) == is_own
    assert not is_own or ("self_approval" in str(refusal) and "a second key" in str(refusal))
    assert missing_votes(request_, [vote(approver)]) == int(is_own)


def test_a_vote_of_their_own_counts_only_where_the_rule_takes_it() -> None:
    """Of two rules, one of which lets who asks approve, the other one waits for somebody else."""
    request, own = asked(ADMINS, OWN_TOO), Approver("key k1", "dave", "admin", "k1")
    assert refusal_of_approver(request, own, ()) is None
    assert missing_votes(request, [vote(own)]) == 1
    assert missing_votes(request, [vote(own), vote(Approver("key k4", "ada", "admin", "k4"))]) == 0


def test_only_approvals_of_this_very_call_count() -> None:
    """Not of what it was before somebody edited it, and no rejection."""
    given = vote(Approver("key k4", "ada", "admin", "k4"))

    assert missing_votes(asked(), [given]) == 0
    assert missing_votes(asked(), [given.model_copy(update={"binding": "another"})]) == 1
    assert missing_votes(asked(), [given.model_copy(update={"verdict": "reject"})]) == 1


def test_two_keys_of_a_user_are_one_person() -> None:
    """Their votes count once, and the second is not taken."""
    request = asked(ADMINS.model_copy(update={"quorum": 2}))
    keys = [Approver(f"key {each}", "ada", "admin", each) for each in ("k4", "k5")]
    assert missing_votes(request, [vote(each) for each in keys]) == 1
    assert "has approved this call already" in str(refusal_of_approver(request, keys[1], [vote(keys[0])]))
