"""Defines dead letters: calls whose outcome is unknown, kept for an operator."""

from typing import Annotated, Any

from toolfleet_registry.contracts.call_context import ToolContext
from toolfleet_registry.contracts.calls import Caller, Effect, ErrorCode, Message, Since


class DeadAttempt(Message):
    """One attempt of a call that died."""

    attempt: int
    """Its number, from 1."""
    outcome: str
    """How it ended, or `never closed`."""
    ms: float | None = None
    """How long it took, in milliseconds; `None`: that is not known."""


class DeadLetter(Message):
    """A call whose outcome is unknown, or that failed inside the fleet: kept for an operator."""

    call_id: str
    """The call's id, and the letter's."""
    tool_name: str
    """The tool that was asked for."""
    arguments: dict[str, Any]
    """The call's arguments, without the sensitive ones if `is_redacted`."""
    is_redacted: bool = False
    """Whether some arguments were not kept: a replay must be given them."""
    caller: Caller
    """Who asked."""
    user_id: str | None = None
    """In whose name."""
    effect: Effect | None = None
    """What a repeat would do, as the tool said then."""
    error_code: ErrorCode
    """What went wrong."""
    reason: str
    """The reason, in words."""
    attempts: tuple[DeadAttempt, ...] = ()
    """What each attempt came to."""
    published_at: float
    """When the call was published, in seconds since the epoch."""
    died_at: float
    """When it became a letter, in seconds since the epoch."""
    idempotency_key: str | None = None
    """The key that it was made with."""
    replay_of: str | None = None
    """The letter that this call repeated."""
    context: Annotated[ToolContext | None, Since(2)] = None
    """What its tool was told by its agent, beside the arguments."""
    tool_version: Annotated[str | None, Since(2)] = None
    """The version of the tool that it named; a replay names it as well."""
    asked_by: Annotated[tuple[str, ...], Since(4)] = ()
    """The API key or token that asked for it in the name of another user, and its own user: they do not approve a replay."""
