"""What is kept of a job that is over, and what is told: its message filled in, nothing sensitive, each piece sealed, and always to somebody."""

import json
from typing import Any

import pytest

from toolfleet_registry.contracts import Caller, Conversation, ErrorCode, ToolCall
from toolfleet_registry.contracts.jobs import JobSpec, Poll, Schedule
from toolfleet_tasks.jobs.completion import JobEvent, ThenCall, end_events_of, end_note, unfilled, without_arguments
from toolfleet_tasks.jobs.state_machine import EndedRound, JobPosition, Transition
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.wakeups.events import has_places


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


def filling(**fields: Any) -> JobSpec:
    """A job whose messages have places."""
    texts = {"message": "{result.state}: go on.", "on_failure_message": "{job_id} is lost at {result.step}."}
    return spec(**{**texts, "fills": True, **fields})


def messages(job: JobSpec, ended: EndedRound) -> list[str]:
    events: list[JobEvent] = list(end_events_of(job, over(ended), 5.0, has_core=True, seal=str))
    return [json.loads(one.body)["message"] for one in events]


def test_a_job_that_completed_says_its_message_filled_in() -> None:
    """For the agent and for the user alike."""
    job = filling(on_complete=("resume_conversation", "notify"))
    assert messages(job, EndedRound("completed", {"state": "done"})) == ["done: go on."] * 2
    assert unfilled(job, over(EndedRound("completed", {}))) == ("result.state",)


@pytest.mark.parametrize("state", ["failed", "timed_out"])
def test_a_job_that_did_not_complete_says_the_other_one(state: Any) -> None:
    """And why; a job without that message says the usual one."""
    ended = EndedRound(state, {"step": 7}, "It broke.", "module_error")
    (text,) = messages(filling(), ended)
    assert text.startswith("job-1 is lost at 7.\n\nThe job has ")
    assert text.endswith(": It broke.")
    (usual,) = messages(filling(on_failure_message=None), ended)
    assert usual.startswith("{result.state}: go on.\n\n")


def test_a_failure_in_a_workflow_says_what_becomes_of_the_others() -> None:
    """A round that fails ends nothing else, and says nothing of it."""
    broken = EndedRound("failed", None, "It broke.", "module_error")
    (text,) = messages(filling(workflow_id="release"), broken)
    assert text.endswith("The other jobs of its workflow 'release' that have not ended are cancelled.")
    recurring = filling(workflow_id="release", schedule=Schedule(cron="* * * * *"))
    assert "workflow" not in messages(recurring, broken)[0]
    assert "workflow" not in messages(filling(workflow_id="release"), EndedRound("completed", {}))[0]


def test_of_sensitive_results_nothing_is_told() -> None:
    """The message says so in their places."""
    (text,) = messages(filling(hides_results=True), EndedRound("completed", {"state": "s3cret"}))
    assert text.startswith("[redacted]: go on.")
    assert unfilled(filling(hides_results=True), over(EndedRound("completed"))) == ()


def test_a_job_of_an_earlier_version_says_its_message_as_it_stands() -> None:
    """Whoever wrote it meant the braces; a job with places is left to workers that fill them."""
    plain = filling(fills=False, on_failure_message=None)
    assert messages(plain, EndedRound("completed", {"state": "done"})) == ["{result.state}: go on."]
    assert unfilled(plain, over(EndedRound("completed"))) == ()
    assert (json_text.version_of(plain), json_text.version_of(filling())) == (1, 2)
    assert has_places(None, "Go on, {job_id}")
    assert not has_places(None, "Go on", "{}")


def test_a_call_of_the_end_is_for_workers_of_every_version() -> None:
    """What the job was asked with is not in it; nor is it kept of a job that is over."""
    job = filling(on_complete=(ToolCall(tool_name="owls.echo"),), schedule=Schedule(cron="* * * * *", max_runs=2))
    (events,) = end_events_of(job, over(EndedRound("completed", {})), 5.0, has_core=True, seal=str)
    then = json_text.load(ThenCall, json.loads(events.body)["call"])

    assert json_text.version_of(then) == 1
    assert unfilled(job, over(EndedRound("completed", {}))) == ()  # nobody is told
    assert "lost" not in json_text.dump(without_arguments(job))
