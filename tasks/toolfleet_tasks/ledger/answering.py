"""Judges by how an attempt ended whether its module answers: what its breaker counts."""

from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.contracts.outcomes import Attempt, Outcome

_WHOLE = 0.95  # of its limit: a call that had less says nothing of a silent module
# What an attempt can come to that has met its module, or has looked for it.
_MET = frozenset(
    {None, "module_unreachable", "module_error", "timed_out", "busy", "invalid_response", "result_too_large"}
)


def is_away(attempt: Attempt, call: PublishedCall, *, seconds: float) -> bool | None:
    """Return whether the module counts as away: it cannot be reached, or does not answer.

    Any answer of its own says it is there.

    `None` for an attempt that never reached it: one that was refused in the worker, say, or that found no connection,
    which may be the worker's own trouble: a separate check decides that.
    """
    if attempt.unreached is not None:
        return None
    if attempt.is_stopped:
        return False
    if attempt.result.error_code not in _MET:
        return None
    if attempt.result.error_code == "timed_out" and seconds < _WHOLE * call.limit_seconds:
        return None  # its caller's deadline was shorter: one caller's hurry must not close a module for others
    if attempt.outcome is Outcome.UNKNOWN:
        return attempt.result.error_code in {"timed_out", "module_error"}
    return attempt.outcome is Outcome.NOT_SENT
