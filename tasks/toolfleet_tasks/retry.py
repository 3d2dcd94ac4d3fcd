"""Whether an attempt is followed by the one retry, and after which delay. Pure functions, one table.

| outcome      | retried once                                   | a repeat by the agent is harmless |
|--------------|------------------------------------------------|-----------------------------------|
| success      | -                                              | -                                 |
| not sent     | always                                         | yes                               |
| turned away  | always, after Retry-After                      | yes                               |
| permanent    | never                                          | no, and useless                   |
| failed       | if the effect is undeclared, read, idempotent  | if it is read or idempotent       |
| unknown      | if the effect is read or idempotent            | if it is read or idempotent       |

A module that fails may state its `effect_state`: after `none` everybody may repeat, after `done` an undeclared tool is
not retried.
"""

import random

from toolfleet_registry.contracts import Effect, EffectState, ToolResult
from toolfleet_registry.outcomes import Attempt, Outcome
from toolfleet_registry.settings import LONGEST_RETRY_DELAY

MAX_ATTEMPTS = 2
_SHORTEST_DELAY, _LONGEST_JITTER = 0.1, 0.9  # seconds: long enough for a restart of a connection, short for a person


def is_repeatable(attempt: Attempt, effect: Effect | None) -> bool:
    """Whether repeating the call cannot double an effect."""
    if attempt.outcome in {Outcome.NOT_SENT, Outcome.TURNED_AWAY}:
        return True
    if attempt.outcome not in {Outcome.FAILED, Outcome.UNKNOWN}:
        return False
    return effect in {"read", "idempotent"} or attempt.result.effect_state == "none"


def is_retried(attempt: Attempt, effect: Effect | None) -> bool:
    """Whether the fleet itself tries such an attempt once more."""
    undeclared = attempt.outcome is Outcome.FAILED and effect is None and attempt.result.effect_state != "done"
    return undeclared or is_repeatable(attempt, effect)


def settled(attempt: Attempt, effect: Effect | None, so_far: EffectState) -> ToolResult:
    """The attempt's result in the light of earlier ones: where these may have had an effect, it does not say `none`."""
    repeatable = attempt.result.retryable or is_repeatable(attempt, effect)
    if attempt.result.effect_state != "none" or so_far == "none":
        is_said = attempt.result.retryable == repeatable
        return attempt.result if is_said else attempt.result.model_copy(update={"retryable": repeatable})
    harmless = repeatable and effect in {"read", "idempotent"}
    return attempt.result.model_copy(update={"effect_state": so_far, "retryable": harmless})


def combined(so_far: EffectState, latest: EffectState) -> EffectState:
    """What two attempts may have done together."""
    return so_far if latest == "none" else latest


def retry_delay(
    attempt: Attempt, effect: Effect | None, *, attempts: int, seconds_left: float, longest: float
) -> float | None:
    """Seconds until the retry, or `None` if there is none.

    `attempts` counts those made, this one included; `longest` is what the broker allows a message to be held. The
    module's own Retry-After is honoured up to 30 s; a delay that does not fit the time left means no retry.
    """
    if attempts >= MAX_ATTEMPTS or not is_retried(attempt, effect):
        return None
    delay = _jitter() if attempt.retry_after_seconds is None else attempt.retry_after_seconds
    fits = delay < seconds_left and delay <= min(longest, LONGEST_RETRY_DELAY)
    return delay if fits else None


def _jitter() -> float:
    return random.uniform(_SHORTEST_DELAY, _LONGEST_JITTER)  # noqa: S311 - spreads load, guards nothing
