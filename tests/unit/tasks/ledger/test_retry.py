"""The table of outcomes, row by row: outcome, effect, attempts so far, time left."""

import itertools
import random
from dataclasses import replace
from typing import Any, get_args

import pytest

from toolfleet_registry.contracts import Effect, EffectState, ErrorCode, ToolResult
from toolfleet_registry.contracts.attempts import Attempt, Outcome
from toolfleet_tasks.ledger.retry import MAX_ATTEMPTS, RETRIED, Next, combined, decide

EFFECTS: tuple[Effect | None, ...] = (None, "read", "idempotent", "once")
EFFECT_OF: dict[str, Effect | None] = {
    "undeclared": None,
    "habit": None,
    "read": "read",
    "idempotent": "idempotent",
    "once": "once",
}
EVERYBODY = tuple(EFFECT_OF)
STATES: tuple[EffectState, ...] = get_args(EffectState)
STATE_OF: dict[Outcome, EffectState] = {
    Outcome.SUCCESS: "done",
    Outcome.NOT_SENT: "none",
    Outcome.TURNED_AWAY: "none",
    Outcome.PERMANENT: "none",
    Outcome.FAILED: "unknown",
    Outcome.SERVER_ERROR: "unknown",
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


# What was seen, which state the module states, whether it says `retryable`; then for whom the fleet tries again, and
# who may repeat. "habit": undeclared tools whose fleet, or module, has them repeated.
NOBODY: tuple[str, ...] = ()
HARMLESS = ("read", "idempotent")
TABLE: list[tuple[Outcome, EffectState, bool, tuple[str, ...], tuple[str, ...]]] = [
    (Outcome.SUCCESS, "done", False, NOBODY, NOBODY),
    (Outcome.NOT_SENT, "none", False, EVERYBODY, EVERYBODY),
    (Outcome.TURNED_AWAY, "none", False, EVERYBODY, EVERYBODY),
    (Outcome.PERMANENT, "none", False, NOBODY, NOBODY),
    (Outcome.FAILED, "unknown", False, ("habit",), HARMLESS),
    (Outcome.FAILED, "unknown", True, ("undeclared", "habit", *HARMLESS), ("undeclared", "habit", *HARMLESS)),
    (Outcome.FAILED, "none", False, ("undeclared", "habit", "idempotent", "once"), EVERYBODY),
    (Outcome.FAILED, "none", True, EVERYBODY, EVERYBODY),
    (Outcome.FAILED, "done", False, NOBODY, HARMLESS),
    (Outcome.FAILED, "done", True, ("undeclared", "habit", *HARMLESS), ("undeclared", "habit", *HARMLESS)),
    (Outcome.SERVER_ERROR, "unknown", False, ("habit", *HARMLESS), HARMLESS),
    (Outcome.SERVER_ERROR, "unknown", True, ("undeclared", "habit", *HARMLESS), ("undeclared", "habit", *HARMLESS)),
    (Outcome.SERVER_ERROR, "none", False, EVERYBODY, EVERYBODY),
    (Outcome.SERVER_ERROR, "none", True, EVERYBODY, EVERYBODY),
    (Outcome.SERVER_ERROR, "done", False, HARMLESS, HARMLESS),
    (Outcome.SERVER_ERROR, "done", True, ("undeclared", "habit", *HARMLESS), ("undeclared", "habit", *HARMLESS)),
    (Outcome.UNKNOWN, "unknown", False, HARMLESS, HARMLESS),
    (Outcome.UNKNOWN, "done", False, HARMLESS, HARMLESS),  # its result is not what its schema says
]


@pytest.mark.parametrize(("outcome", "stated", "says_retryable", "retried_for", "repeatable_for"), TABLE)
@pytest.mark.parametrize("who", EVERYBODY)
def test_the_table(
    outcome: Outcome,
    stated: EffectState,
    says_retryable: bool,
    retried_for: tuple[str, ...],
    repeatable_for: tuple[str, ...],
    who: str,
) -> None:
    """Who is retried, and who may repeat, follows from what was seen, from what the tool declares, and what the module says."""
    effect = EFFECT_OF[who]
    attempt = replace(ended(outcome, stated), says_retryable=says_retryable)
    following = after(attempt, effect, retries_undeclared=who == "habit")

    assert (following.delay is not None) == (who in retried_for)
    assert following.result.retryable == (who in repeatable_for)
    is_answered_read = who == "read" and outcome is Outcome.FAILED
    assert following.result.effect_state == ("none" if is_answered_read else stated)


def test_the_table_has_every_row() -> None:
    """Each outcome, and of those that a module words each state with and without `retryable`; for each effect."""
    worded = {Outcome.FAILED, Outcome.SERVER_ERROR}
    expected = {(outcome, state, says) for outcome in worded for state in STATES for says in (False, True)}
    expected |= {(outcome, STATE_OF[outcome], False) for outcome in Outcome} | {(Outcome.UNKNOWN, "done", False)}

    assert {row[:3] for row in TABLE} == expected
    assert {outcome: set(row) for outcome, row in RETRIED.items()} == {each: set(EFFECTS) for each in Outcome}


@pytest.mark.parametrize("effect", ["once", "read", "idempotent"])
def test_the_habit_is_for_tools_that_declare_nothing(effect: Effect) -> None:
    """What a tool has declared counts, whatever is set."""
    for outcome in Outcome:
        with_habit = after(ended(outcome), effect, retries_undeclared=True)
        assert with_habit == after(ended(outcome), effect)


def test_a_read_that_answers_has_done_nothing_whatever_came_before() -> None:
    """Its first attempt was lost, its second one says that it failed: there is no effect to be unsure of."""
    result = after(ended(Outcome.FAILED), "read", attempts=2, so_far="unknown").result

    assert (result.effect_state, result.retryable) == ("none", True)
    assert result.hint is not None
    assert result.hint.startswith("It only reads, so nothing has changed")


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


@pytest.mark.parametrize("code", ["module_unreachable", "expired"])
@pytest.mark.parametrize(
    ("so_far", "other"), [("none", None), ("unknown", "outcome_unknown"), ("done", "module_error")]
)
@pytest.mark.parametrize("effect", EFFECTS)
def test_an_attempt_that_was_not_begun_has_done_nothing(
    code: ErrorCode, so_far: EffectState, other: str | None, effect: Effect | None
) -> None:
    """Where an earlier attempt may have, the end has another code: `module_unreachable` and `expired` always mean `none`."""
    result = after(ended(Outcome.NOT_SENT, code=code), effect, attempts=2, so_far=so_far).result

    assert (result.error_code, result.effect_state) == (other or code, so_far)
    assert ("earlier attempt" in str(result.error)) == (so_far != "none")


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
    """For every input: without the habit only where the tool, or the module in its answer, says that it does no harm."""
    ways = itertools.product(Outcome, EFFECTS, STATES, STATES, (0, 1, 2, 3), (False, True))
    for outcome, effect, so_far, state, attempts, says in ways:
        if outcome is Outcome.SUCCESS:
            continue
        attempt = replace(ended(outcome, state), says_retryable=says)
        following = after(attempt, effect, so_far=so_far, attempts=attempts, jitter=random.random())
        is_harmless = effect in {"read", "idempotent"} or (effect is None and says)
        if combined(so_far, state) != "none" and not is_harmless:
            assert not following.result.retryable
            assert following.delay is None


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


@pytest.mark.parametrize("effect", [None, "once"])
@pytest.mark.parametrize("so_far", ["none", "unknown"])
@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.SERVER_ERROR, Outcome.UNKNOWN])
def test_a_model_is_told_whether_the_tool_itself_says_that_it_failed(
    outcome: Outcome, so_far: EffectState, effect: Effect | None
) -> None:
    """Then it may correct the call, after a look. Where something else may be on its way, it is warned of a repeat."""
    hint = after(ended(outcome), effect, so_far=so_far).result.hint or ""

    is_stated = outcome is Outcome.FAILED and so_far == "none"
    assert hint.startswith("The tool says that it failed: " if is_stated else "It may have been executed: ")
    assert "a tool that only reads" in hint
