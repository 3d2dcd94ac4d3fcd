"""What must hold after a run, of calls: each check gives the violations that it finds, with what proves them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from chaos.plan import LEASE_SECONDS, LEFT_ALONE_SECONDS, MARGIN_SECONDS, effect_of
from chaos.records.journal import Journal
from chaos.records.outcomes import FIRST, SECOND, Ending
from toolfleet_registry.contracts import ToolResult

AT_MOST = {"once": 1, "idempotent": 2, "read": 2, "undeclared": 1}
"""Executions of one call, by what its tool declares."""

LATE_SECONDS = LEASE_SECONDS + 1
"""So long after its end was told a call may still reach a module: whoever has its lease then does not know yet. The second is
what a request may wait in a socket for a busy module."""

OTHER = "-other"
"""Ends the `ref` of a call with other arguments under the key of the one whose `ref` is before it."""


@dataclass(frozen=True)
class Violation:
    """What does not hold, and of which call or intention."""

    check: str
    text: str
    call_id: str | None = None
    ref: str | None = None


@dataclass(frozen=True)
class Evidence:
    """What a run has left: `stored` is the result that Redis has of a call, for those that it has any of."""

    endings: list[Ending]
    journal: Journal
    expected: int
    stored: Mapping[str, ToolResult]


def check_calls(evidence: Evidence) -> dict[str, list[Violation]]:
    """Every check by its name, with what it found."""
    found = {(check.__doc__ or "").splitlines()[0].rstrip("."): list(check(evidence)) for check in _CHECKS}
    return {
        name: [Violation(name, text, call_id, ref) for text, call_id, ref in facts] for name, facts in found.items()
    }


_Fact = tuple[str, str | None, str | None]


def _everyone_is_answered(evidence: Evidence) -> Iterator[_Fact]:
    """Every awaited call gave exactly one result."""
    if len(evidence.endings) != evidence.expected:
        yield f"{evidence.expected} calls were made, and {len(evidence.endings)} ended", None, None
    for ending in evidence.endings:
        if ending.error is not None:
            yield f"{ending.way} {ending.tool} {ending.ref}: {ending.error}", ending.call_id, ending.ref
        elif ending.result is None and ending.way != "given_up":
            yield f"{ending.way} {ending.tool} {ending.ref}: no result", None, ending.ref


def _nobody_waits_too_long(evidence: Evidence) -> Iterator[_Fact]:
    """No call ended later than its deadline and the margin."""
    for ending in evidence.endings:
        late = ending.seconds - ending.timeout
        if late > MARGIN_SECONDS:
            yield (
                f"{_shown(ending)}: {late:.1f} s after its deadline of {ending.timeout:.1f} s",
                ending.call_id,
                ending.ref,
            )


def _bounded_executions(evidence: Evidence) -> Iterator[_Fact]:
    """No call was executed more often than its effect allows."""
    for call_id, effects in evidence.journal.effects.items():
        if len(effects) > AT_MOST[effect_of(effects[0].tool)]:
            yield f"{effects[0].tool} {call_id}: executed {len(effects)} times", call_id, effects[0].ref


def _nobody_is_shut_out(evidence: Evidence) -> Iterator[_Fact]:
    """No module is left alone for long: it is up again within seconds, and a call that finds this out may die."""
    since: dict[str, float] = {}
    for ending in sorted(evidence.endings, key=lambda ending: ending.began_at + ending.seconds):
        result, module, at = ending.result, ending.tool.partition(".")[0], ending.began_at + ending.seconds
        if result is None:
            continue
        if result.success:
            since.pop(module, None)
        elif result.error_code == "module_unreachable" and result.retry_after_seconds is not None:
            began_at = since.setdefault(module, at)
            if at - began_at > LEFT_ALONE_SECONDS:
                yield (
                    f"{module} is left alone since {at - began_at:.0f} s: {_shown(ending)}",
                    ending.call_id,
                    ending.ref,
                )
                del since[module]


def _one_intention_once(evidence: Evidence) -> Iterator[_Fact]:
    """No intention was executed as two calls: a repeat under its key joins the first.

    But for readers that answered that they failed: nothing has happened, so that the key is free for another try.
    """
    freed = _failed_readings(evidence)
    for ref, effects in evidence.journal.effects_of_ref.items():
        calls = {effect.call_id for effect in effects} - freed
        if len(calls) > 1:
            yield f"{effects[0].tool} {ref}: executed {len(effects)} times, as {sorted(calls)}", effects[0].call_id, ref


def _newer_writes_last(evidence: Evidence) -> Iterator[_Fact]:
    """Of two writes that were confirmed one after the other, the newer one is the last that happened."""
    confirmed = {end.ref for end in evidence.endings if end.way == "paired" and end.result and end.result.success}
    last = {entry.ref: place for place, entry in enumerate(evidence.journal.entries) if entry.mark == "effect"}
    for ref in sorted(confirmed):
        older = ref.removesuffix(SECOND) + FIRST
        if ref.endswith(SECOND) and last.get(older, -1) > last.get(ref, -1):
            yield (
                f"{older} happened after {ref} had been confirmed",
                evidence.journal.effects_of_ref[older][0].call_id,
                older,
            )


def _nothing_begins_late(evidence: Evidence) -> Iterator[_Fact]:
    """Nothing reaches a module after the end of its call was told, but for the rest of a lease."""
    told: dict[str, float] = {}
    for ending in evidence.endings:
        if ending.result and ending.call_id and not _is_cut_off(ending.result):
            at = ending.began_at + ending.seconds
            told[ending.call_id] = min(told.get(ending.call_id, at), at)
    for call_id, at in told.items():
        late = [entry for entry in evidence.journal.by_call.get(call_id, []) if entry.mark == "start"]
        late = [entry for entry in late if entry.at > at + LATE_SECONDS]
        if late:
            yield (
                f"{late[0].tool} {call_id}: begun {late[0].at - at:.1f} s after its end was told",
                call_id,
                late[0].ref,
            )


def _none_means_none(evidence: Evidence) -> Iterator[_Fact]:
    """What was said not to have happened has not happened.

    But for readers that answered that they failed: they ran, and there is nothing that could have happened.
    """
    readings = _failed_readings(evidence)
    for call_id, result in _results(evidence):
        effects = evidence.journal.effects.get(call_id, [])
        if result.effect_state == "none" and effects and call_id not in readings:
            yield f"{_of(result)} with effect none, executed {len(effects)} times", call_id, effects[0].ref


def _done_means_done(evidence: Evidence) -> Iterator[_Fact]:
    """What was said to have happened has happened."""
    for call_id, result in _results(evidence):
        if result.effect_state == "done" and not evidence.journal.effects.get(call_id):
            yield f"{_of(result)} with effect done, never executed", call_id, None


def _own_execution(evidence: Evidence) -> Iterator[_Fact]:
    """A success brings what one of its own executions gave."""
    for call_id, result in _results(evidence):
        if result.success:
            own = [effect.reply["result"] for effect in evidence.journal.effects.get(call_id, [])]
            if result.result not in own:
                yield f"{_of(result)} brought {result.result}, its executions gave {own}", call_id, None


def _own_arguments(evidence: Evidence) -> Iterator[_Fact]:
    """A success was brought by the caller's own arguments, not by others under the same key."""
    for ending in evidence.endings:
        if ending.result and ending.result.success and ending.call_id:
            refs = {effect.ref for effect in evidence.journal.effects.get(ending.call_id, [])}
            if refs - {ending.ref}:
                yield f"{_shown(ending)}: brought by {sorted(refs)}", ending.call_id, ending.ref


