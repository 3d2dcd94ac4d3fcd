"""The tables that a run prints."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from chaos.checks.call_checks import AT_MOST, Evidence, Violation
from chaos.faults.fault_report import struck, table
from chaos.faults.faults import Fault
from chaos.plan import EFFECTS, Plan, effect_of

_SHOWN = 20
_LINES = 14
_AFTERMATH_SECONDS = 5


def report(
    plan: Plan,
    evidence: Evidence,
    faults: list[Fault],
    checks: dict[str, list[Violation]],
    more: dict[str, object],
    jobs: str,
    came_to: str,
) -> str:
    """Everything, as Markdown; `jobs` is what there is to say of them, `came_to` what some faults came to."""
    done = sum(fault.is_done for fault in faults)
    parts = [
        f"# Chaos: {len(evidence.endings):,} calls, {plan.jobs:,} jobs, {done} faults, seed {plan.seed}",
        table(("what", "value"), more.items()),
        "## Faults, by the step after which they struck",
        struck(faults),
        "## Faults, by what was seen and checked of them",
        came_to,
        "## Calls, by how they ended",
        _calls(evidence),
        "## Executions in the modules' journal",
        _executions(evidence),
        *filter(None, [jobs]),
        "## Checks",
        table(("check", "violations"), ((name, len(found) or "none") for name, found in checks.items())),
    ]
    return "\n\n".join(parts)


def evidence_of(violation: Violation, evidence: Evidence, faults: list[Fault], logs: Iterable[Path]) -> str:
    """A violation with what is known of its call: the journal's lines, those of the workers' logs, and what else happened."""
    lines = [f"- **{violation.check}**: {violation.text}"]
    call_id = violation.call_id
    if call_id is None and violation.ref is not None:
        call_id = next((entry.call_id for entry in evidence.journal.entries if entry.ref == violation.ref), None)
    if call_id is not None:
        lines += [
            f"    journal {entry.at:.3f} {entry.mark} pid {entry.pid} {entry.ref}"
            for entry in evidence.journal.by_call.get(call_id, [])
        ]
        endings = [
            end for end in evidence.endings if end.call_id == call_id or (violation.ref and end.ref == violation.ref)
        ]
        lines += [
            f"    {end.way} {end.ref} began {end.began_at:.3f} took {end.seconds:.3f} of {end.timeout:.1f}: {end.result or end.error}"
            for end in endings
        ]
        lines += [
            f"    fault {fault.began_at:.3f} to {fault.ended_at:.3f}: {fault.kind} after {fault.moment}, {fault.victim}"
            for fault in faults
            if any(
                fault.began_at < end.began_at + end.seconds and end.began_at < fault.ended_at + _AFTERMATH_SECONDS
                for end in endings
            )
        ]
        for log in logs:
            said = [line for line in log.read_text(errors="replace").splitlines() if call_id in line]
            lines += [f"    {log.stem}: {line[:300]}" for line in said[:_LINES]]
    return "\n".join(lines)


def shown(violations: Sequence[Violation]) -> list[Violation]:
    """The first of each check."""
    seen: Counter[str] = Counter()
    first: list[Violation] = []
    for violation in violations:
        seen[violation.check] += 1
        if seen[violation.check] <= _SHOWN:
            first.append(violation)
    return first


def late_results(logs: Iterable[Path]) -> int:
    """Results that workers brought when the call had ended without them."""
    return sum(log.read_text(errors="replace").count("result_late") for log in logs)


def _calls(evidence: Evidence) -> str:
    ends: Counter[tuple[str, str, str]] = Counter()
    for ending in evidence.endings:
        if ending.result is None:
            ends["given up" if ending.error is None else ending.error[:40], "", ending.effect] += 1
        else:
            code = "success" if ending.result.success else str(ending.result.error_code)
            ends[code, ending.result.effect_state, ending.effect] += 1
    rows = [
        (code, state, *(ends[code, state, effect] for effect in EFFECTS), sum(ends[code, state, e] for e in EFFECTS))
        for code, state in sorted(
            {(code, state) for code, state, _ in ends}, key=lambda end: (end[0] != "success", end)
        )
    ]
    return table(("result", "effect state", *EFFECTS, "all"), rows)


def _executions(evidence: Evidence) -> str:
    rows: list[tuple[object, ...]] = []
    for effect, at_most in AT_MOST.items():
        counts = [len(found) for found in evidence.journal.effects.values() if effect_of(found[0].tool) == effect]
        rows.append(
            (effect, len(counts), sum(counts), sum(count > 1 for count in counts), max(counts, default=0), at_most)
        )
    return table(("effect", "calls executed", "executions", "executed again", "most of one call", "allowed"), rows)
