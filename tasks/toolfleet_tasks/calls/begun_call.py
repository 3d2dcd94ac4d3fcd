"""Defines what is written down of a call that any process may go on with: whose it is, and what it takes to end it."""

from typing import Annotated, Literal, Self

from toolfleet_registry.contracts import Caller, Effect, Message, PublishedCall, Since
from toolfleet_registry.contracts.logs.log_message import LogLevel

_ANY_ARGUMENT = "*"


class BegunCall(Message):
    """A call without its arguments, which only its workers need.

    `owner` has begun it, perhaps in the name of `user_id`, and nobody else gets to know of it. `data_id` names the data that
    Redis had then. `is_guest`: it was begun before, by somebody else, and `owner` has joined it with its idempotency key.
    """

    call_id: str
    owner: str | None
    tool_name: str
    user_id: str | None
    caller: Caller
    effect: Effect | None
    lane: Literal["fast", "slow"]
    limit_seconds: float
    published_at: float
    deadline_at: float
    idempotency_key: str | None = None
    hides_results: bool = False
    data_id: str = ""
    is_guest: bool = False
    log_level: Annotated[LogLevel | None, Since(2)] = None

    @classmethod
    def of(cls, call: PublishedCall, *, owner: str | None, data_id: str, joins: str | None = None) -> Self:
        """The record of a call that is about to be published, or that has joined the call of the id `joins`."""
        return cls(
            call_id=joins or call.call_id,
            owner=owner,
            tool_name=call.tool_name,
            user_id=call.user_id,
            caller=call.caller,
            effect=call.effect,
            lane=call.lane,
            limit_seconds=call.limit_seconds,
            published_at=call.published_at,
            deadline_at=call.deadline_at,
            idempotency_key=call.idempotency_key,
            hides_results=call.hides_results,
            data_id=data_id,
            is_guest=joins is not None,
            log_level=call.log_level,
        )

    def published(self) -> PublishedCall:
        """The call as its ledger and its audit know it. A dead letter of it says that its arguments were not kept."""
        return PublishedCall(
            call_id=self.call_id,
            tool_name=self.tool_name,
            arguments={_ANY_ARGUMENT: ""},
            sensitive=(f"/{_ANY_ARGUMENT}",),
            user_id=self.user_id,
            caller=self.caller,
            effect=self.effect,
            lane=self.lane,
            limit_seconds=self.limit_seconds,
            published_at=self.published_at,
            deadline_at=self.deadline_at,
            idempotency_key=self.idempotency_key,
            hides_results=self.hides_results,
            log_level=self.log_level,
        )