def _one_result(evidence: Evidence) -> Iterator[_Fact]:
    """All who asked for a call were told the same, and it is what is stored, but for whom the deadline cut off."""
    told: defaultdict[str, set[str]] = defaultdict(set)
    for call_id, result in _results(evidence):
        told[call_id].add(_essence(result))
    for ending in evidence.endings:
        if ending.result and ending.call_id and _is_cut_off(ending.result):
            told[ending.call_id].discard(_essence(ending.result))
    for call_id, essences in told.items():
        if len(essences) > 1:
            yield f"{call_id}: {' | '.join(sorted(essences))}", call_id, None


def _honest_codes(evidence: Evidence) -> Iterator[_Fact]:
    """Every failure has an error, a code and a hint; only a repeat that cannot double an effect is called harmless.

    Also of a call with an idempotency key: who reads its result may repeat it without.
    """
    for ending in evidence.endings:
        result = ending.result
        if result is None or result.success:
            continue
        if not result.error or not result.error_code or not result.hint:
            yield f"{_shown(ending)}: error {result.error!r}, hint {result.hint!r}", ending.call_id, ending.ref
        harmless = result.effect_state == "none" or ending.effect in {"read", "idempotent"}
        if result.retryable and not harmless:
            yield f"{_shown(ending)}: called retryable", ending.call_id, ending.ref


