"""What a model is told after a failure, for everything that a result can say."""

import itertools
import re
from typing import get_args

import pytest

from toolfleet_registry.contracts import Effect, EffectState, ErrorCode, ToolResult
from toolfleet_registry.policy.hints import hint_for

CODES: tuple[ErrorCode | None, ...] = (None, *get_args(ErrorCode))
STATES: tuple[EffectState, ...] = get_args(EffectState)
FAILURES = [
    ToolResult(
        tool_name="m.t",
        success=False,
        error="no",
        error_code=code,
        effect_state=state,
        retryable=retryable,
        retry_after_seconds=wish,
    )
    for code, state, retryable, wish in itertools.product(CODES, STATES, (False, True), (None, 0.0, 2.5))
]
# How one says to a model that it should do it once more.
INVITATION = re.compile(r"\b(again|retry|once more|anew|later|may be repeated|may repeat|call it)\b", re.IGNORECASE)


@pytest.mark.parametrize("result", FAILURES, ids=lambda result: f"{result.error_code}-{result.effect_state}")
def test_every_failure_has_one_sentence(result: ToolResult) -> None:
    """Whatever its code, its effect and its wish: short, whole, and one."""
    hint = hint_for(result)

    assert hint is not None
    assert re.fullmatch(r"[A-Z][^.]+\.", hint.replace("2.5", "")), hint
    assert len(hint) < 160
    assert result.effect_state == "none" or "Nothing was executed" not in hint


@pytest.mark.parametrize(
    "result",
    [result for result in FAILURES if not result.retryable and result.effect_state != "none"],
    ids=lambda result: f"{result.error_code}-{result.effect_state}",
)
def test_nobody_is_invited_to_do_a_thing_twice(result: ToolResult) -> None:
    """Where a repeat could double an effect, the hint says how to find out, and nothing that sounds like an invitation."""
    hint = hint_for(result) or ""

    assert not INVITATION.search(hint)
    assert "a tool that only reads" in hint
    assert "person" in hint
    assert "before repeating" in hint or "do not repeat" in hint


@pytest.mark.parametrize("effect", [None, "read", "idempotent", "once"])
def test_a_reader_that_failed_has_changed_nothing(effect: Effect | None) -> None:
    """It was executed all the same, which of no other tool with the effect `none` is so."""
    result = ToolResult.failed("m.t", "module_error", "no", effect_state="none", retryable=True)
    starts = "It only reads, so nothing has changed: " if effect == "read" else "Nothing was executed: "

    assert hint_for(result, effect) == f"{starts}correct the call by what the error says; it may be repeated."


def test_a_reader_that_was_taken_back_may_be_called_again() -> None:
    """As it is with any other end of one that may have run: what says `retryable` does not warn of a repeat."""
    ended = ToolResult.failed("m.t", "cancelled", "no", effect_state="unknown", retryable=True)

    assert hint_for(ended) == "It may have been executed, but a repeat does no harm: the call may be repeated as it is."


def test_what_was_taken_back_is_not_offered_again() -> None:
    """It could be repeated without harm, and nobody wants it."""
    result = ToolResult(tool_name="m.t", success=False, error_code="cancelled", effect_state="none", retryable=True)

    assert "only if the person still wants it" in (hint_for(result) or "")


@pytest.mark.parametrize("code", [code for code in CODES if code != "cancelled"])
def test_who_may_repeat_is_told_so(code: ErrorCode | None) -> None:
    """Also after how long, in whole seconds, and never sooner than the module wishes."""
    result = ToolResult(tool_name="m.t", success=False, error_code=code, effect_state="none", retryable=True)
    later = result.model_copy(update={"retry_after_seconds": 2.1})

    assert "repeat" in (hint_for(result) or "")
    if code != "result_too_large":  # as it is, it would be too large again
        assert "after 3 s" in (hint_for(later) or "")


def test_a_success_needs_no_hint() -> None:
    """There is nothing to mend."""
    assert hint_for(ToolResult.ok("m.t", 1)) is None
