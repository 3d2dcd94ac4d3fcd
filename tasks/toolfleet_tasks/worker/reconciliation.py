"""Bounds the question to a module what became of a call whose end no worker has seen, and judges its answer. Pure functions."""

from toolfleet_registry.contracts import EffectState, PublishedCall, ToolResult
from toolfleet_registry.contracts.outcomes import Attempt, Outcome
from toolfleet_registry.policy.hints import hint_for
from toolfleet_tasks.ledger.retry import settled

_SECONDS = 5.0  # for a module to say what happened, perhaps after a restart
# The same for one that has let its whole limit pass: if it is alive it knows at once, and the limit is to hold.
_SECONDS_AFTER_SILENCE = 1.0
_ANSWERED = frozenset({Outcome.FAILED, Outcome.SERVER_ERROR})


def is_asked(attempt: Attempt, result: ToolResult) -> bool:
    """Whether the module is to be asked before the call ends with `result`, after its last `attempt`."""
    return result.effect_state == "unknown" and attempt.outcome not in _ANSWERED


def seconds_to_ask(call: PublishedCall, attempt: Attempt | None, *, now: float) -> float:
    """For how long the module may be asked, within the call's deadline; 0 or less: not at all.

    `attempt`: the last one, `None` if it was another worker's.
    """
    is_silent = attempt is not None and attempt.result.error_code == "timed_out"
    return min(_SECONDS_AFTER_SILENCE if is_silent else _SECONDS, call.deadline_at - now)


def asked_so_far(call: PublishedCall) -> EffectState:
    """What the call may have done before its module asked for the answer that it brings; nothing, without one."""
    return "none" if call.inputs is None else call.inputs.so_far


def as_said(happened: Attempt, call: PublishedCall) -> ToolResult:
    """The end of a call as its module says, when asked. One that has not executed it will refuse this call's id from now on.

    So its word counts for all attempts since it was answered last, also for a request that is still on its way; and no further one
    is made.
    """
    effect, so_far = call.effect, asked_so_far(call)
    if happened.outcome is not Outcome.NOT_SENT:
        return settled(happened, effect, "none")
    if so_far != "none":
        return settled(happened, effect, so_far)
    result = happened.result.model_copy(update={"effect_state": "none", "retryable": True})
    return result.model_copy(update={"hint": hint_for(result, effect)})
