"""Dead letters: calls whose end nobody can know, kept for an operator."""

from typing import Any

from toolfleet_registry.contracts import Caller, Effect, ErrorCode, Message


class DeadAttempt(Message):
    """One attempt of a call that died: its outcome, or `never closed`, and how long it took, where that is known."""

    attempt: int
    outcome: str
    ms: float | None = None


class DeadLetter(Message):
    """A call whose end nobody can know, or that failed inside the fleet: kept for an operator.

    `arguments` are without the sensitive ones if `is_redacted`. Times are seconds since the epoch.
    """

    call_id: str
    tool_name: str
    arguments: dict[str, Any]
    is_redacted: bool = False
    caller: Caller
    user_id: str | None = None
    effect: Effect | None = None
    error_code: ErrorCode
    reason: str
    attempts: tuple[DeadAttempt, ...] = ()
    published_at: float
    died_at: float
    idempotency_key: str | None = None
    replay_of: str | None = None
