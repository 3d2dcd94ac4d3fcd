"""The proof's own checks find what they are there to find."""

from typing import Any

import pytest

from chaos.checks.call_checks import LATE_SECONDS, Evidence, check_calls
from chaos.records.journal import Entry, Journal
from chaos.records.outcomes import FIRST, SECOND, Ending
from toolfleet_registry.contracts import Audit, ToolResult

IDEMPOTENT = "bank.idempotent"
REPLY = {"success": True, "result": {"execution": "e1"}, "error": None}


def effect(call_id: str = "c1", *, ref: str = "r1", tool: str = "bank.once", execution: str = "e1") -> Entry:
    reply = {**REPLY, "result": {"execution": execution}}
    return Entry("effect", call_id, ref, tool, at=0, pid=1, reply=reply)


def begun(call_id: str = "c1", *, at: float) -> Entry:
    return Entry("start", call_id, "r1", "bank.once", at=at, pid=1)


def result(call_id: str = "c1", *, worker: str | None = "w@host", **fields: Any) -> ToolResult:
    audit = Audit(call_id=call_id, tool="bank.once", ts=0, worker=worker)
    own: dict[str, Any] = {"tool_name": "bank.once", "success": True, "result": REPLY["result"], "effect_state": "done"}
    own |= {"audit": audit, **fields}
    return ToolResult(**own)


def failure(
    call_id: str = "c1", *, state: str, worker: str | None = "w@host", code: str = "timed_out", **fields: Any
) -> ToolResult:
    words = {"error": "It did not work.", "hint": "Look first.", "result": None, **fields}
    return result(call_id, worker=worker, success=False, error_code=code, effect_state=state, **words)


def ending(result: ToolResult | None, **fields: Any) -> Ending:
    own: dict[str, Any] = {"ref": "r1", "tool": "bank.once", "way": "called", "timeout": 5, "began_at": 0, "seconds": 1}
    own |= {"result": result, **fields}
    return Ending(**own)


def found(endings: list[Ending], effects: list[Entry], *, stored: dict[str, ToolResult] | None = None) -> set[str]:
    """The checks that have something to say."""
    evidence = Evidence(endings, Journal(effects), len(endings), stored or {})
    return {name for name, violations in check_calls(evidence).items() if violations}


def test_a_call_that_went_well_is_no_violation() -> None:
    """One execution, one success, and the same is stored."""
    assert found([ending(result())], [effect()], stored={"c1": result()}) == set()


def test_what_reaches_a_module_within_a_lease_is_no_violation() -> None:
    """Whoever holds it does not know yet that the call has ended."""
    assert found([ending(failure(state="unknown"))], [begun(at=1 + LATE_SECONDS - 0.1)]) == set()


def test_a_reader_that_failed_leaves_its_key_free() -> None:
    """It ran, and nothing can have happened: the next call under the key is another try, with whatever arguments."""
    failed = [
        ending(failure(f"c{number}", state="none", code="module_error", tool_name="bank.read")) for number in (1, 2)
    ]
    effects = [effect("c1", tool="bank.read"), effect("c2", tool="bank.read"), effect("c3", ref="r1-other")]

    assert found(failed, effects) == set()


def test_newer_writes_may_be_repeated() -> None:
    """Each of two that were confirmed may happen twice, as long as the newer one comes last."""
    endings = [ending(result(f"c{end[1]}"), way="paired", ref=f"p{end}", tool=IDEMPOTENT) for end in (FIRST, SECOND)]
    order = (FIRST, FIRST, SECOND, SECOND)

    assert found(endings, [effect(f"c{end[1]}", ref=f"p{end}", tool=IDEMPOTENT) for end in order]) == set()


def test_a_missing_ending_is_found() -> None:
    """A call that was made and never noted as ended."""
    evidence = Evidence([], Journal([]), 1, {})

    assert check_calls(evidence)["Every awaited call gave exactly one result"]


