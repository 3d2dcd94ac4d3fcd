"""The table of outcomes, row by row: outcome, effect, attempts so far, time left."""

import itertools
import random
from typing import Any, get_args

import pytest

from toolfleet_registry.contracts import Effect, EffectState, ErrorCode, ToolResult
from toolfleet_registry.outcomes import Attempt, Outcome
from toolfleet_tasks.retry import MAX_ATTEMPTS, Next, combined, decide

EFFECTS: tuple[Effect | None, ...] = (None, "read", "idempotent", "once")
STATES: tuple[EffectState, ...] = get_args(EffectState)
STATE_OF: dict[Outcome, EffectState] = {
    Outcome.SUCCESS: "done",
    Outcome.NOT_SENT: "none",
    Outcome.TURNED_AWAY: "none",
    Outcome.PERMANENT: "none",
    Outcome.FAILED: "unknown",
    Outcome.UNKNOWN: "unknown",
}


def ended(
    outcome: Outcome,
    state: EffectState | None = None,
    *,
    code: ErrorCode = "module_error",
    retry_after: float | None = None,
) -> Attempt:
    """An attempt that came to `outcome`; the effect's state is the usual one."""
    if outcome is Outcome.SUCCESS:
        return Attempt(outcome, ToolResult.ok("m.t", 1))
    result = ToolResult.failed("m.t", code, "no", effect_state=state or STATE_OF[outcome])
    return Attempt(outcome, result.model_copy(update={"retry_after_seconds": retry_after}), retry_after)


def after(attempt: Attempt, effect: Effect | None = None, **given: Any) -> Next:
    """What follows the first attempt of a call that has time."""
    usual: dict[str, Any] = {"attempts": 1, "seconds_left": 100, "so_far": "none", "longest_delay": 100, "jitter": 0.5}
    return decide(attempt, effect, **{**usual, **given})


@pytest.mark.parametrize(
    ("outcome", "retried_for", "repeatable_for"),
    [
        (Outcome.SUCCESS, (), ()),
        (Outcome.NOT_SENT, EFFECTS, EFFECTS),
        (Outcome.TURNED_AWAY, EFFECTS, EFFECTS),
        (Outcome.PERMANENT, (), ()),
        (Outcome.FAILED, (None, "read", "idempotent"), ("read", "idempotent")),
        (Outcome.UNKNOWN, ("read", "idempotent"), ("read", "idempotent")),
    ],
)
def test_the_table(outcome: Outcome, retried_for: tuple[str, ...], repeatable_for: tuple[str, ...]) -> None:
    """Who is retried, and who may repeat, follows from the outcome and from what the tool says it does."""
    following = {effect: after(ended(outcome), effect) for effect in EFFECTS}

    assert tuple(effect for effect in EFFECTS if following[effect].delay is not None) == retried_for
    assert tuple(effect for effect in EFFECTS if following[effect].result.retryable) == repeatable_for
    assert {following[effect].result.effect_state for effect in EFFECTS} == {STATE_OF[outcome]}


@pytest.mark.parametrize(
    ("stated", "retried_for", "repeatable_for"),
    [
        ("none", EFFECTS, EFFECTS),  # it failed before it did anything
        ("done", ("read", "idempotent"), ("read", "idempotent")),  # it did the thing, and failed afterwards
    ],
)
def test_a_module_may_state_what_its_failure_left(
    stated: EffectState, retried_for: tuple[str, ...], repeatable_for: tuple[str, ...]
) -> None:
    """A failed attempt whose module says what has happened is judged by that."""
    following = {effect: after(ended(Outcome.FAILED, stated), effect) for effect in EFFECTS}

    assert tuple(effect for effect in EFFECTS if following[effect].delay is not None) == retried_for
    assert tuple(effect for effect in EFFECTS if following[effect].result.retryable) == repeatable_for


@pytest.mark.parametrize("outcome", Outcome)
@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("attempts", [MAX_ATTEMPTS, MAX_ATTEMPTS + 1])
def test_there_are_never_more_than_two_attempts(outcome: Outcome, effect: Effect | None, attempts: int) -> None:
    """The second attempt is the last, whatever it came to; what it says about a repeat does not depend on that."""
    assert after(ended(outcome), effect, attempts=attempts) == Next(None, after(ended(outcome), effect).result)


@pytest.mark.parametrize("outcome", Outcome)
@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize(
    "given",
    [
        {"seconds_left": 0},
        {"seconds_left": -5},  # the attempt took longer than it had
        {"seconds_left": 0.05},  # less than the shortest delay
        {"longest_delay": 0.05},  # the broker would take the message for lost
    ],
)
def test_without_time_there_is_no_retry(outcome: Outcome, effect: Effect | None, given: dict[str, float]) -> None:
    """A retry that does not fit is none; the result is that of the attempt."""
    assert after(ended(outcome), effect, **given) == Next(None, after(ended(outcome), effect).result)


def test_the_retry_comes_within_a_second() -> None:
    """Without a wish of the module's the delay is short, and jitter spreads it."""
    delays = [after(ended(Outcome.NOT_SENT), jitter=jitter / 10).delay for jitter in range(11)]

    assert len(set(delays)) == 11
    assert all(delay is not None and 0 < delay < 1 for delay in delays)


