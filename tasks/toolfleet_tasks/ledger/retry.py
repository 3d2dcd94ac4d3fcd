"""Decides what follows an attempt: a retry, after which delay, or the call's end. Pure functions, and one table.

When an attempt is followed by another one, by its outcome and the tool's effect:

| outcome      | `read`      | `idempotent`        | undeclared                       | `once` |
|--------------|-------------|---------------------|----------------------------------|--------|
| success      | -           | -                   | -                                | -      |
| not sent     | always      | always              | none                             | none   |
| turned away  | always      | always              | none                             | none   |
| permanent    | -           | -                   | -                                | -      |
| failed       | `retryable` | `retryable`, none   | `retryable`, none, by habit      | none   |
| server error | always      | always              | `retryable`, none, by habit      | none   |
| unknown      | always      | always              | none                             | none   |

none: all attempts together have surely done nothing (after "not sent" and "turned away" that is so, unless an earlier one may
have), or the module says `effect_state: none`. `retryable`: the module says that. By habit: `TOOLFLEET_RETRY_UNDECLARED`, the
module's `retries_undeclared`, or `undeclared` in the `tool_retry` of the agent's profile has such tools repeated, unless the thing is
surely done. A repeat of such a call that its module declines, or never gets, ends it with the answer to the attempt before.

There is one retry, unless the profile of the call's agent says otherwise: none, or up to ten. Beyond the first one only what
does no harm counts: the effect is `read` or `idempotent`, or all attempts together have surely done nothing; and what the
profile has repeated by habit.

An agent may repeat what can help and do no harm: after any end but a permanent one, where nothing was done, the effect is
`read` or `idempotent`, or the module said `retryable` of an undeclared tool. What earlier attempts may have done counts:
nobody repeats a `once` call because its last attempt did nothing. A `read` tool that answers that it failed has done nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from toolfleet_registry.contracts import Effect, EffectState, ErrorCode, PublishedCall, RetryTerms, ToolResult
from toolfleet_registry.contracts.attempts import Attempt, Outcome
from toolfleet_registry.policy.hints import hint_for, unrepeated
from toolfleet_registry.settings import LONGEST_RETRY_DELAY

_WHOLE = 0.95  # of its limit: a call that had less says nothing of a silent module
# What an attempt can come to that has met its module, or has looked for it.
_MET = frozenset(
    {None, "module_unreachable", "module_error", "timed_out", "busy", "invalid_response", "result_too_large"}
)

MAX_ATTEMPTS = 2
"""Of a call of which no profile says more or less."""

MOST_DEATHS = 2
"""A call that so many workers held when they died is tried on no further one."""

_HARMLESS = frozenset[Effect]({"read", "idempotent"})
_UNDECIDED = frozenset({Outcome.FAILED, Outcome.SERVER_ERROR, Outcome.UNKNOWN})
_DECLINED = frozenset({Outcome.PERMANENT, Outcome.TURNED_AWAY, Outcome.NOT_SENT})

_CERTAINTY: tuple[EffectState, ...] = ("none", "unknown", "done")
_BEFORE: dict[EffectState, tuple[ErrorCode, str]] = {
    "unknown": ("outcome_unknown", "An earlier attempt was sent, and its end is not known."),
    "done": ("module_error", "An earlier attempt has executed it."),
}
_PROMISES_NONE = frozenset[ErrorCode | None]({"module_unreachable", "expired"})
_WITHIN = 0.9  # of what the broker can hold
_SHORTEST_DELAY, _LONGEST_JITTER = 0.1, 0.85  # seconds: long enough for a restart of a connection, short for a person


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


class Reason(Enum):
    """A reason why a call may be retried."""

    ALWAYS = auto()
    """A repeat does no harm, and may help."""
    NONE = auto()
    """Nothing has happened yet."""
    RETRYABLE = auto()
    """The module says that a repeat does no harm, and may help."""
    HABIT = auto()
    """An operator, or the module, has undeclared tools repeated that say that they failed."""


Reasons = frozenset[Reason]
_ALWAYS, _NONE, _NEVER = Reasons({Reason.ALWAYS}), Reasons({Reason.NONE}), Reasons()
_INVITED = Reasons({Reason.RETRYABLE})
_ANSWERED = Reasons({Reason.RETRYABLE, Reason.NONE, Reason.HABIT})

RETRIED: Mapping[Outcome, Mapping[Effect | None, Reasons]] = {
    Outcome.SUCCESS: {"read": _NEVER, "idempotent": _NEVER, None: _NEVER, "once": _NEVER},
    Outcome.NOT_SENT: {"read": _ALWAYS, "idempotent": _ALWAYS, None: _NONE, "once": _NONE},
    Outcome.TURNED_AWAY: {"read": _ALWAYS, "idempotent": _ALWAYS, None: _NONE, "once": _NONE},
    Outcome.PERMANENT: {"read": _NEVER, "idempotent": _NEVER, None: _NEVER, "once": _NEVER},
    Outcome.FAILED: {"read": _INVITED, "idempotent": _INVITED | _NONE, None: _ANSWERED, "once": _NONE},
    Outcome.SERVER_ERROR: {"read": _ALWAYS, "idempotent": _ALWAYS, None: _ANSWERED, "once": _NONE},
    Outcome.UNKNOWN: {"read": _ALWAYS, "idempotent": _ALWAYS, None: _NONE, "once": _NONE},
}
"""For which reasons an attempt is followed by another one: the table above."""


@dataclass(frozen=True, slots=True)
class Next:
    """Another attempt `delay` seconds from now, or, if it is `None`, the call's end with `result`.

    With a delay, `result` is the end of a call whose retry cannot be published.
    """

    delay: float | None
    result: ToolResult


def decide(
    attempt: Attempt,
    effect: Effect | None,
    *,
    attempts: int,
    seconds_left: float,
    so_far: EffectState,
    longest_delay: float,
    jitter: float,
    retries_undeclared: bool = False,
    terms: RetryTerms | None = None,
    answered: ToolResult | None = None,
) -> Next:
    """Decide what follows `attempt`, the last one of `attempts`.

    `so_far` is what the attempts before it may have done. `seconds_left` is the time until its deadline, and
    `longest_delay` how long the broker may hold a message. `jitter`, from 0 to 1, spreads the retries of calls that
    failed together. `retries_undeclared`: whether undeclared tools that failed are repeated by habit. `terms`: the
    profile's retry terms. `answered`: the module's answer to the attempt before, if that is the end of a call whose
    repeat is none.
    """
    if answered is not None and attempt.outcome in _DECLINED:
        return Next(None, settled(Attempt(Outcome.FAILED, answered), effect, so_far))
    result = settled(attempt, effect, so_far)
    if attempt.outcome is Outcome.SUCCESS:  # nearly every call, which nothing has repeated
        return Next(None, result)
    is_asked_for = terms is not None and terms.undeclared
    found = _reasons(attempt, result.effect_state, retries_undeclared=retries_undeclared or is_asked_for)
    if attempts >= MAX_ATTEMPTS and effect not in _HARMLESS:
        found &= _NONE | {Reason.HABIT} if is_asked_for else _NONE
    is_retried = attempts < most_attempts(terms) and not found.isdisjoint(RETRIED[attempt.outcome][effect])
    is_retried = is_retried and _is_taken(attempt, terms)
    delay = _delay(attempt, jitter, attempts, terms, longest_delay) if is_retried else None
    fits = delay is not None and delay < min(seconds_left, longest_delay) and delay <= LONGEST_RETRY_DELAY
    is_wanted = terms is not None and attempts < most_attempts(terms) and result.effect_state == "unknown"
    if is_wanted and effect is None and not is_retried and Reason.HABIT not in found and attempt.outcome in _UNDECIDED:
        is_answered = attempt.outcome is not Outcome.UNKNOWN
        hint = unrepeated(result.hint, result.tool_name, is_answered=is_answered)
        result = result.model_copy(update={"hint": hint})
    return Next(delay if fits else None, result)


def bounded(call: PublishedCall, terms: RetryTerms | None) -> PublishedCall:
    """The call with these terms in the place of its message's."""
    return call if terms == call.retry else call.model_copy(update={"retry": terms})


