"""One voice for one failure: the error says what went wrong, and its hint whether something has happened and what to do."""

import re
from collections.abc import Callable

import pytest

from support.published_call import published
from toolfleet_registry.contracts import Effect, EffectState, ToolResult
from toolfleet_registry.contracts.attempts import Attempt, Outcome
from toolfleet_registry.policy.hints import hint_for
from toolfleet_tasks.calls.idempotency import Joined
from toolfleet_tasks.calls.pending_call import audited
from toolfleet_tasks.ledger.retry import settled
from toolfleet_tasks.messages import fleet_results
from toolfleet_tasks.results.receipts import verdict_of

NAME = "owls.echo"
ADVICE = re.compile(r"\b(repeat|again|check|may have been|not executed|Nothing was executed|retry)", re.IGNORECASE)

ENDS: dict[str, Callable[[Effect | None], ToolResult]] = {
    "timed out": lambda _: fleet_results.timed_out(NAME, 2),
    "expired": lambda _: fleet_results.expired(NAME),
    "undone": lambda _: fleet_results.undone(NAME),
    "unanswered": lambda effect: fleet_results.unanswered(published(NAME, effect=effect)),
    "cancelled before": lambda effect: fleet_results.taken_back(published(NAME, effect=effect)).unbegun,
    "cancelled meanwhile": lambda effect: fleet_results.taken_back(published(NAME, effect=effect)).unknown,
    "unknown": lambda _: fleet_results.outcome_unknown(NAME, "the worker was lost."),
    "workers died": lambda _: fleet_results.workers_died(NAME, "none"),
    "workers died with it": lambda _: fleet_results.workers_died(NAME, "unknown"),
    "worker failed": lambda _: fleet_results.worker_failed(NAME, "KeyError"),
    "no Redis": lambda _: fleet_results.fleet_unavailable(NAME, "it is away"),
    "not published": lambda _: fleet_results.not_published(NAME, "it is too large"),
    "not known": lambda _: fleet_results.not_known(NAME, 3),
    "module away": lambda _: fleet_results.module_away(NAME, 3),
    "unserved": lambda _: fleet_results.unserved(NAME, "fast"),
    "draining": lambda _: fleet_results.draining(NAME, "tools.owls"),
    "refused": lambda _: fleet_results.message_refused(NAME, "it is not signed."),
    "too new": lambda _: fleet_results.message_too_new(NAME, "version 9"),
    "dropped": lambda effect: fleet_results.dropped(published(NAME, effect=effect)),
    "had": lambda effect: verdict_of(published(NAME, effect=effect), ToolResult.ok(NAME, 1), "1"),
    "many wait": lambda _: fleet_results.too_many_wait(NAME, 10),
}


@pytest.mark.parametrize("effect", [None, "read", "idempotent", "once"])
@pytest.mark.parametrize("end", ENDS)
def test_an_error_gives_no_advice_and_its_hint_does(end: str, effect: Effect | None) -> None:
    """Neither says what the other says, and the hint agrees with `retryable` and `effect_state`."""
    result = audited("call-1", ENDS[end](effect))

    assert not ADVICE.search(result.error or ""), result.error
    assert result.hint
    assert ("It may have been executed" in result.hint) <= (result.effect_state == "unknown")
    assert ("Nothing was executed" in result.hint) <= (result.effect_state == "none")
    assert ("repeat does no harm" in result.hint) <= result.retryable


@pytest.mark.parametrize("so_far", ["unknown", "done"])
@pytest.mark.parametrize("effect", [None, "read", "once"])
def test_a_retry_that_found_no_module_gives_its_advice_in_the_hint(effect: Effect | None, so_far: EffectState) -> None:
    """The error has the first attempt as a fact."""
    away = ToolResult.failed(NAME, "module_unreachable", "Connection refused", effect_state="none", retryable=True)
    result = settled(Attempt(Outcome.NOT_SENT, away), effect, so_far)

    assert (result.error or "").startswith("Connection refused. An earlier attempt ")
    assert not ADVICE.search(result.error or "")
    assert result.hint == hint_for(result, effect)


@pytest.mark.parametrize("effect", [None, "read", "idempotent", "once"])
async def test_who_waits_for_another_call_is_advised_by_the_hint(effect: Effect | None) -> None:
    """With the same key only, where a repeat could double the effect."""
    joined = Joined(published(NAME, effect=effect, idempotency_key="k"), "call-0")
    joined.leave("timed_out", "Tool call was not answered by its deadline.")
    result = await joined.ending

    assert not ADVICE.search(result.error or "")
    assert ("same idempotency key" in (result.hint or "")) == (effect not in {"read", "idempotent"})


RAISED = "owls.echo failed inside the module (KeyError); its log says why."
LOCAL = "Tool execution error: the function failed (KeyError); its log says why."


@pytest.mark.parametrize(
    ("error", "effect", "hint"),
    [
        ("no such owl", "read", "It only reads, so nothing has changed: correct the call by what the error says; it may be repeated."),
        (RAISED, "read", "It only reads, so nothing has changed: repeat the call as it is, or tell the person."),
        (LOCAL, "read", "It only reads, so nothing has changed: repeat the call as it is, or tell the person."),
        ("no such owl", None, "The tool says that it failed: correct the call, but if it changes something, check with a tool that only reads before you repeat it."),
        (RAISED, None, "It may have been executed: find out with a tool that only reads, or ask the person, before repeating it, for a repeat could do it twice."),
    ],
)  # fmt: skip
def test_what_a_tool_has_raised_corrects_no_call(error: str, effect: Effect | None, hint: str) -> None:
    """Its text is in a log: the model may repeat the call or tell the person, and is not sent to correct it."""
    failed = ToolResult.failed(NAME, "module_error", error, effect_state="unknown")
    assert settled(Attempt(Outcome.FAILED, failed), effect, "none").hint == hint