@pytest.mark.parametrize(
    ("retry_after", "given", "delay"),
    [
        (0, {}, 0),  # now
        (7, {}, 7),  # honoured, and not jittered
        (30, {}, 30),  # the longest
        (30.5, {}, None),  # longer than an agent would wait for us to wait
        (10, {"seconds_left": 10}, None),  # the deadline would pass first
        (10, {"seconds_left": 10.5}, 10),
        (10, {"longest_delay": 10}, None),  # the broker would take the message for lost
        (10, {"longest_delay": 10.5}, 10),
        (86_400, {}, None),
    ],
)
@pytest.mark.parametrize("effect", EFFECTS)
def test_the_modules_wish_is_honoured_or_handed_on(
    retry_after: float, given: dict[str, float], delay: float | None, effect: Effect | None
) -> None:
    """Retry-After decides the delay; where that does not fit, the agent reads `busy` and when to come back."""
    following = after(ended(Outcome.TURNED_AWAY, code="busy", retry_after=retry_after), effect, **given)

    assert following.delay == delay
    assert following.result.error_code == "busy"
    assert following.result.retry_after_seconds == retry_after
    assert following.result.retryable
    assert following.result.effect_state == "none"


def test_a_module_that_is_busy_twice_says_when_to_come_back() -> None:
    """The second refusal ends the call, and its wish goes to the agent."""
    following = after(ended(Outcome.TURNED_AWAY, code="busy", retry_after=3), "once", attempts=2)

    assert following.delay is None
    assert (following.result.error_code, following.result.retry_after_seconds) == ("busy", 3)


@pytest.mark.parametrize(
    ("outcome", "effect", "so_far", "effect_state", "retryable"),
    [
        (Outcome.NOT_SENT, None, "none", "none", True),  # the first one did nothing either
        (Outcome.NOT_SENT, None, "unknown", "unknown", False),  # the first one failed, and may have charged
        (Outcome.TURNED_AWAY, "once", "done", "done", False),  # the first one did the thing, and failed afterwards
        (Outcome.TURNED_AWAY, "idempotent", "unknown", "unknown", True),  # once more does no harm
        (Outcome.PERMANENT, "read", "unknown", "unknown", False),  # harmless, but useless
        (Outcome.UNKNOWN, "idempotent", "done", "done", True),  # what is done stays done
        (Outcome.SUCCESS, "read", "unknown", "done", False),
    ],
)
def test_a_result_never_claims_less_than_earlier_attempts_did(
    outcome: Outcome, effect: Effect | None, so_far: EffectState, effect_state: EffectState, retryable: bool
) -> None:
    """An attempt that did nothing does not undo what came before it."""
    result = after(ended(outcome), effect, attempts=2, so_far=so_far).result

    assert (result.effect_state, result.retryable) == (effect_state, retryable)


def test_who_must_not_repeat_is_told_no_time_for_it() -> None:
    """A second attempt that is turned away does not make a call repeatable whose first one may have charged."""
    turned_away = ended(Outcome.TURNED_AWAY, code="busy", retry_after=3)

    assert after(turned_away, attempts=2, so_far="unknown").result.retry_after_seconds is None


def test_a_call_that_expired_may_be_repeated_if_nothing_has_happened() -> None:
    """A permanent end that says of itself that it may be repeated is believed, as far as earlier attempts allow."""
    expired = ToolResult.failed("m.t", "expired", "late", effect_state="none", retryable=True)
    attempt = Attempt(Outcome.PERMANENT, expired)

    assert after(attempt).result.retryable
    assert after(attempt).delay is None
    assert not after(attempt, attempts=2, so_far="unknown").result.retryable


def test_every_failure_has_a_hint_and_keeps_its_own() -> None:
    """The model is told what it may do; a reason that knew more has said it already."""
    attempt = ended(Outcome.PERMANENT)
    own = Attempt(attempt.outcome, attempt.result.model_copy(update={"hint": "Ask Ada."}))

    assert all(after(ended(outcome)).result.hint for outcome in Outcome if outcome is not Outcome.SUCCESS)
    assert after(own).result.hint == "Ask Ada."
    assert after(ended(Outcome.SUCCESS)).result.hint is None


def test_nothing_that_may_have_happened_is_done_again_unless_that_is_harmless() -> None:
    """For every input: an undeclared effect is risked once, where the module itself said that it failed, and no other."""
    for outcome, effect, so_far, state, attempts in itertools.product(Outcome, EFFECTS, STATES, STATES, (0, 1, 2, 3)):
        if outcome is Outcome.SUCCESS:
            continue
        following = after(ended(outcome, state), effect, so_far=so_far, attempts=attempts, jitter=random.random())
        may_have_happened = combined(so_far, state) != "none"
        if following.result.retryable:
            assert effect in {"read", "idempotent"} or not may_have_happened
        if following.delay is not None and may_have_happened:
            assert effect in {"read", "idempotent"} or (effect is None and outcome is Outcome.FAILED)


@pytest.mark.parametrize(
    ("so_far", "latest", "together"),
    [
        ("none", "none", "none"),
        ("none", "unknown", "unknown"),
        ("unknown", "none", "unknown"),
        ("unknown", "done", "done"),
        ("done", "unknown", "done"),
        ("done", "none", "done"),
    ],
)
def test_effects_add_up(so_far: EffectState, latest: EffectState, together: EffectState) -> None:
    """What two attempts may have done is what either may have done."""
    assert combined(so_far, latest) == together
