"""How long a module may be asked what became of a call, and how its answer ends the call."""

import pytest

from support.published_call import published
from support.workers.ledgers import SUCCESS, attempt
from toolfleet_registry.contracts import Effect
from toolfleet_registry.contracts.attempts import Attempt, Outcome
from toolfleet_registry.contracts.inputs import CallInputs
from toolfleet_workers.execution.execute import as_said, is_asked, seconds_to_ask

SILENT, LOST = attempt(Outcome.UNKNOWN, "timed_out"), attempt(Outcome.UNKNOWN)
NOT_BEGUN = attempt(Outcome.NOT_SENT, "module_error", "none")


@pytest.mark.parametrize(
    ("last", "left", "seconds"),
    [
        (LOST, 100, 5),  # its module may be starting anew
        (None, 100, 5),  # the worker that ran it was lost
        (SILENT, 100, 1),  # the limit is over: whoever lives says it at once
        (LOST, 2, 2),
        (SILENT, 0.5, 0.5),
        (LOST, -1, -1),
    ],
)
def test_a_question_keeps_to_the_limit_and_the_deadline(last: Attempt | None, left: float, seconds: float) -> None:
    """A silent module has had its time: no call ends more than a second after its limit for its sake."""
    assert seconds_to_ask(published(deadline_at=1000 + left), last, now=1000) == seconds


@pytest.mark.parametrize(
    ("last", "state", "expected"),
    [
        (LOST, "unknown", True),
        (SILENT, "unknown", True),
        (NOT_BEGUN, "unknown", True),  # of an earlier attempt nobody knows
        (NOT_BEGUN, "none", False),
        (LOST, "done", False),
        (attempt(Outcome.FAILED), "unknown", False),  # it has said what it knows
        (attempt(Outcome.SERVER_ERROR), "unknown", False),
    ],
)
def test_only_what_nobody_knows_is_asked(last: Attempt, state: str, expected: bool) -> None:
    """A module that has answered is not asked what it has answered."""
    result = last.result.model_copy(update={"effect_state": state})
    assert is_asked(last, result) == expected


@pytest.mark.parametrize("effect", [None, "read", "idempotent", "once"])
def test_a_modules_word_ends_the_call(effect: Effect | None) -> None:
    """What it has executed is its result; what it has not, and never will, may be repeated by anybody."""
    nothing = as_said(NOT_BEGUN, published(effect=effect))

    assert as_said(SUCCESS, published(effect=effect)) == SUCCESS.result
    assert (nothing.effect_state, nothing.retryable) == ("none", True)
    assert nothing.hint is not None
    assert "may be repeated" in nothing.hint


def test_that_nothing_was_begun_since_an_answer_says_nothing_of_before() -> None:
    """A call that had asked something may have done something by then, unless its module has said that it had not."""
    unsure = published(inputs=CallInputs(round=1, responses={}, so_far="unknown"))
    untouched = published(inputs=CallInputs(round=1, responses={}, so_far="none"))

    assert (as_said(NOT_BEGUN, unsure).effect_state, as_said(NOT_BEGUN, unsure).retryable) == ("unknown", False)
    assert (as_said(NOT_BEGUN, untouched).effect_state, as_said(NOT_BEGUN, untouched).retryable) == ("none", True)
