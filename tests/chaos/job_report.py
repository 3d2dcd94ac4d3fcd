"""What a run's tables say of jobs, and what is known of one that something is wrong with."""

from collections import Counter
from pathlib import Path

from chaos.checks.call_checks import Violation
from chaos.checks.job_checks import news_of
from chaos.checks.job_evidence import JobEvidence
from chaos.faults.fault_report import table
from chaos.faults.faults import Fault
from chaos.records.acts import marks_of, read_marks
from toolfleet_registry.contracts.jobs import JobState

_STATES: tuple[JobState, ...] = ("completed", "failed", "timed_out", "cancelled", "starting", "waiting", "polling")
_SHOWN_MARKS = 20
_AFTERMATH_SECONDS = 5


def job_report(jobs: JobEvidence) -> str:
    """Jobs by shape and end, and what was made of their ends."""
    shapes = sorted({note.shape for note in jobs.notes})
    ends = Counter(
        (jobs.note_of[job.spec.name].shape, job.place.state)
        for job in jobs.records.values()
        if job.spec.name in jobs.note_of
    )
    rows = [(shape, *(ends[shape, state] for state in _STATES)) for shape in shapes]
    late = [job.end.ended_at - job.spec.deadline_at for job in jobs.records.values() if job.end is not None]
    rounds = sum(act.job_id in jobs.records and jobs.records[act.job_id].recurs for act in jobs.acts)
    polls = sum(entry.is_look and entry.mark == "effect" for entry in jobs.journal.entries)
    facts = {
        "asked for, accepted, refused, unanswered": ", ".join(
            str(count)
            for count in (
                len(jobs.notes),
                sum(bool(note.job_ids) for note in jobs.notes),
                sum(note.refused is not None for note in jobs.notes),
                sum(note.error is not None and note.refused is None for note in jobs.notes),
            )
        ),
        "news of ends": sum(len(news_of(job)) for job in jobs.records.values()),
        "acts on these": len(jobs.acts) - rounds,
        "acts on news of recurring jobs' rounds": rounds,
        "executions of polls": polls,
        "latest end, seconds after the deadline": round(max(late, default=0), 2),
    }
    return "\n\n".join(
        ["## Jobs, by how they ended", table(("jobs", *_STATES), rows), table(("what", "value"), facts.items())]
    )


def deliveries(folder: Path) -> dict[str, object]:
    """How often the core was asked, acted and answered."""
    marks = Counter(str(line["mark"]) for line in read_marks(marks_of(folder)))
    return {f"times that the core has {mark}": count for mark, count in marks.items()}


def proof_of(violation: Violation, jobs: JobEvidence, faults: list[Fault], folder: Path) -> str:
    """What is known of the job that it is about; nothing if it is about none."""
    job = jobs.records.get(violation.call_id or "")
    if job is None:
        return ""
    lines = [
        f"    job {job.spec}",
        f"    place {job.place} end {job.end}",
        f"    note {jobs.note_of.get(job.spec.name)}",
    ]
    for number, entries in sorted(jobs.steps[job.job_id].items()):
        lines += [f"    step {number}: {one.at:.3f} {one.mark} {one.execution[:6]} {one.reply}" for one in entries]
        lines.append(f"    step {number} came to {jobs.stored.get(entries[0].call_id)}")
    lines += [f"    act {act}" for act in jobs.acts if act.job_id == job.job_id]
    marks = [mark for mark in read_marks(marks_of(folder)) if str(mark["wake_id"]).startswith(job.job_id)]
    lines += [f"    core {mark}" for mark in marks[:_SHOWN_MARKS]]
    over_at = job.spec.deadline_at if job.end is None else job.end.ended_at
    lines += [
        f"    fault {fault.began_at:.3f} to {fault.ended_at:.3f}: {fault.kind} after {fault.moment}, {fault.victim}"
        for fault in faults
        if fault.began_at < over_at and job.spec.created_at < fault.ended_at + _AFTERMATH_SECONDS
    ]
    return "\n" + "\n".join(lines)
