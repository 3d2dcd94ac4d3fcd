"""What a profile says of retries: how many, after which pauses, on which errors; within what a call's effect allows."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from support.published_call import published
from toolfleet_registry.contracts import Effect, EffectState, ErrorCode, RetryTerms, ToolResult
from toolfleet_registry.contracts.attempts import Attempt, Outcome
from toolfleet_registry.contracts.calls import MOST_RETRIES
from toolfleet_registry.policy.limits import fewest_retries
from toolfleet_tasks.ledger.claims import Claim, Granted
from toolfleet_tasks.ledger.retry import MAX_ATTEMPTS, decide, most_attempts

NO_JITTER = RetryTerms(max_retries=10, jitter=False)
EFFECTS: tuple[Effect | None, ...] = (None, "read", "idempotent", "once")
HARMLESS = frozenset[Effect | None]({"read", "idempotent"})
UNHEARD = frozenset({Outcome.UNKNOWN, Outcome.NOT_SENT, Outcome.TURNED_AWAY})
DID_NOTHING = frozenset({Outcome.NOT_SENT, Outcome.TURNED_AWAY, Outcome.PERMANENT})


def ended(
    outcome: Outcome, state: EffectState = "unknown", code: ErrorCode = "module_error", *, says_retryable: bool = False
) -> Attempt:
    if outcome is Outcome.SUCCESS:
        return Attempt(outcome, ToolResult.ok("m.t", 1))
    state = "none" if outcome in DID_NOTHING else state
    result = ToolResult.failed("m.t", code, "no", effect_state=state)
    return replace(Attempt(outcome, result), says_retryable=says_retryable)


def delay_after(attempt: Attempt, effect: Effect | None, **said: Any) -> float | None:
    usual: dict[str, Any] = {"attempts": 1, "seconds_left": 100, "so_far": "none", "longest_delay": 100, "jitter": 0.5}
    return decide(attempt, effect, **{**usual, **said}).delay


attempts = st.builds(
    ended,
    st.sampled_from(list(Outcome)),
    st.sampled_from(["none", "unknown", "done"]),
    st.sampled_from(["module_error", "timed_out", "busy"]),
    says_retryable=st.booleans(),
)
terms_of_any_kind = st.none() | st.builds(
    RetryTerms,
    max_retries=st.integers(0, MOST_RETRIES),
    backoff_factor=st.floats(1, 10),
    initial_delay_seconds=st.floats(0, 30),
    max_delay_seconds=st.floats(0, 30),
    jitter=st.booleans(),
    undeclared=st.booleans(),
    retry_on=st.none() | st.sampled_from([("busy",), ("module_error", "timed_out"), ()]),
)


@given(
    ends=st.lists(attempts, min_size=MOST_RETRIES + 3, max_size=MOST_RETRIES + 3),
    effect=st.sampled_from(EFFECTS),
    terms=terms_of_any_kind,
    habit=st.booleans(),
    jitter=st.floats(0, 1),
)
def test_however_attempts_end_nothing_is_doubled(
    ends: list[Attempt], effect: Effect | None, terms: RetryTerms | None, habit: bool, jitter: float
) -> None:
    """A call has no more attempts than may be, and none of `once` after something may have happened."""
    made, so_far, may_have_acted = 0, "none", 0
    for attempt in ends:
        made += 1
        may_have_acted += attempt.result.effect_state != "none"
        following = decide(
            attempt,
            effect,
            attempts=made,
            seconds_left=60,
            so_far=so_far,  # type: ignore[arg-type] # as the ledger keeps it
            longest_delay=20,
            jitter=jitter,
            retries_undeclared=habit and effect is None,
            terms=terms,
        )
        if following.delay is None:
            break
        assert 0 <= following.delay < 20
        assert terms is None or terms.retry_on is None or attempt.result.error_code in terms.retry_on
        so_far = following.result.effect_state
        is_repeated = terms is not None and terms.undeclared
        is_invited = (attempt.says_retryable or habit) and made < MAX_ATTEMPTS
        is_asked_for = effect is None and attempt.outcome not in UNHEARD and (is_repeated or is_invited)
        assert so_far == "none" or effect in HARMLESS or is_asked_for
    assert made <= most_attempts(terms) <= MOST_RETRIES + 1
    if effect == "once":
        assert may_have_acted <= 1
    if effect is None and (terms is None or not terms.undeclared):
        assert may_have_acted <= MAX_ATTEMPTS


@pytest.mark.parametrize(
    ("outcome", "effect", "attempts", "so_far", "is_retried"),
    [
        (Outcome.SERVER_ERROR, "read", 10, "unknown", True),  # a repeat does no harm
        (Outcome.SERVER_ERROR, "read", 11, "unknown", False),  # the last one that there may be
        (Outcome.UNKNOWN, "idempotent", 7, "unknown", True),
        (Outcome.NOT_SENT, "once", 7, "none", True),  # nothing has happened yet, in all seven
        (Outcome.NOT_SENT, "once", 7, "unknown", False),  # one of them may have done it
        (Outcome.UNKNOWN, "once", 1, "none", False),
        (Outcome.TURNED_AWAY, None, 7, "none", True),
        (Outcome.PERMANENT, "read", 1, "none", False),  # a repeat could not help
        (Outcome.SUCCESS, "read", 1, "none", False),
    ],
)
def test_more_than_one_retry_is_for_what_does_no_harm(
    outcome: Outcome, effect: Effect | None, attempts: int, so_far: EffectState, is_retried: bool
) -> None:
    """Ten retries are no more than ten, and only where nothing can happen twice."""
    delay = delay_after(ended(outcome), effect, attempts=attempts, so_far=so_far, terms=NO_JITTER)
    assert (delay is not None) == is_retried


@pytest.mark.parametrize("habit", [True, False])
def test_an_undeclared_tool_is_invited_once(habit: bool) -> None:
    """Neither its module's word nor a habit gives it a second retry, whatever the profile says."""
    attempt = ended(Outcome.FAILED, says_retryable=not habit)
    said: dict[str, Any] = {"retries_undeclared": habit, "terms": NO_JITTER}
    assert delay_after(attempt, None, **said) is not None
    assert delay_after(attempt, None, attempts=2, so_far="unknown", **said) is None


