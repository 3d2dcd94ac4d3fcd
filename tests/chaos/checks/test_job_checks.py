"""The proof's own checks of jobs find what they are there to find."""

from dataclasses import replace
from typing import Any

import pytest

from chaos.checks.job_checks import check_jobs
from chaos.checks.job_evidence import JobEvidence
from chaos.checks.job_rounds import CRON
from chaos.plan import JOB_MARGIN_SECONDS
from chaos.records.acts import Act
from chaos.records.job_notes import JobNote, JobRecord
from chaos.records.journal import Entry, Journal, Mark
from toolfleet_registry.contracts import Audit, Caller, ErrorCode, ToolCall, ToolResult
from toolfleet_registry.contracts.jobs import JobSpec, JobState, Poll, Schedule
from toolfleet_tasks.jobs.completion import EndNote
from toolfleet_tasks.jobs.state_machine import JobPosition

OVER = {"execution": "e2", "status": "completed", "task": "e0"}
THEN = ToolCall(tool_name="bank.once")

ONE = "What was asked for is one job, also asked for again under its key; or it was refused, or Redis did not answer"
IN_TIME = "Every job ended, no later than its deadline and the margin"
STATE = "Every job ended in a state for which its module's journal has the reason"
LAST = "Where a poll has heard that the work is over, the job ended so, and was polled no more"
CANCELLED = "A job that was cancelled is, unless it had ended before; and who cancelled it was told that"
ACTS = "Each news of a job's end was acted on exactly once, where it belongs, and nothing else was"
THEN_CALL = "The call that a job's end makes has an end if the job completed, and else was never made"
OVERLAP = "No poll of a job was begun before the one before it had ended; what a lost worker has left is not looked at"
ROUNDS = "Each round of a recurring job came at its time and has one end, which was acted on exactly once"
TAKEN = "Every poll has what its job's start gave"


def record(state: JobState = "completed", *, step: int = 2, ended_at: float = 9, **fields: Any) -> JobRecord:
    own: dict[str, Any] = {
        "job_id": "j",
        "caller": Caller(user_id="u"),
        "name": "job-1",
        "start": ToolCall(tool_name="bank.once"),
        "poll": Poll(tool_name="bank.look"),
        "created_at": 0,
        "deadline_at": 15,
    }
    own |= fields
    note = EndNote(ended_at=ended_at, result=OVER if state == "completed" else None)
    return JobRecord(JobSpec(**own), JobPosition(state=state, step=step), note)


def note(**fields: Any) -> JobNote:
    own: dict[str, Any] = {"ref": "job-1", "shape": "polled", "ends": "completed", "asked_at": 0, "seconds": 15}
    own |= {"job_ids": ("j",), **fields}
    return JobNote(**own)


def entries(step: int, at: float, result: dict[str, Any], *, seconds: float = 1) -> list[Entry]:
    """A whole execution of a step."""
    tool = "bank.once" if step == 0 else "bank.look"

    def entry(mark: Mark, at: float, **more: Any) -> Entry:
        return Entry(mark, f"j.{step}", "job-1", tool, at, pid=1, execution=result["execution"], **more)

    return [entry("start", at), entry("effect", at, reply={"result": result}), entry("reply", at + seconds)]


def result(step: int, value: dict[str, Any] | None, **fields: Any) -> ToolResult:
    audit = Audit(call_id=f"j.{step}", tool="bank.look", ts=0, worker="w")
    known: dict[str, Any] = {"tool_name": "bank.look", "success": True, "result": value, "effect_state": "done"}
    known |= {"audit": audit, **fields}
    return ToolResult(**known)


def act(wake_id: str = "j", *, kind: str = "job.completed", path: str = "/continue") -> Act:
    return Act(wake_id, wake_id.partition(".")[0], kind, path, at=9, pid=1)