def most_attempts(terms: RetryTerms | None) -> int:
    """Return the most attempts of a call in all."""
    return MAX_ATTEMPTS if terms is None else 1 + terms.max_retries


def is_answered(outcome: Outcome, effect: Effect | None) -> bool:
    """Return whether the module itself has said how such a call ended, so that it need not be asked."""
    return outcome is Outcome.FAILED or (outcome is Outcome.SERVER_ERROR and effect not in _HARMLESS)


def settled(attempt: Attempt, effect: Effect | None, so_far: EffectState) -> ToolResult:
    """The call's end if `attempt` was its last: it claims no less than earlier attempts may have done."""
    if attempt.result.success:
        return attempt.result
    is_read = effect == "read" and attempt.outcome is Outcome.FAILED  # and has answered, so nothing of it is on its way
    state: EffectState = "none" if is_read else combined(so_far, attempt.result.effect_state)
    retryable = _is_repeatable(attempt, effect, state)
    retry_after = (
        attempt.result.retry_after_seconds if attempt.retry_after_seconds is None else attempt.retry_after_seconds
    )
    changes = {"effect_state": state, "retryable": retryable, "retry_after_seconds": retry_after if retryable else None}
    result = _named(attempt.result.model_copy(update=changes))
    if result.hint:
        return result
    is_stated = attempt.outcome is Outcome.FAILED and so_far == "none"
    return result.model_copy(update={"hint": hint_for(result, effect, is_stated=is_stated)})