@pytest.mark.parametrize(
    ("attempt", "effect", "attempts", "is_retried"),
    [
        (ended(Outcome.FAILED), None, 1, True),
        (ended(Outcome.SERVER_ERROR), None, 3, True),
        (ended(Outcome.FAILED), None, 4, False),  # three retries are all
        (ended(Outcome.FAILED, "done"), None, 1, False),  # it has surely been done
        (ended(Outcome.UNKNOWN, code="timed_out"), None, 1, False),  # nobody knows what happened
        (ended(Outcome.FAILED), "once", 1, False),
        (ended(Outcome.FAILED), "read", 1, False),  # what it has answered is its answer
    ],
)
def test_a_profile_repeats_what_undeclared_tools_have_answered(
    attempt: Attempt, effect: Effect | None, attempts: int, is_retried: bool
) -> None:
    """With `undeclared`, an answered failure of a tool without an effect is repeated up to `max_retries` times, and nothing else."""
    terms = RetryTerms(max_retries=3, undeclared=True)
    so_far: EffectState = "none" if attempts == 1 else "unknown"
    assert (delay_after(attempt, effect, attempts=attempts, so_far=so_far, terms=terms) is not None) == is_retried
    plain = terms.model_copy(update={"undeclared": False})
    assert delay_after(attempt, effect, attempts=attempts, so_far=so_far, terms=plain) is None


FIRST = ToolResult.failed("m.t", "module_error", "no luck", effect_state="unknown")


