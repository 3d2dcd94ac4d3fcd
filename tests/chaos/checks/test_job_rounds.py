"""The proof's own check of recurring jobs finds what it is there to find."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from chaos.checks.job_evidence import JobEvidence
from chaos.checks.job_rounds import CRON, rounds
from chaos.records.acts import Act
from chaos.records.job_notes import JobRecord
from chaos.records.journal import Entry, Journal
from toolfleet_registry.contracts import Caller, ToolResult
from toolfleet_registry.contracts.jobs import JobSpec, JobState, Poll, Schedule, WakeupRequest
from toolfleet_tasks.jobs.completion import EndNote
from toolfleet_tasks.jobs.state_machine import JobPosition


def record(state: JobState = "timed_out", *, wishes: Sequence[WakeupRequest] = ("resume_conversation",)) -> JobRecord:
    """Made in the middle of a minute, with time for two rounds."""
    spec = JobSpec(
        job_id="j",
        caller=Caller(user_id="u"),
        poll=Poll(tool_name="bank.look", until=None),
        schedule=Schedule(cron=CRON),
        on_complete=tuple(wishes),
        created_at=30,
        deadline_at=150,
    )
    return JobRecord(spec, JobPosition(state=state, step=2), EndNote(ended_at=150))


def act(number: int, kind: str = "completed", *, path: str = "/continue", suffix: str = "") -> Act:
    return Act(f"j.{number}{suffix}", "j", f"job.{kind}", path, at=9, pid=1)


def result(*, success: bool = True) -> ToolResult:
    ok = ToolResult.ok("bank.look", {})
    return ok if success else ToolResult.failed("bank.look", "module_error", "No.", effect_state="done")


GOOD = JobEvidence(
    notes=[],
    records={},
    acts=[act(1), act(2), act(3, "timed_out")],
    journal=Journal([Entry("start", f"j.{n}", "job-1", "bank.look", at=60 * n, pid=1) for n in (1, 2)]),
    stored={"j.1": result(), "j.2": result()},
    expected=1,
)


def test_rounds_that_went_well_are_no_violation() -> None:
    """Two rounds and the end that is nobody's; one that failed; and one that was cancelled when its round had ended."""
    failed = replace(
        GOOD,
        acts=[act(1), act(2, "failed"), act(3, "timed_out")],
        stored={"j.1": result(), "j.2": result(success=False)},
    )

    assert list(rounds(record(), GOOD)) == []
    assert list(rounds(record(), failed)) == []
    assert list(rounds(record("cancelled"), replace(GOOD, acts=[act(1)]))) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"acts": [*GOOD.acts, act(1)]}, "j.1 was acted on 2 times"),
        ({"acts": GOOD.acts[1:]}, "round 1 has completed, and was told as None"),
        ({"acts": [act(1, "failed"), *GOOD.acts[1:]]}, "round 1 has completed, and was told as failed"),
        ({"acts": GOOD.acts[:2]}, "its end was not told"),
        ({"acts": [*GOOD.acts, act(7)]}, "round 7 was told as completed"),
        ({"acts": [*GOOD.acts, act(4), act(5)]}, "it has had 5 ends in 2 minutes"),
        ({"acts": [*GOOD.acts, act(1, path="/notify", suffix=".notify")]}, "round 1 was told as"),
        ({"journal": Journal([Entry("start", "j.1", "job-1", "bank.look", at=59, pid=1)])}, "began 1.000 s early"),
        ({"stored": {"j.1": result(success=False), "j.2": result()}}, "round 1 was told as completed"),
        (
            {"journal": Journal([Entry("start", f"j.{n}", "job-1", "bank.look", at=60 + n, pid=1) for n in (1, 2)])},
            "step 2 began before the next minute",
        ),
    ],
)
def test_each_fault_of_a_round_is_found(change: dict[str, Any], words: str) -> None:
    """With what it is."""
    assert any(words in fault for fault in rounds(record(), replace(GOOD, **change)))


@pytest.mark.parametrize("state", ["completed", "failed", "timed_out"])
def test_a_job_that_recurs_no_more_too_early_is_found(state: JobState) -> None:
    """After its first round, with time for a second."""
    job = replace(record(state), place=JobPosition(state=state, step=1), end=EndNote(ended_at=61))
    told = replace(GOOD, acts=[act(1, state)], stored={"j.1": result(success=state == "completed")})

    assert f"it ended as {state} with time for another round" in list(rounds(job, told))


def test_a_recurring_job_without_a_round_is_found() -> None:
    """There was time for one."""
    job = record()
    nothing = replace(GOOD, acts=[act(0, "timed_out")], journal=Journal([]), stored={})

    assert "it has had no round" in list(rounds(replace(job, place=JobPosition(state="timed_out")), nothing))
