"""The table of outcomes, row by row."""

import pytest

from toolfleet_registry.contracts import Effect, EffectState, ToolResult
from toolfleet_registry.outcomes import Attempt, Outcome
from toolfleet_tasks.retry import combined, is_repeatable, is_retried, retry_delay, settled

RESULT = ToolResult.failed("m.t", "module_error", "no", effect_state="unknown")
EFFECTS: tuple[Effect | None, ...] = (None, "read", "idempotent", "once")


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
    """Who is retried, and who may be repeated, follows from the outcome and from what the tool says it does."""
    attempt = Attempt(outcome, RESULT)

    assert tuple(effect for effect in EFFECTS if is_retried(attempt, effect)) == retried_for
    assert tuple(effect for effect in EFFECTS if is_repeatable(attempt, effect)) == repeatable_for


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
    attempt = Attempt(Outcome.FAILED, RESULT.model_copy(update={"effect_state": stated}))

    assert tuple(effect for effect in EFFECTS if is_retried(attempt, effect)) == retried_for
    assert tuple(effect for effect in EFFECTS if is_repeatable(attempt, effect)) == repeatable_for


def delay(
    retry_after: float | None = None, *, attempts: int = 1, left: float = 100, longest: float = 100
) -> float | None:
    attempt = Attempt(Outcome.TURNED_AWAY, RESULT, retry_after)
    return retry_delay(attempt, None, attempts=attempts, seconds_left=left, longest=longest)


def test_the_retry_comes_within_a_second() -> None:
    """Without a wish of the module's the delay is jittered and short."""
    delays = {delay() for _ in range(50)}

    assert len(delays) > 10
    assert all(value is not None and 0 < value < 1 for value in delays)


@pytest.mark.parametrize(
    ("retry_after", "expected"),
    [
        (0, 0),  # now
        (7, 7),  # honoured
        (30, 30),  # the longest
        (31, None),  # longer than an agent would wait for us to wait
    ],
)
def test_the_modules_wish_is_honoured(retry_after: float, expected: float | None) -> None:
    """Retry-After decides the delay, up to 30 seconds."""
    assert delay(retry_after) == expected


def test_there_are_never_more_than_two_attempts() -> None:
    """The second attempt is the last, whatever it came to."""
    assert delay(attempts=2) is None


def test_a_retry_that_does_not_fit_is_none() -> None:
    """Neither past the deadline, nor longer than the broker may hold a message."""
    assert delay(10, left=9) is None
    assert delay(10, longest=9) is None


@pytest.mark.parametrize(
    ("outcome", "effect", "so_far", "effect_state", "retryable"),
    [
        (Outcome.NOT_SENT, None, "none", "none", True),  # the only attempt
        (Outcome.NOT_SENT, None, "unknown", "unknown", False),  # the first one failed, and may have charged
        (Outcome.TURNED_AWAY, "once", "done", "done", False),  # the first one did the thing, and failed afterwards
        (Outcome.TURNED_AWAY, "idempotent", "unknown", "unknown", True),  # once more does no harm
        (Outcome.PERMANENT, "read", "unknown", "unknown", False),  # harmless, but useless
    ],
)
def test_a_result_never_claims_less_than_earlier_attempts_did(
    outcome: Outcome, effect: Effect | None, so_far: EffectState, effect_state: EffectState, retryable: bool
) -> None:
    """An attempt that did nothing does not undo what came before it."""
    nothing = Attempt(outcome, RESULT.model_copy(update={"effect_state": "none"}))
    result = settled(nothing, effect, so_far)

    assert (result.effect_state, result.retryable) == (effect_state, retryable)


@pytest.mark.parametrize(
    ("so_far", "latest", "together"),
    [
        ("none", "none", "none"),
        ("none", "unknown", "unknown"),
        ("unknown", "none", "unknown"),
        ("unknown", "done", "done"),
    ],
)
def test_effects_add_up(so_far: EffectState, latest: EffectState, together: EffectState) -> None:
    """What two attempts may have done is what either may have done."""
    assert combined(so_far, latest) == together