@pytest.mark.parametrize(
    ("endings", "effects", "check"),
    [
        # a call that raised, hung, or gave nothing
        ([ending(None, error="hung")], [], "Every awaited call gave exactly one result"),
        ([ending(None)], [], "Every awaited call gave exactly one result"),
        # an end that came ten seconds after its deadline
        ([ending(result(), seconds=15)], [effect()], "No call ended later than its deadline and the margin"),
        # a once-only call that was executed again, one of which nobody says what that does, a harmless one a third time
        ([], [effect(), effect()], "No call was executed more often than its effect allows"),
        ([], [effect(tool="bank.undeclared")] * 2, "No call was executed more often than its effect allows"),
        ([], [effect(tool="bank.read")] * 3, "No call was executed more often than its effect allows"),
        # a repeat under one key that was executed as a call of its own
        (
            [],
            [effect("c1"), effect("c2")],
            "No intention was executed as two calls: a repeat under its key joins the first",
        ),
        # another intention under the same key
        (
            [],
            [effect("c1"), effect("c2", ref="r1-other")],
            "Under one key, two calls with different arguments are not both executed",
        ),
        # a write that came again after a newer one was confirmed
        (
            [ending(result(f"c{end[1]}"), way="paired", ref=f"p{end}", tool=IDEMPOTENT) for end in (FIRST, SECOND)],
            [effect(f"c{end[1]}", ref=f"p{end}", tool=IDEMPOTENT) for end in (FIRST, SECOND, FIRST)],
            "Of two writes that were confirmed one after the other, the newer one is the last that happened",
        ),
        # a request that came when its caller had long been told how it ended
        (
            [ending(failure(state="unknown"))],
            [begun(at=1 + LATE_SECONDS + 0.1)],
            "Nothing reaches a module after the end of its call was told, but for the rest of a lease",
        ),
        # said not to have happened, and it has
        ([ending(failure(state="none"))], [effect()], "What was said not to have happened has not happened"),
        # said to have happened, and it has not
        ([ending(failure(state="done"))], [], "What was said to have happened has happened"),
        # a success with what another call's execution gave
        (
            [ending(result("c2"))],
            [effect("c2", execution="e2")],
            "A success brings what one of its own executions gave",
        ),
        # another call's result under the same key
        (
            [ending(result(), ref="r2", key="k")],
            [effect()],
            "A success was brought by the caller's own arguments, not by others under the same key",
        ),
        # two who asked for one call, told different things by workers
        (
            [ending(result()), ending(failure(state="unknown"))],
            [effect()],
            "All who asked for a call were told the same, and it is what is stored, but for whom the deadline cut off",
        ),
        # a failure that does not say what may be done
        (
            [ending(failure(state="unknown").model_copy(update={"hint": None}))],
            [],
            "Every failure has an error, a code and a hint; only a repeat that cannot double an effect is called harmless",
        ),
        # words that promise more than the state
        (
            [ending(failure(state="unknown", error="It was not executed."))],
            [],
            "What an error says in words about its effect is what its effect state says",
        ),
        # a once-only call with an unknown end, called harmless to repeat
        (
            [ending(failure(state="unknown", retryable=True))],
            [],
            "Every failure has an error, a code and a hint; only a repeat that cannot double an effect is called harmless",
        ),
        # the same of a call with a key, without which it may be repeated
        (
            [ending(failure(state="unknown", retryable=True), way="keyed", key="k")],
            [],
            "Every failure has an error, a code and a hint; only a repeat that cannot double an effect is called harmless",
        ),
    ],
)
def test_each_check_finds_its_violation(endings: list[Ending], effects: list[Entry], check: str) -> None:
    """And only that one."""
    assert found(endings, effects) == {check}


def test_a_module_that_nobody_reaches_for_long_is_found() -> None:
    """Calls are refused for half a minute because its breaker stays open."""
    refusals = [
        ending(failure(state="none", code="module_unreachable", retry_after_seconds=1), began_at=seconds)
        for seconds in (0, 10, 30)
    ]

    assert found(refusals, []) == {
        "No module is left alone for long: it is up again within seconds, and a call that finds this out may die"
    }


def test_what_is_stored_must_be_what_was_told() -> None:
    """A worker that brings its result after the call had ended otherwise must not have it stored."""
    told, late = failure(state="unknown"), result()

    assert found([ending(told)], [effect()], stored={"c1": late})


def test_who_was_cut_off_by_the_deadline_may_have_been_told_less() -> None:
    """The agent could not reach Redis at the deadline: it says that it does not know, and the call has its own end."""
    cut_off = failure(state="unknown", worker=None)

    assert found([ending(cut_off)], [effect()], stored={"c1": result()}) == set()
