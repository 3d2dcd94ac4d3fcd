"""What must hold after a run, of jobs: each check gives the violations that it finds. Acts are counted, never requests."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from chaos.checks.call_checks import Violation
from chaos.checks.job_evidence import JobEvidence
from chaos.checks.job_rounds import rounds
from chaos.plan import JOB_MARGIN_SECONDS
from chaos.processes.job_agent import THEN
from chaos.records.acts import Act
from chaos.records.job_notes import JobRecord
from chaos.records.journal import Entry
from toolfleet_registry.contracts import ToolCall, ToolResult
from toolfleet_registry.contracts.jobs import ENDED
from toolfleet_tasks.jobs.state_machine import MARGIN_SECONDS, passes
from toolfleet_tasks.messages.ids import step_call_id, then_call_id

MOST_FAULTS = 5
"""Polls in a row that fail: then the job has."""

_UNHEARD = frozenset({"timed_out", "outcome_unknown", "module_unreachable", "expired", "invalid_response", "cancelled"})
_FOR_GOOD = frozenset({"permission_denied", "invalid_arguments", "blocked_by_gate", "invalid_tool_name"})

_Fact = tuple[str, JobRecord | None]


def check_jobs(evidence: JobEvidence) -> dict[str, list[Violation]]:
    """Every check by its name, with what it found."""
    found: dict[str, list[Violation]] = {}
    for check in _CHECKS:
        name = (check.__doc__ or "").splitlines()[0].rstrip(".")
        found[name] = [
            Violation(name, text, job.job_id if job else None, job.spec.name if job else None)
            for text, job in check(evidence)
        ]
    return found


def then_ids(records: Mapping[str, JobRecord]) -> set[str]:
    """The calls that jobs' ends make, or would."""
    return {call_id for job in records.values() for call_id in _then_calls(job)}


def step_ids(records: Mapping[str, JobRecord]) -> set[str]:
    """The calls of jobs' steps: some have an end and have never reached a module."""
    return {
        step_call_id(job.job_id, number) for job in records.values() for number in range(max(job.place.step, 0) + 1)
    }


def news_of(job: JobRecord) -> dict[str, str]:
    """What a job's one end is told as, and where to; nothing of a cancelled one's, and of one that recurs see `rounds`."""
    if job.place.state == "cancelled" or job.end is None or job.recurs:
        return {}
    paths = {"resume_conversation": (job.job_id, "/continue"), "notify": (f"{job.job_id}.notify", "/notify")}
    return dict(paths[wish] for wish in job.spec.on_complete if not isinstance(wish, ToolCall))


def _one_job_each(evidence: JobEvidence) -> Iterator[_Fact]:
    """What was asked for is one job, also asked for again under its key; or it was refused, or Redis did not answer."""
    if len(evidence.notes) != evidence.expected:
        yield f"{evidence.expected} jobs were asked for, and {len(evidence.notes)} noted", None
    for note in evidence.notes:
        if note.error is not None and note.refused != "busy" and not note.error.startswith("FleetUnavailable"):
            yield f"{note.shape} {note.ref}: {note.refused} {note.error}", None
        if len(set(note.job_ids)) > 1:
            yield f"{note.shape} {note.ref}: became {note.job_ids}", None
        yield from ((f"{note.ref}: {one} is gone", None) for one in set(note.job_ids) - evidence.records.keys())
    for ref, count in Counter(job.spec.name for job in evidence.records.values()).items():
        if count > 1 or ref not in evidence.note_of:
            yield f"{ref}: {count} jobs have this name", None


def _ended_in_time(evidence: JobEvidence) -> Iterator[_Fact]:
    """Every job ended, no later than its deadline and the margin.

    While RabbitMQ is away nobody is told that a job is due.
    """
    for job in evidence.records.values():
        if job.end is None or job.place.state not in ENDED:
            yield f"{_shown(job)}: has not ended", job
        elif (late := evidence.late(job.spec.deadline_at, job.end.ended_at)) > JOB_MARGIN_SECONDS:
            yield f"{_shown(job)}: {late:.1f} s after its deadline", job


def _allowed_state(evidence: JobEvidence) -> Iterator[_Fact]:
    """Every job ended in a state for which its module's journal has the reason."""
    for job in evidence.records.values():
        if job.end is not None and not job.recurs and (fault := _fault_in_state(job, evidence)) is not None:
            yield f"{_shown(job)}: {fault}", job


