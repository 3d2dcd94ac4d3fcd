"""Defines what people see of a call that they have to approve, and what they decide."""

import json
from typing import Annotated, Any, Literal

from toolfleet_registry.contracts import Caller, Message, Since
from toolfleet_registry.contracts.calls import ApprovalRule
from toolfleet_registry.contracts.tool_definition import Effect

_LONGEST_ARGUMENTS = 16_384  # characters: `ApprovalRecords.read` has them all

ApprovalState = Literal["waiting", "approved", "rejected", "expired"]
"""Where an approval is: people have not decided, enough have approved, one has rejected, or its time is over."""


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
    """One person's decision. `binding`: of what they have seen; `by`: `user ada`, `key <id>` or `command line`."""

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
        """One for each person, as far as that is known."""
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
