"""Defines what people see of a call that they have to approve, and decides who may vote and when the votes are enough."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from toolfleet_registry.contracts import Caller, Level, Message, Since
from toolfleet_registry.contracts.calls import ApprovalRule
from toolfleet_registry.contracts.tool_definition import Effect
from toolfleet_registry.permissions import level_of_caller, level_of_tool

_LONGEST_ARGUMENTS = 16_384  # characters: `ApprovalRecords.read` has them all

ApprovalState = Literal["waiting", "approved", "rejected", "expired"]
"""Where an approval is: people have not decided, enough have approved, one has rejected, or its time is over."""

_OWN = (
    "Nobody approves a call of their own. Two ways out: approve it with a second key, of another user; or set "
    "self_approval = true where the agent's profile has human_in_the_loop."
)


class AskedApproval(Message):
    """A call that waits for people, as it is stored. Times are seconds since the epoch.

    `approval_id` is the call's id. `arguments` are as they are published: those at `sensitive` (JSON pointers) are hidden where it
    is shown. `caller` asks, in the name of `user_id`. `rules` ask for the approval, and each has to be satisfied. `asked_by`: the key or
    token that has asked for it in the name of another user, and its own user; older versions have none.
    """

    approval_id: str
    tool_name: str
    tool_version: str | None
    arguments: dict[str, Any]
    sensitive: tuple[str, ...]
    caller: Caller
    user_id: str | None
    rules: tuple[ApprovalRule, ...]
    binding: str
    requested_at: float
    expires_at: float
    conversation_id: str | None = None
    asked_by: Annotated[tuple[str, ...], Since(4)] = ()


class ApprovalSummary(Message):
    """An approval as lists, streams and notices show it: `request`, without its arguments where those are large (`arguments_left_out`)."""

    request: AskedApproval
    effect: Effect | None = None
    arguments_left_out: bool = False

    @classmethod
    def of(cls, request: AskedApproval, effect: Effect | None) -> "ApprovalSummary":
        """Summarise a request; `effect`: that of its call."""
        is_large = len(json.dumps(request.arguments)) > _LONGEST_ARGUMENTS
        shown = request.model_copy(update={"arguments": {}}) if is_large else request
        return cls(request=shown, effect=effect, arguments_left_out=is_large)


class ApprovalVote(Message):
    """One person's decision.

    `binding` is the digest of what they have seen; `by` is `user ada`, `key <id>` or `command line`.
    """

    approval_id: str
    binding: str
    verdict: Literal["approve", "reject"]
    by: str
    user_id: str | None
    permission: Literal["guest", "user", "admin", "owner"]
    key_id: str | None = None
    reason: str = ""
    at: float

    @property
    def name(self) -> str:
        """Return one name for each person, as far as that is known."""
        return self.by if self.user_id is None else f"user {self.user_id}"


class JournalLine(Message):
    """One thing that happened to an approval: `edited` names the digests before and after, and as its `reason` the arguments that were replaced.

    `delivery`: the request that has brought it.
    """

    at: float
    what: Literal["approved", "rejected", "edited", "expired"]
    by: str
    reason: str = ""
    before: str | None = None
    after: str | None = None
    delivery: str | None = None


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
        """Return one name for each person, as far as that is known."""
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
    """Return whether the call is this person's own: as its user, or as the key, token or user that asked for it in another user's name."""
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
    """Return how many more people have to approve, at least: each rule counts different approvers who have seen this very call."""
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


def _word(kind: str, name: str) -> str:
    """Return a short id for a name, which may have any characters."""
    return f"{kind}:{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"
