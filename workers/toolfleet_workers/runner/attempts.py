"""Builds attempts that did not succeed: what each outcome says about the effect."""

from toolfleet_registry.contracts import EffectState, ErrorCode, PublishedCall, ToolResult
from toolfleet_registry.contracts.outcomes import Attempt, Outcome
from toolfleet_registry.time import fleet_clock

_NOT_EXECUTED = frozenset({Outcome.NOT_SENT, Outcome.TURNED_AWAY, Outcome.PERMANENT})


def unsuccessful(call: PublishedCall, outcome: Outcome, code: ErrorCode, error: str) -> Attempt:
    """An attempt that ended in `outcome`. Whether it may be repeated is for the tasks to say, who know the effect."""
    state: EffectState = "none" if outcome in _NOT_EXECUTED else "unknown"
    return Attempt(outcome, ToolResult.failed(call.tool_name, code, error, effect_state=state))


def too_late(call: PublishedCall) -> Attempt:
    """One that was not begun: its deadline has passed, or its lease is over, so that others may have the call."""
    if call.deadline_at <= fleet_clock.now():
        text = "Tool call expired: its deadline passed before the request was sent."
        return unsuccessful(call, Outcome.NOT_SENT, "expired", text)
    text = "Tool execution error: the worker stood still for too long to begin the call."
    return unsuccessful(call, Outcome.NOT_SENT, "internal", text)


def no_time_left(call: PublishedCall) -> Attempt:
    """One that was not begun: its limit is used up, by what was done before it, or its deadline has passed. It says nothing of its module."""
    text = "Tool call expired: its time was over before it could be begun."
    return unsuccessful(call, Outcome.NOT_SENT, "expired", text)


def error_text(exc: Exception) -> str:
    """What a log may say of an error: its kind, and the words of an operating system's, which speak of addresses only.

    Others may quote what a module has sent.
    """
    return f"{type(exc).__name__}: {exc}" if isinstance(exc, OSError) else type(exc).__name__