def _last_word(evidence: JobEvidence) -> Iterator[_Fact]:
    """Where a poll has heard that the work is over, the job ended so, and was polled no more.

    What could not be stored by the job's deadline, nobody has heard.
    """
    for job in evidence.records.values():
        for number, entries in evidence.steps[job.job_id].items():
            result = evidence.stored.get(entries[0].call_id)
            status = _status(result) if result is not None and entries[0].is_look else None
            is_in_time = result is None or not evidence.came_too_late(result.audit.ts, job.spec.deadline_at)
            allowed = {status, "cancelled"} if is_in_time else {status, "cancelled", "timed_out"}
            if status in {"completed", "failed"} and job.place.state not in allowed:
                yield f"{_shown(job)}: step {number} has heard that it is {status}", job
            if status in {"completed", "failed"} and number < job.place.step:
                yield (
                    f"{_shown(job)}: step {number} has heard that it is {status}, and its last was {job.place.step}",
                    job,
                )
            if number > job.place.step:
                yield f"{_shown(job)}: step {number} was executed, and its last was {job.place.step}", job


def _cancelled(evidence: JobEvidence) -> Iterator[_Fact]:
    """A job that was cancelled is, unless it had ended before; and who cancelled it was told that."""
    for job in evidence.records.values():
        note, state = evidence.note_of.get(job.spec.name), job.place.state
        if note is None:
            continue
        if state == "cancelled" and not note.is_cancelled:
            yield f"{_shown(job)}: nobody has cancelled it", job
        if note.cancel_error is not None:
            if not note.cancel_error.startswith("FleetUnavailable"):
                yield f"{_shown(job)}: cancelling it raised {note.cancel_error}", job
        elif note.is_cancelled and note.cancelled != state:
            yield f"{_shown(job)}: who cancelled it was told that it is {note.cancelled}", job


def _one_act_each(evidence: JobEvidence) -> Iterator[_Fact]:
    """Each news of a job's end was acted on exactly once, where it belongs, and nothing else was."""
    acts: defaultdict[str, list[Act]] = defaultdict(list)
    for act in evidence.acts:
        acts[act.wake_id].append(act)
    for job in evidence.records.values():
        for wake_id, path in news_of(job).items():
            told = acts.pop(wake_id, [])
            if len(told) != 1 and (evidence.has_core or not told):
                yield f"{_shown(job)}: {wake_id} was acted on {len(told)} times", job
            if any((act.path, act.kind, act.job_id) != (path, f"job.{job.place.state}", job.job_id) for act in told):
                yield f"{_shown(job)}: {wake_id} was acted on as {told}", job
    for wake_id, told in acts.items():
        if (owner := evidence.records.get(told[0].job_id)) is not None and owner.recurs:
            continue
        yield f"{wake_id}: nobody's news, acted on {len(told)} times; {_shown(owner) if owner else 'no job'}", owner


def _rounds(evidence: JobEvidence) -> Iterator[_Fact]:
    """Each round of a recurring job came at its time and has one end, which was acted on exactly once."""
    for job in evidence.records.values():
        if job.recurs:
            yield from ((f"{_shown(job)}: {fault}", job) for fault in rounds(job, evidence))


def _then(evidence: JobEvidence) -> Iterator[_Fact]:
    """The call that a job's end makes has an end if the job completed, and else was never made."""
    for job in evidence.records.values():
        for call_id in _then_calls(job):
            effects, result = evidence.journal.effects.get(call_id, []), evidence.stored.get(call_id)
            if job.place.state != "completed":
                if effects or result is not None:
                    yield f"{_shown(job)}: {call_id} was made, executed {len(effects)} times", job
            elif result is None:
                yield f"{_shown(job)}: {call_id} has no result, executed {len(effects)} times", job
            elif len(effects) > 1 or (result.success and len(effects) != 1):
                yield f"{_shown(job)}: {call_id} was executed {len(effects)} times, success {result.success}", job
    known = then_ids(evidence.records)
    for ref, effects in evidence.journal.effects_of_ref.items():
        if ref.endswith(THEN) and not {effect.call_id for effect in effects} <= known:
            yield f"{ref}: executed as {sorted({effect.call_id for effect in effects})}, which no job makes", None


def _one_poll_at_a_time(evidence: JobEvidence) -> Iterator[_Fact]:
    """No poll of a job was begun before the one before it had ended; what a lost worker has left is not looked at."""
    for job in evidence.records.values():
        steps = evidence.steps[job.job_id]
        ruling = [(number, span) for number in sorted(steps) if (span := _ruling(steps[number], evidence)) is not None]
        for (before, (_, over_at)), (number, (began_at, _)) in itertools.pairwise(ruling):
            if began_at < over_at:
                yield f"{_shown(job)}: step {number} began {over_at - began_at:.3f} s before {before} was over", job


