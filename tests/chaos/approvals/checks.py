"""What must hold after a run: nothing ran that nobody has approved, nothing twice, and nothing is lost."""

from collections.abc import Iterator, Mapping, Sequence

from chaos.approvals.cases import Case
from chaos.checks.call_checks import Violation
from chaos.records.journal import Journal

_Fact = tuple[str, str]


def check_cases(cases: Sequence[Case], journal: Journal) -> Mapping[str, list[Violation]]:
    """Every check by its name, with what it found."""
    checks = (_ended, _in_time, _approved_only, _once, _honest)
    found = {(check.__doc__ or "").rstrip("."): [*check(cases, journal)] for check in checks}
    return {name: [Violation(name, text, None, ref) for text, ref in facts] for name, facts in found.items()}


def _ended(cases: Sequence[Case], _: Journal) -> Iterator[_Fact]:
    """Each case was decided, and its agent was told."""
    for case in cases:
        yield from ((f"{case.kind} {case.ref}: {text}", case.ref) for text in case.trouble)
        if case.state is None and not case.trouble:
            yield f"{case.kind} {case.ref}: nobody knows what became of it", case.ref


def _in_time(cases: Sequence[Case], _: Journal) -> Iterator[_Fact]:
    """Nothing expired before its time, whatever clocks were set to."""
    for case in cases:
        if case.state == "expired" and case.kind != "expired":
            yield f"{case.kind} {case.ref}: expired, within minutes of the ten that it had", case.ref


def _approved_only(cases: Sequence[Case], journal: Journal) -> Iterator[_Fact]:
    """The modules' journal shows nothing that nobody has approved, nor what was edited away."""
    for case in cases:
        state = case.state
        is_edited = state == "approved" and case.kind == "edited"
        allowed = {case.edited} if is_edited else {case.ref} if state == "approved" else set[str]()
        for ref in (case.ref, case.edited):
            done = journal.effects_of_ref.get(ref, [])
            if done and ref not in allowed and state is not None:
                yield f"{case.kind} {case.ref}: {state}, and {ref} was executed {len(done)} times", case.ref


def _once(cases: Sequence[Case], journal: Journal) -> Iterator[_Fact]:
    """The journal shows no call twice."""
    for case in cases:
        done = [one for ref in (case.ref, case.edited) for one in journal.effects_of_ref.get(ref, [])]
        if len(done) > 1:
            yield f"{case.kind} {case.ref}: executed {len(done)} times, as {[one.call_id for one in done]}", case.ref


def _honest(cases: Sequence[Case], journal: Journal) -> Iterator[_Fact]:
    """What an agent was told of an approved call agrees with the journal."""
    for case in cases:
        done = [one for ref in (case.ref, case.edited) for one in journal.effects_of_ref.get(ref, [])]
        if case.told is None:
            continue
        if case.told.success and not done:
            yield f"{case.ref}: a success, and never executed", case.ref
        if (case.told.effect_state == "none" and done) or (case.told.effect_state == "done" and not done):
            yield f"{case.ref}: effect {case.told.effect_state}, executed {len(done)} times: {case.told}", case.ref