RUNNING = {"execution": "e1", "status": "running", "task": "e0"}
GOOD = JobEvidence(
    notes=[note()],
    records={"j": record()},
    acts=[act()],
    journal=Journal([*entries(0, 1, {"execution": "e0"}), *entries(1, 3, RUNNING), *entries(2, 5, OVER)]),
    stored={"j.0": result(0, {"execution": "e0"}), "j.1": result(1, RUNNING), "j.2": result(2, OVER)},
    expected=1,
)
TIMED_OUT = replace(
    GOOD,
    records={"j": record("timed_out", step=1, ended_at=15)},
    acts=[act(kind="job.timed_out")],
    journal=Journal([*entries(0, 1, {"execution": "e0"}), *entries(1, 3, RUNNING)]),
)


def found(evidence: JobEvidence) -> set[str]:
    """The checks that have something to say."""
    return {name for name, violations in check_jobs(evidence).items() if violations}


@pytest.mark.parametrize("evidence", [GOOD, TIMED_OUT])
def test_a_job_that_went_well_is_no_violation(evidence: JobEvidence) -> None:
    """One that completed, and one whose time was over."""
    assert found(evidence) == set()


@pytest.mark.parametrize(
    ("change", "checks"),
    [
        # nobody noted it; it is two; it was not found again; asking raised something else than that Redis is silent
        ({"expected": 2}, {ONE}),
        ({"notes": [note(job_ids=("j", "k"))]}, {ONE}),
        ({"notes": [note(job_ids=("k",)), note(ref="job-2", job_ids=())], "expected": 2}, {ONE}),
        ({"notes": [note(error="ValueError: no")]}, {ONE}),
        # a job that nobody asked for
        ({"notes": [], "expected": 0}, {ONE}),
        # it has not ended, and its news have come; or late
        (
            {"records": {"j": replace(record(), end=None, place=JobPosition(state="waiting", step=2))}},
            {IN_TIME, LAST, ACTS},
        ),
        ({"records": {"j": record(ended_at=15.1 + JOB_MARGIN_SECONDS)}}, {IN_TIME}),
        # it has completed with what its last poll did not give
        ({"records": {"j": replace(record(), end=EndNote(ended_at=9, result=RUNNING))}}, {STATE}),
        ({"stored": {**GOOD.stored, "j.2": result(2, {**OVER, "execution": "e9"})}}, {STATE}),
        # it timed out before its time, and though it was over
        ({"records": {"j": record("timed_out")}, "acts": [act(kind="job.timed_out")]}, {STATE, LAST}),
        # it failed for no reason
        ({"records": {"j": record("failed")}, "acts": [act(kind="job.failed")]}, {STATE, LAST}),
        # it was polled after its end
        ({"journal": Journal([*GOOD.journal.entries, *entries(3, 8, {**OVER, "execution": "e3"})])}, {LAST}),
        # a poll heard that the work is over, and the job went on
        ({"stored": {**GOOD.stored, "j.1": result(1, {**OVER, "execution": "e1"})}}, {LAST}),
        # cancelled by nobody; or told otherwise; or with news
        ({"records": {"j": record("cancelled")}, "acts": []}, {CANCELLED}),
        ({"notes": [note(is_cancelled=True, cancelled="cancelled")]}, {CANCELLED}),
        (
            {"records": {"j": record("cancelled")}, "notes": [note(is_cancelled=True, cancelled="cancelled")]},
            {ACTS},
        ),
        # never acted on; twice; elsewhere; by a job that is none; and as something else than it was
        ({"acts": []}, {ACTS}),
        ({"acts": [act(), act()]}, {ACTS}),
        ({"acts": [act(path="/notify")]}, {ACTS}),
        ({"acts": [act(), act("k")]}, {ACTS}),
        ({"acts": [act(kind="job.failed")]}, {ACTS}),
        # the call of its end was not made
        ({"records": {"j": record(on_complete=(THEN,))}, "acts": []}, {THEN_CALL}),
        # a poll began before the one before was over
        (
            {"journal": Journal([*GOOD.journal.entries[:6], *entries(2, 3.5, OVER)])},
            {OVERLAP},
        ),
        # a poll with another start's result
        ({"stored": {**GOOD.stored, "j.0": result(0, {"execution": "e9"})}}, {TAKEN}),
    ],
)
def test_each_check_finds_its_violation(change: dict[str, Any], checks: set[str]) -> None:
    """And only those."""
    assert found(replace(GOOD, **change)) == checks