def unattempted(result: ToolResult) -> Attempt:
    """An end without an attempt, as if one had come to it. What people have not approved stays so, however often it is repeated."""
    if result.error_code == "approval_denied":
        return Attempt(Outcome.PERMANENT, result)
    outcome = Outcome.NOT_SENT if result.effect_state == "none" else Outcome.UNKNOWN
    return Attempt(outcome, result, result.retry_after_seconds)


def combined(so_far: EffectState, latest: EffectState) -> EffectState:
    """Return what two attempts may have done together: an effect that one has surely had, the other does not undo."""
    return so_far if _CERTAINTY.index(so_far) > _CERTAINTY.index(latest) else latest


def _named(result: ToolResult) -> ToolResult:
    """The result under a code that agrees with its state: some promise that nothing was executed."""
    if result.error_code not in _PROMISES_NONE or result.effect_state == "none":
        return result
    code, before = _BEFORE[result.effect_state]
    return result.model_copy(update={"error_code": code, "error": f"{(result.error or '').rstrip('.')}. {before}"})


def _reasons(attempt: Attempt, state: EffectState, *, retries_undeclared: bool) -> Reasons:
    """Return the reasons to retry, if the table has them. `state`: of all attempts; so below."""
    found = {Reason.ALWAYS}
    if state == "none":
        found.add(Reason.NONE)
    if attempt.says_retryable:
        found.add(Reason.RETRYABLE)
    if retries_undeclared and state == "unknown":
        found.add(Reason.HABIT)
    return Reasons(found)


def _is_repeatable(attempt: Attempt, effect: Effect | None, state: EffectState) -> bool:
    """Return whether repeating the call cannot double an effect, and can help."""
    can_help = attempt.outcome is not Outcome.PERMANENT or attempt.result.retryable
    return can_help and (state == "none" or effect in _HARMLESS or (effect is None and attempt.says_retryable))


def _is_taken(attempt: Attempt, terms: RetryTerms | None) -> bool:
    return terms is None or terms.retry_on is None or attempt.result.error_code in terms.retry_on


def _delay(attempt: Attempt, jitter: float, attempts: int, terms: RetryTerms | None, longest: float) -> float:
    """Return the module's wish, or a growing pause; the broker can hold each of our own ones."""
    if attempt.retry_after_seconds is not None:
        return attempt.retry_after_seconds
    if terms is None:
        return _SHORTEST_DELAY + jitter * _LONGEST_JITTER
    pause = terms.initial_delay_seconds * terms.backoff_factor ** (attempts - 1)
    spread = pause * (1 + jitter) if terms.jitter else pause
    return min(spread, terms.max_delay_seconds, longest * _WITHIN)