@pytest.mark.parametrize(
    ("attempt", "effect", "so_far", "error"),
    [
        (ended(Outcome.PERMANENT, code="conflict"), None, "unknown", "no luck"),
        (ended(Outcome.TURNED_AWAY, code="busy"), None, "unknown", "no luck"),
        (ended(Outcome.NOT_SENT, code="module_unreachable"), None, "unknown", "no luck"),
        (ended(Outcome.FAILED), None, "unknown", "no"),  # a later answer is an answer
        (ended(Outcome.UNKNOWN, code="timed_out"), None, "unknown", "no"),  # the repeat may have happened
    ],
)
def test_a_repeat_that_is_declined_keeps_the_first_answer(
    attempt: Attempt, effect: Effect | None, so_far: EffectState, error: str
) -> None:
    """A call whose module has answered, and declines the repeat or never gets it, ends with that answer and its words."""
    terms = RetryTerms(max_retries=1, undeclared=True)
    usual: dict[str, Any] = {"attempts": 2, "seconds_left": 100, "longest_delay": 100, "jitter": 0.5}
    follows = decide(attempt, effect, so_far=so_far, terms=terms, answered=FIRST, **usual)
    assert (follows.delay, follows.result.error) == (None, error)
    if error == "no luck":
        assert (follows.result.error_code, follows.result.effect_state) == ("module_error", "unknown")


@pytest.mark.parametrize(
    ("granted", "effect", "so_far", "is_kept"),
    [
        ("go", None, "unknown", True),
        ("open", None, "unknown", True),  # its module has gone meanwhile
        ("exhausted", None, "unknown", True),
        ("exhausted", None, "done", True),
        ("unapproved", None, "unknown", True),
        ("unknown", None, "unknown", False),  # a later attempt was lost
        ("killed", None, "unknown", False),
        ("accepted", None, "unknown", False),
        ("go", None, "none", False),  # the first one did nothing, and said nothing of the call
        ("go", "read", "unknown", False),
        ("go", "idempotent", "unknown", False),
        ("go", "once", "unknown", False),
    ],
)
def test_an_answer_is_the_end_of_a_call_that_is_begun_no_more(
    granted: Granted, effect: Effect | None, so_far: EffectState, *, is_kept: bool
) -> None:
    """Of a tool without an effect, where no later attempt can have done anything."""
    keys: Any = None
    claim = Claim(published(effect=effect), keys, "token", granted=granted, so_far=so_far, last=FIRST)
    assert claim.answer_before is (FIRST if is_kept else None)
    assert Claim(claim.call, keys, "token", granted=granted, so_far=so_far).answer_before is None


def test_undeclared_tools_are_repeated_only_where_both_say_so() -> None:
    """An agent's message and a worker's profile together repeat no more than each of them does."""
    both = RetryTerms(max_retries=5, undeclared=True)
    one = RetryTerms(max_retries=5)
    said = [fewest_retries(first, second) for first, second in ((both, both), (both, one), (one, both), (both, None))]
    assert [terms is not None and terms.undeclared for terms in said] == [True, False, False, False]


def test_no_retry_is_no_retry() -> None:
    """With 0 the first attempt is the last."""
    none = RetryTerms(max_retries=0)
    assert all(delay_after(ended(outcome), effect, terms=none) is None for outcome in Outcome for effect in EFFECTS)


def test_pauses_grow_to_the_longest() -> None:
    """The initial one times the factor, for each attempt once more; with jitter up to twice as long, and no longer than the longest."""
    attempt, terms = ended(Outcome.NOT_SENT), RetryTerms(max_retries=10, initial_delay_seconds=1, max_delay_seconds=6)
    plain = terms.model_copy(update={"jitter": False})
    said = [delay_after(attempt, "read", attempts=number, terms=plain) for number in range(1, 6)]
    assert said == [1, 2, 4, 6, 6]
    assert delay_after(attempt, "read", attempts=2, terms=terms, jitter=0.5) == 3
    assert delay_after(attempt, "read", attempts=3, terms=terms, jitter=1) == 6


def test_a_pause_fits_what_the_broker_can_hold_and_the_deadline() -> None:
    """It is shortened for the broker; where the deadline comes first, there is no retry."""
    attempt = ended(Outcome.NOT_SENT)
    terms = RetryTerms(max_retries=3, initial_delay_seconds=20, jitter=False)
    assert delay_after(attempt, "read", terms=terms, longest_delay=10) == 9
    assert delay_after(attempt, "read", terms=terms, seconds_left=20) is None