def test_the_call_of_an_end_that_is_none_is_found() -> None:
    """The job has failed, and its call was made all the same."""
    made = Entry("effect", "j.then.0", "job-1-then", "bank.once", 9, pid=1, reply={"result": {"execution": "t"}})
    evidence = replace(
        TIMED_OUT,
        records={"j": record("timed_out", step=1, ended_at=15, on_complete=(THEN,))},
        acts=[],
        journal=Journal([*TIMED_OUT.journal.entries, made]),
    )

    assert found(evidence) == {THEN_CALL}


@pytest.mark.parametrize("is_refused", [True, False])
def test_only_failures_that_count_end_a_job(is_refused: bool) -> None:
    """Five polls in a row that were refused for now are no reason."""
    code: Any = "busy" if is_refused else "module_error"
    how: dict[str, Any] = {"success": False, "error": "No.", "error_code": code, "effect_state": "none"}
    stored = {f"j.{step}": result(step, None, **how) for step in range(1, 6)}
    evidence = replace(
        GOOD,
        records={"j": record("failed", step=5)},
        acts=[act(kind="job.failed")],
        journal=Journal(entries(0, 1, {"execution": "e0"})),
        stored={"j.0": GOOD.stored["j.0"], **stored},
    )

    assert found(evidence) == ({STATE} if is_refused else set())


def test_a_round_that_is_told_twice_is_found() -> None:
    """Rounds are looked at as well."""
    job = record("timed_out", step=0, ended_at=15, start=None, schedule=Schedule(cron=CRON))
    told = act("j.1", kind="job.timed_out")
    once = replace(TIMED_OUT, records={"j": job}, acts=[told], journal=Journal([]), stored={})

    assert found(once) == set()
    assert found(replace(once, acts=[told, told])) == {ROUNDS}


def test_what_a_lost_worker_does_late_is_no_second_poll_at_once() -> None:
    """Its request comes when the call has its result from another worker."""
    late = [replace(entry, execution="e7") for entry in entries(1, 5.5, {**RUNNING, "execution": "e7"})]

    assert found(replace(GOOD, journal=Journal([*GOOD.journal.entries, *late]))) == set()


@pytest.mark.parametrize(
    ("seconds", "code", "checks"),
    [(20, "outcome_unknown", set()), (9, "outcome_unknown", {STATE}), (20, "internal", {STATE})],
)
def test_who_was_cut_off_by_the_deadline_may_have_been_told_less(
    seconds: float, code: ErrorCode, checks: set[str]
) -> None:
    """Nobody could hear of the call's end for so long: the job says that it does not know, and the call has its own end."""
    job = record("failed", step=0)
    evidence = replace(
        GOOD,
        records={"j": replace(job, end=EndNote(ended_at=seconds, error_code=code))},
        acts=[act(kind="job.failed")],
        journal=Journal(entries(0, 1, {"execution": "e0"})),
    )

    assert found(evidence) == checks


def test_a_job_may_be_late_by_what_rabbitmq_was_away() -> None:
    """After its deadline, and no longer than that."""
    late = replace(GOOD, records={"j": record(ended_at=18 + JOB_MARGIN_SECONDS)})

    assert not check_jobs(replace(late, away=[(10, 18.5)]))[IN_TIME]
    assert check_jobs(replace(late, away=[(10, 17.5)]))[IN_TIME]


def test_what_could_not_be_stored_in_time_was_not_heard() -> None:
    """A poll's reply that came while Redis took nothing, until the job's deadline: that job may have timed out."""
    audit = Audit(call_id="j.2", tool="bank.look", ts=10, worker="w")
    heard = replace(
        GOOD,
        records={"j": record("timed_out", ended_at=16)},
        acts=[act(kind="job.timed_out")],
        stored={**GOOD.stored, "j.2": result(2, OVER, audit=audit)},
    )

    assert not check_jobs(replace(heard, unstored=[(9, 14.9)]))[LAST]
    assert check_jobs(replace(heard, unstored=[(9, 11)]))[LAST]
    assert check_jobs(replace(heard, unstored=[(11, 14.9)]))[LAST]
    assert check_jobs(heard)[LAST]
