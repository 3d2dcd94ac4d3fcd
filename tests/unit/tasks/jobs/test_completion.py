"""What is kept of a job that is over, and what is told: nothing sensitive, each piece sealed, and always to somebody."""

import json
from typing import Any

import pytest

from toolfleet_registry.contracts import Caller, Conversation, ErrorCode, ToolCall
from toolfleet_registry.contracts.jobs import JobSpec, Poll, Schedule
from toolfleet_tasks.jobs.completion import JobEvent, ThenCall, end_events_of, end_note
from toolfleet_tasks.jobs.positions import EndedRound, JobPosition, Transition
from toolfleet_tasks.messages import json_text


def spec(**fields: Any) -> JobSpec:
    known: dict[str, Any] = {
        "job_id": "job-1",
        "caller": Caller(user_id="ada"),
        "user_id": "ada",
        "conversation": Conversation(conversation_id="talk-1"),
        "poll": Poll(tool_name="owls.token"),
        "created_at": 1.0,
        "deadline_at": 2.0,
    }
    return JobSpec(**{**known, **fields})


def over(ended: EndedRound, *, round_step: int | None = None) -> Transition:
    return Transition(JobPosition(state=ended.state, step=1), ended, is_over=True, round_step=round_step)


def poll_values(job: JobSpec, move: Transition, *, has_core: bool = True) -> list[JobEvent]:
    return list(end_events_of(job, move, 5.0, has_core=has_core, seal=lambda text: f"sealed {text}"))


def body(events: JobEvent) -> dict[str, Any]:
    assert events.body.startswith("sealed ")
    found = json.loads(events.body.removeprefix("sealed "))
    assert isinstance(found, dict)
    return found


def test_news_are_sealed_and_say_what_they_are_for() -> None:
    """One for the agent and one for its user, which are not to be taken for each other."""
    both = poll_values(spec(on_complete=("resume_conversation", "notify")), over(EndedRound("completed", 1)))

    assert [(one.kind, one.wake_id, body(one)["kind"]) for one in both] == [
        ("continue", "job-1", "continue"),
        ("notify", "job-1.notify", "notify"),
    ]


@pytest.mark.parametrize(
    ("code", "words"), [("module_error", "is not kept"), ("invalid_arguments", "is not kept"), ("timed_out", "s3cret")]
)
@pytest.mark.parametrize("has_core", [True, False])
def test_of_sensitive_results_nothing_is_kept(code: ErrorCode, words: str, *, has_core: bool) -> None:
    """Neither a result nor a module's words, in the job's record or in its news; the fleet's own words are."""
    job = spec(hides_results=True, message="Use it.")
    failed = over(EndedRound("failed", {"token": "t-1"}, "It failed: s3cret", code))
    note, (events,) = end_note(job, failed, 5.0), poll_values(job, failed, has_core=has_core)

    assert note is not None
    assert (note.result, note.error_code) == (None, code)
    assert words in str(note.error)
    assert (body(events)["result"], body(events)["result_preview"]) == (None, None)
    assert words in body(events)["error"]
    assert "t-1" not in events.body
    (done,) = poll_values(job, over(EndedRound("completed", {"token": "t-1"})), has_core=has_core)
    assert body(done)["message"].startswith("Use it.\n\nIts result is not told here")
    assert "t-1" not in done.body


def test_of_other_results_they_are_kept() -> None:
    """As what they are."""
    note = end_note(spec(), over(EndedRound("failed", {"a": 1}, "It failed: why", "module_error")), 5.0)
    assert note is not None
    assert (note.result, note.error) == ({"a": 1}, "It failed: why")


def test_news_that_nobody_would_hear_wait() -> None:
    """The worker at the job's end knows of no core, and there is no conversation's stream: another worker may."""
    job = spec(conversation=Conversation())
    assert [(one.kind, one.wake_id) for one in poll_values(job, over(EndedRound("completed")), has_core=False)] == [
        ("continue", "job-1")
    ]


@pytest.mark.parametrize("message", ["", "Water the owls."])
def test_the_news_of_the_last_round_say_so(message: str) -> None:
    """Whatever it came to; a round that others follow does not say so, nor a job that does not recur."""
    job = spec(message=message, schedule=Schedule(cron="* * * * *", max_runs=2))
    completed, failed = EndedRound("completed"), EndedRound("failed", error="The owls flew.")
    go_on = Transition(JobPosition(state="waiting", step=1), completed, round_step=1)

    last = [str(body(*poll_values(job, over(ended, round_step=2)))["message"]) for ended in (completed, failed)]
    before, only = (str(body(*poll_values(job, move))["message"]) for move in (go_on, over(completed)))

    assert [text.endswith("\n\nThe job is over: no further round follows.") for text in last] == [True, True]
    assert before == only == (message or "The job has completed.")


def test_a_key_is_for_one_round() -> None:
    """Or the second round's call would be taken for a repeat of the first one's."""
    job = spec(on_complete=(ToolCall(tool_name="owls.echo", idempotency_key="k"), ToolCall(tool_name="owls.echo")))

    def keys(move: Transition) -> list[str | None]:
        texts = [json.loads(one.body)["call"].removeprefix("sealed ") for one in poll_values(job, move)]
        return [json_text.load(ThenCall, text).call.idempotency_key for text in texts]

    done = EndedRound("completed")
    assert keys(over(done, round_step=3)) == ["k:3", None]
    assert keys(over(done, round_step=7)) == ["k:7", None]
    assert keys(over(done)) == ["k", None]


def test_a_call_with_sensitive_arguments_is_marked() -> None:
    """So that nobody keeps them when it is dead."""
    job = spec(
        on_complete=(ToolCall(tool_name="owls.login"), ToolCall(tool_name="owls.echo")), secret_tools=("owls.login",)
    )
    marks = [json.loads(one.body).get("is_secret") for one in poll_values(job, over(EndedRound("completed")))]
    assert marks == [True, None]