def _takes_from_start(evidence: JobEvidence) -> Iterator[_Fact]:
    """Every poll has what its job's start gave."""
    for job in evidence.records.values():
        if job.spec.start is None:
            continue
        start = evidence.stored.get(f"{job.job_id}.0")
        for entries in evidence.steps[job.job_id].values():
            for entry in entries:
                given = start.result["execution"] if start is not None and start.success else None
                if entry.is_look and entry.mark == "effect" and entry.reply["result"]["task"] != given:
                    yield f"{_shown(job)}: {entry.call_id} has {entry.reply['result']['task']}, not {given}", job


def _fault_in_state(job: JobRecord, evidence: JobEvidence) -> str | None:
    assert job.end is not None
    spec, state, at = job.spec, job.place.state, job.end.ended_at
    steps, time = evidence.steps[job.job_id], evidence.time
    if state != "cancelled" and spec.schedule is not None and spec.schedule.at is not None:
        first = min([at, *(time.at(entry.at) for entries in steps.values() for entry in entries)])
        if first < spec.schedule.at - time.allowance:
            return f"it began {spec.schedule.at - first:.3f} s before its time"
    if state == "timed_out":
        longest = spec.poll.max_seconds if spec.poll is not None else spec.deadline_at
        is_due = at >= min(spec.deadline_at, spec.created_at + longest) - time.allowance
        return None if is_due else f"its time was not over at {at:.3f}"
    last = evidence.stored.get(f"{job.job_id}.{max(job.place.step, 0)}")
    if state == "completed":
        return _fault_in_completion(job, last, evidence)
    may_fail = state != "failed" or _may_fail(job, last, evidence) or _was_cut_off(job, evidence)
    return None if may_fail else f"its last step came to {last}"


def _fault_in_completion(job: JobRecord, last: ToolResult | None, evidence: JobEvidence) -> str | None:
    assert job.end is not None
    if job.spec.start is None and job.spec.poll is None:
        return None
    if last is None or not last.success or (job.spec.poll is not None and _status(last) != "completed"):
        return f"its last step came to {last}"
    if job.end.result != last.result:
        return f"it has {job.end.result}, its last step gave {last.result}"
    given = [effect.reply["result"] for effect in evidence.journal.effects.get(f"{job.job_id}.{job.place.step}", [])]
    return None if last.result in given else f"its module gave {given}, and not {last.result}"


def _may_fail(job: JobRecord, last: ToolResult | None, evidence: JobEvidence) -> bool:
    if last is None:  # it was never begun, and nobody knows of it
        steps = evidence.steps[job.job_id]
        return job.end is not None and job.end.error_code == "expired" and job.place.step not in steps
    if job.spec.poll is None or job.place.step == 0:
        return not last.success
    if last.success:
        return _status(last) == "failed"
    if last.error_code in _FOR_GOOD:
        return True
    faults = 0
    for number in range(job.place.step, 0, -1):
        result = evidence.stored.get(f"{job.job_id}.{number}")
        if result is None or result.success:
            break
        faults += not passes(result)  # one that was refused for now is none
    return faults >= MOST_FAULTS


def _was_cut_off(job: JobRecord, evidence: JobEvidence) -> bool:
    """Whether nobody had heard of its call's end when its time was over: it says that it does not know, and is told no other end later."""
    assert job.end is not None
    over_at = job.spec.deadline_at + MARGIN_SECONDS - evidence.time.allowance
    return job.end.error_code == "outcome_unknown" and job.end.ended_at >= over_at


def _ruling(entries: list[Entry], evidence: JobEvidence) -> tuple[float, float] | None:
    """From when to when the execution ran that a step's result is of."""
    result = evidence.stored.get(entries[0].call_id)
    if result is None or (not result.success and result.error_code in _UNHEARD):
        return None
    execution = result.result["execution"] if result.success else entries[-1].execution
    times = [entry.at for entry in entries if entry.execution == execution and entry.mark != "denied"]
    return (min(times), max(times)) if times else None


def _then_calls(job: JobRecord) -> list[str]:
    count = sum(isinstance(wish, ToolCall) for wish in job.spec.on_complete)
    return [then_call_id(job.job_id, number) for number in range(count)]


def _status(result: ToolResult) -> str | None:
    return result.result.get("status") if result.success and isinstance(result.result, dict) else None


def _shown(job: JobRecord) -> str:
    return f"{job.spec.name} {job.job_id} {job.place.state}"


_CHECKS = (
    _one_job_each,
    _ended_in_time,
    _allowed_state,
    _last_word,
    _cancelled,
    _one_act_each,
    _rounds,
    _then,
    _one_poll_at_a_time,
    _takes_from_start,
)