def _honest_words(evidence: Evidence) -> Iterator[_Fact]:
    """What an error says in words about its effect is what its effect state says."""
    for ending in evidence.endings:
        result = ending.result
        if result is None or not result.error:
            continue
        says_none, says_perhaps = "was not executed" in result.error, "may have been executed" in result.error
        if (says_none and result.effect_state != "none") or (says_perhaps and result.effect_state == "none"):
            yield _shown(ending), ending.call_id, ending.ref


def _conflicts(evidence: Evidence) -> Iterator[_Fact]:
    """Under one key, two calls with different arguments are not both executed.

    But for readers that answered that they failed: their key is free.
    """
    freed = _failed_readings(evidence)
    effects = {
        ref: [effect for effect in found if effect.call_id not in freed]
        for ref, found in evidence.journal.effects_of_ref.items()
    }
    for ref, others in effects.items():
        first = ref.removesuffix(OTHER)
        if first != ref and others and effects.get(first):
            yield f"{others[0].tool} {ref}: executed beside {first}", others[0].call_id, ref


def _results(evidence: Evidence) -> Iterable[tuple[str, ToolResult]]:
    """What agents were told, and what is stored."""
    yield from ((ending.call_id, ending.result) for ending in evidence.endings if ending.result and ending.call_id)
    yield from evidence.stored.items()


def _failed_readings(evidence: Evidence) -> set[str]:
    """The calls of readers that ran and failed: nothing can have happened, and their ends say so."""
    return {
        call_id
        for call_id, result in _results(evidence)
        if result.error_code == "module_error"
        and effect_of(result.tool_name) == "read"
        and result.effect_state == "none"
    }


def _is_cut_off(result: ToolResult) -> bool:
    """Whether the agent's side worded it, when it could not wait any longer: the call's own end may be another one."""
    by_agent = result.audit.worker is None
    return by_agent and not result.success and result.effect_state == "unknown"


def _essence(result: ToolResult) -> str:
    value = result.result if result.success else result.error
    return f"{'success' if result.success else result.error_code}, effect {result.effect_state}: {value}"


def _of(result: ToolResult) -> str:
    return f"{result.tool_name}: {_essence(result)}"


def _shown(ending: Ending) -> str:
    return f"{ending.way} {ending.ref} {_of(ending.result) if ending.result else ending.tool}"


_CHECKS = (
    _everyone_is_answered,
    _nobody_waits_too_long,
    _bounded_executions,
    _nobody_is_shut_out,
    _one_intention_once,
    _newer_writes_last,
    _nothing_begins_late,
    _none_means_none,
    _done_means_done,
    _own_execution,
    _own_arguments,
    _one_result,
    _honest_codes,
    _honest_words,
    _conflicts,
)
