"""What must hold of a job that recurs: its rounds come at the full minute, and each has one end of its own, told once."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from chaos.checks.job_evidence import JobEvidence
from chaos.plan import JOB_MARGIN_SECONDS
from chaos.records.job_notes import JobRecord
from toolfleet_registry.contracts import ToolCall, ToolResult

CRON = "* * * * *"
_MINUTE = 60
_PATHS = {"resume_conversation": "/continue", "notify": "/notify"}

_Told = dict[int, dict[str, str]]
"""The kind of what was told of each round, by its path."""


def rounds(job: JobRecord, evidence: JobEvidence) -> Iterator[str]:
    """What is wrong with them."""
    if job.end is None:
        return
    acts = [act for act in evidence.acts if act.job_id == job.job_id]
    if evidence.has_core:
        counts = Counter(act.wake_id for act in acts)
        yield from (f"{wake_id} was acted on {count} times" for wake_id, count in counts.items() if count > 1)
    told: defaultdict[int, dict[str, str]] = defaultdict(dict)
    for act in acts:
        told[int(act.wake_id.removesuffix(".notify").rpartition(".")[2])][act.path] = act.kind.removeprefix("job.")
    yield from _at_their_times(job, told, evidence)
    yield from _told_in_full(job, told)
    yield from _ends(job, told, evidence)


def _at_their_times(job: JobRecord, told: _Told, evidence: JobEvidence) -> Iterator[str]:
    time, first_at = evidence.time, _next_minute(job.spec.created_at)
    times = [time.at(entry.at) for entries in evidence.steps[job.job_id].values() for entry in entries]
    if times and min(times) < first_at - time.allowance:
        yield f"its first round began {first_at - min(times):.3f} s early"
    if job.place.state != "cancelled" and job.place.step < 1 and first_at + JOB_MARGIN_SECONDS < job.spec.deadline_at:
        yield "it has had no round"
    steps = evidence.steps[job.job_id].items()
    began = {number: time.at(min(entry.at for entry in entries)) for number, entries in steps}
    for number, at in began.items():
        if number in told and number + 1 in began and began[number + 1] < _next_minute(at) - time.allowance:
            yield f"round {number} was over, and step {number + 1} began before the next minute"
    full_minutes = job.spec.deadline_at // _MINUTE - job.spec.created_at // _MINUTE
    if len(told) > full_minutes + 1:  # and its own end
        yield f"it has had {len(told)} ends in {full_minutes:.0f} minutes"


def _told_in_full(job: JobRecord, told: _Told) -> Iterator[str]:
    wanted = {_PATHS[wish] for wish in job.spec.on_complete if not isinstance(wish, ToolCall)}
    for number, kinds in sorted(told.items()):
        if kinds.keys() != wanted or len(set(kinds.values())) != 1:
            yield f"round {number} was told as {kinds}"


def _ends(job: JobRecord, told: _Told, evidence: JobEvidence) -> Iterator[str]:
    """A round that was called with success has completed; whatever else was told has a reason; and the last end is the job's."""
    state, last = job.place.state, job.place.step
    kinds = {number: next(iter(kinds.values())) for number, kinds in told.items()}
    for number in range(1, last + 1):
        result = evidence.stored.get(f"{job.job_id}.{number}")
        is_open = number == last and state == "cancelled"  # it had ended when nobody was to hear of it any more
        if result is not None and result.success and kinds.get(number) != "completed" and not is_open:
            yield f"round {number} has completed, and was told as {kinds.get(number)}"
    final = {number for number in (last, last + 1) if kinds.get(number) == state}
    for number, kind in sorted(kinds.items()):
        if number not in final and not _has_reason(kind, evidence.stored.get(f"{job.job_id}.{number}")):
            yield f"round {number} was told as {kind}"
    if state != "cancelled" and not final:
        yield f"its end was not told: {kinds}, last step {last}"
    assert job.end is not None
    over_at = job.end.ended_at if state == "timed_out" else _next_minute(job.end.ended_at)
    if state != "cancelled" and over_at < job.spec.deadline_at - evidence.time.allowance:
        yield f"it ended as {state} with time for another round"


def _next_minute(at: float) -> float:
    return (at // _MINUTE + 1) * _MINUTE


def _has_reason(kind: str, result: ToolResult | None) -> bool:
    return result is not None and kind == ("completed" if result.success else "failed")
