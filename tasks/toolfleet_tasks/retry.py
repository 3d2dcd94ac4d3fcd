"""What follows an attempt: the one retry, after which delay, or the call's end. Pure functions, one table.

| outcome      | retried once                                   | a repeat by the agent is harmless |
|--------------|------------------------------------------------|-----------------------------------|
| success      | -                                              | -                                 |
| not sent     | always                                         | yes                               |
| turned away  | always, after Retry-After                      | yes                               |
| permanent    | never                                          | no, and useless                   |
| failed       | if the effect is undeclared, read, idempotent  | if it is read or idempotent       |
| unknown      | if the effect is read or idempotent            | if it is read or idempotent       |

A module that fails may state its `effect_state`: after `none` everybody may repeat, after `done` an undeclared tool is
not retried. What earlier attempts may have done counts: nobody repeats a `once` call because its last attempt did nothing.
"""

from dataclasses import dataclass

from toolfleet_registry.contracts import Effect, EffectState, ToolResult
from toolfleet_registry.hints import hint_for
from toolfleet_registry.outcomes import Attempt, Outcome
from toolfleet_registry.settings import LONGEST_RETRY_DELAY

MAX_ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class Next:
    """Another attempt `delay` seconds from now, or, if it is `None`, the call's end with `result`.

    Where there is a delay, `result` is the end of a call whose retry cannot be published.
    """

    delay: float | None
    result: ToolResult


def decide(  # noqa: PLR0913 - what the table depends on, and nothing else
    attempt: Attempt,
    effect: Effect | None,
    *,
    attempts: int,
    seconds_left: float,
    so_far: EffectState,
    longest_delay: float,
    jitter: float,
) -> Next:
    """What follows `attempt`, the last one of `attempts`.

    `so_far` is what the attempts before it may have done. `seconds_left` is what its deadline leaves, and `longest_delay`
    how long the broker may hold a message. `jitter`, from 0 to 1, spreads the retries of calls that failed together.
    """
    state = combined(so_far, attempt.result.effect_state)
    delay = _delay(attempt, jitter) if attempts < MAX_ATTEMPTS and _is_retried(attempt, effect, state) else None
    fits = delay is not None and delay < min(seconds_left, longest_delay) and delay <= LONGEST_RETRY_DELAY
    return Next(delay if fits else None, settled(attempt, effect, so_far))


def settled(attempt: Attempt, effect: Effect | None, so_far: EffectState) -> ToolResult:
    """The call's end if `attempt` was its last: it claims no less than earlier attempts may have done."""
    if attempt.result.success:
        return attempt.result
    state = combined(so_far, attempt.result.effect_state)
    retryable = _is_repeatable(attempt, effect, state)
    wish = attempt.result.retry_after_seconds if attempt.retry_after_seconds is None else attempt.retry_after_seconds
    changes = {"effect_state": state, "retryable": retryable, "retry_after_seconds": wish if retryable else None}
    result = attempt.result.model_copy(update=changes)
    return result if result.hint else result.model_copy(update={"hint": hint_for(result)})


def combined(so_far: EffectState, latest: EffectState) -> EffectState:
    """What two attempts may have done together: what one has surely done, the other does not undo."""
    return so_far if _CERTAINTY.index(so_far) > _CERTAINTY.index(latest) else latest


def _is_retried(attempt: Attempt, effect: Effect | None, state: EffectState) -> bool:
    """Whether the fleet itself tries once more. `state`: of all attempts; so below."""
    if attempt.outcome not in _TEMPORARY:
        return False
    # Modules that do not know of effects were always repeated when they said themselves that they had failed.
    is_failed_undeclared = attempt.outcome is Outcome.FAILED and effect is None and state == "unknown"
    return is_failed_undeclared or _is_repeatable(attempt, effect, state)


def _is_repeatable(attempt: Attempt, effect: Effect | None, state: EffectState) -> bool:
    """Whether repeating the call cannot double an effect, and can help."""
    can_help = attempt.outcome in _TEMPORARY or attempt.result.retryable
    return can_help and (state == "none" or effect in _HARMLESS)


def _delay(attempt: Attempt, jitter: float) -> float:
    if attempt.retry_after_seconds is not None:
        return attempt.retry_after_seconds
    return _SHORTEST_DELAY + jitter * _LONGEST_JITTER


_TEMPORARY = frozenset({Outcome.NOT_SENT, Outcome.TURNED_AWAY, Outcome.FAILED, Outcome.UNKNOWN})
_CERTAINTY: tuple[EffectState, ...] = ("none", "unknown", "done")
_HARMLESS = frozenset[Effect]({"read", "idempotent"})
_SHORTEST_DELAY, _LONGEST_JITTER = 0.1, 0.85  # seconds: long enough for a restart of a connection, short for a person