def test_the_modules_wish_counts_more_than_a_pause() -> None:
    """Its `Retry-After` is what is waited for, neither spread nor bounded by the profile."""
    busy = replace(ended(Outcome.TURNED_AWAY), retry_after_seconds=7)
    terms = RetryTerms(max_retries=3, max_delay_seconds=1)
    assert delay_after(busy, "read", attempts=2, terms=terms) == 7


def test_only_named_errors_are_retried() -> None:
    """`retry_on` takes from what may be repeated, and adds nothing to it."""
    terms = RetryTerms(max_retries=5, retry_on=("timed_out",))
    assert delay_after(ended(Outcome.SERVER_ERROR), "read", terms=terms) is None
    assert delay_after(ended(Outcome.UNKNOWN, code="timed_out"), "read", terms=terms) is not None
    assert delay_after(ended(Outcome.UNKNOWN, code="timed_out"), "once", terms=terms) is None


def test_the_stricter_of_two_holds() -> None:
    """Fewer retries, longer pauses, the errors of both; who says nothing has the fleet's single retry."""
    one = RetryTerms(max_retries=5, initial_delay_seconds=2, retry_on=("busy", "timed_out"))
    other = RetryTerms(max_retries=3, backoff_factor=3, jitter=False, retry_on=("module_error", "timed_out"))
    both = RetryTerms(max_retries=3, backoff_factor=3, initial_delay_seconds=2, retry_on=("timed_out",))
    assert fewest_retries(one, other) == fewest_retries(other, one) == both
    assert fewest_retries(one, one) == one
    assert fewest_retries(None, None) is None
    single = fewest_retries(one, None)
    assert single is not None
    assert (single.max_retries, single.retry_on) == (1, ("busy", "timed_out"))


@pytest.mark.parametrize(
    "said",
    [
        {"max_retries": MOST_RETRIES + 1},
        {"max_retries": -1},
        {"backoff_factor": 0.5},
        {"backoff_factor": float("inf")},
        {"initial_delay_seconds": 31},
        {"max_delay_seconds": float("nan")},
        {"retry_on": ["x"] * 65},
    ],
)
def test_a_message_cannot_say_more(said: dict[str, Any]) -> None:
    """Whoever forges one gets no more than anybody's profile could."""
    with pytest.raises(ValidationError):
        RetryTerms.model_validate(said)


@pytest.mark.parametrize(
    ("outcome", "terms", "line"),
    [
        (Outcome.FAILED, RetryTerms(max_retries=3), "`undeclared = true` in the agent's `tool_retry`"),
        (Outcome.SERVER_ERROR, RetryTerms(max_retries=3), "`undeclared = true` in the agent's `tool_retry`"),
        (Outcome.UNKNOWN, RetryTerms(max_retries=3), '`effects = {t = "read"}` in `[module.m]`'),
        (Outcome.FAILED, RetryTerms(max_retries=3, undeclared=True), None),  # it is repeated
        (Outcome.FAILED, RetryTerms(max_retries=0), None),  # none was wanted
        (Outcome.FAILED, None, None),
        (Outcome.PERMANENT, RetryTerms(max_retries=3), None),  # a repeat could not help
    ],
)
def test_the_hint_names_the_line_that_would_have_it_repeated(
    outcome: Outcome, terms: RetryTerms | None, line: str | None
) -> None:
    """Where a profile's retries do not act, since the tool declares no effect."""
    usual: dict[str, Any] = {"attempts": 1, "seconds_left": 100, "so_far": "none", "longest_delay": 100, "jitter": 0.5}
    hint = decide(ended(outcome), None, terms=terms, **usual).result.hint or ""
    assert ("declares no effect" in hint) == (line is not None)
    assert (line or "") in hint
    declared = decide(ended(outcome), "once", terms=terms, **usual).result.hint or ""
    assert "declares no effect" not in declared
