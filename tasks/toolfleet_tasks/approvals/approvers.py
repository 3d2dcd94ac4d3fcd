"""Judges who may decide about a call, and whether enough have. Pure functions."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

from toolfleet_registry.contracts import Level
from toolfleet_registry.contracts.calls import ApprovalRule
from toolfleet_registry.permissions import level_of_caller, level_of_tool
from toolfleet_tasks.approvals.request import ApprovalVote, AskedApproval


@dataclass(frozen=True, slots=True)
class Approver:
    """A person who decides about approvals."""

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
    """Return why this person may not decide about the call, as a sentence, or `None`."""
    if not any(_accepts(rule, approver) for rule in request.rules):
        return f"{approver.name} is none of those who may decide about this call."
    if not any(_counts(request, rule, approver) for rule in request.rules):
        return _OWN
    if any(vote.name == approver.name for vote in votes):
        return f"{approver.name} has approved this call already: it waits for others."
    return None


def may_decide(request: AskedApproval, approver: Approver) -> bool:
    """Return whether this person is among the approvers of the call at all."""
    return refusal_of_approver(request, approver, ()) is None


def has_asked(request: AskedApproval, who: Approver | ApprovalVote) -> bool:
    """Return whether the call is this person's own: as its user, or as the key, the token or the user that has asked for it in another user's name."""
    users = {f"user {each}" for each in (request.user_id, request.caller.user_id) if each is not None}
    return not {who.by, who.name}.isdisjoint(users.union(request.asked_by))


def words_of_request(request: AskedApproval) -> str:
    """Return the words by which an index finds a request: its user's, its approvers' and its conversation's, with spaces around."""
    users = ({request.user_id, request.caller.user_id} - {None}).union(*(rule.users for rule in request.rules))
    found = {_word("user", str(user)) for user in users}
    found |= {_word("key", key) for rule in request.rules for key in rule.keys}
    found |= {_word("level", rule.permission) for rule in request.rules if rule.permission is not None}
    found |= {_word("asked", name) for name in request.asked_by}
    if request.conversation_id is not None:
        found.add(word_of_conversation(request.conversation_id))
    return f" {' '.join(sorted(found))} "


def words_of_approver(approver: Approver) -> list[str]:
    """Return the words of the requests that an approver may see. Others than those may have them, too: `may_see` decides."""
    mine, levels = level_of_caller(approver.permission), get_args(Level)
    found = [_word("level", each) for each in levels if (level := level_of_tool(each)) is not None and level <= mine]
    found += [] if approver.user_id is None else [_word("user", approver.user_id)]
    found += [_word("asked", name) for name in (approver.by, approver.name)]
    return found + ([] if approver.key_id is None else [_word("key", approver.key_id)])


def word_of_conversation(conversation_id: str) -> str:
    """Return the word of the requests that were made in a conversation."""
    return _word("conversation", conversation_id)


def missing_votes(request: AskedApproval, votes: Iterable[ApprovalVote]) -> int:
    """Return how many more have to approve, at least: each rule counts different approvers who have seen this very call."""
    counting = [vote for vote in votes if vote.verdict == "approve" and vote.binding == request.binding]
    return max(
        (rule.quorum - len({vote.name for vote in counting if _counts(request, rule, vote)}) for rule in request.rules),
        default=0,
    )


def _counts(request: AskedApproval, rule: ApprovalRule, who: Approver | ApprovalVote) -> bool:
    return _accepts(rule, who) and (rule.self_approval or not has_asked(request, who))


def _accepts(rule: ApprovalRule, who: Approver | ApprovalVote) -> bool:
    if rule.permission is not None:
        needed = level_of_tool(rule.permission)
        if needed is not None and level_of_caller(who.permission) >= needed:
            return True
    return who.user_id in rule.users or who.key_id in rule.keys


_OWN = (
    "Nobody approves a call of their own. Two ways out: approve it with a second key, of another user; or set "
    "self_approval = true where the agent's profile has human_in_the_loop."
)


def _word(kind: str, name: str) -> str:
    """Return a short id for a name, which may have any characters."""
    return f"{kind}:{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"
