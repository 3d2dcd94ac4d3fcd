"""What a job's message is filled with: values of the last result, as text, once, and no more than a model reads."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from toolfleet_registry.contracts import Caller, Conversation, ToolCall
from toolfleet_registry.contracts.jobs import JobSpec, Poll, Schedule
from toolfleet_tasks.jobs.completion import JobEvent, ThenCall, end_events_of, unfilled, without_arguments
from toolfleet_tasks.jobs.positions import EndedRound, JobPosition, Transition
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.wakeups.placeholders import filled_in, has_places

RESULT: dict[str, Any] = {
    "state": "done",
    "count": 3,
    "owls": [{"name": "Archimedes"}, {"name": "{job_id}"}],
    "nothing": None,
    "__class__": "a field like others",
    "é": "ö",
}


def filled(text: str, result: Any = RESULT, **more: bool) -> tuple[str, tuple[str, ...]]:
    return filled_in(text, "job-1", result, **{"has_result": True, "is_hidden": False, **more})


@pytest.mark.parametrize(
    ("text", "poll_values"),
    [
        ("{job_id}: {result.state}", "job-1: done"),
        ("{result.count} of {result.owls.0.name}", "3 of Archimedes"),
        ("{result.owls.1.name}", "{job_id}"),  # a value is not filled in again
        ("{result.nothing}", "null"),
        ("{result.owls.0}", '{"name": "Archimedes"}'),
        ("{result.é}", "ö"),
        ("{result.__class__}", "a field like others"),  # JSON's, not Python's
        ("{{result.state}}", "{done}"),
        ('{"a": 1} and { result } and {} and {0}', '{"a": 1} and { result } and {} and {0}'),  # no places at all
    ],
)
def test_places_are_filled_with_values(text: str, poll_values: str) -> None:
    """A text as it is, anything else as JSON."""
    assert filled(text) == (poll_values, ())


@pytest.mark.parametrize(
    "name",
    [
        "result.missing",
        "result.state.upper",
        "result.owls.7.name",
        "result.owls.-1",
        "result.owls.²",
        "result.owls.9999999999",
        "result.state.__class__.__mro__",
        "job_id.__class__",
        "user_id",
        "result_",
    ],
)
def test_a_place_without_a_value_stays_as_it_stands(name: str) -> None:
    """And is named; nothing of Python is reached by it."""
    assert filled(f"See {{{name}}}.") == (f"See {{{name}}}.", (name,))


@pytest.mark.parametrize(
    "text", ["{0.__class__}", "{result!r}", "{result:>9}", "{result[state]}", "{result.a b}", "%(x)s"]
)
def test_there_are_no_tricks_of_format_strings(text: str) -> None:
    """They are text like any other."""
    assert filled(text) == (text, ())


def test_the_whole_result_is_filled_in_as_json() -> None:
    """Also where the tool brought nothing; without a result the place stays."""
    assert json.loads(filled("{result}")[0]) == RESULT
    assert filled("{result}", None) == ("null", ())
    assert filled("{result}", None, has_result=False) == ("{result}", ("result",))


def test_of_sensitive_results_nothing_is_filled_in() -> None:
    """Whether there is such a field is not told, either."""
    poll_values, unknown = filled("{result.state} {result.missing} {job_id}", None, is_hidden=True, has_result=False)
    assert (poll_values, unknown) == ("[redacted] [redacted] job-1", ())


def test_values_are_bounded_one_by_one_and_together() -> None:
    """However often a large one is named."""
    one, _ = filled("{result}", "x" * 100_000)
    assert (len(one), one[-1]) == (4_000, "…")

    many, _ = filled("{result}" * 1_250, {"text": "x" * 1_000_000})
    assert len(many) < 16_000 + 1_250 + 1


def test_of_a_large_result_only_what_is_shown_is_written_out() -> None:
    """A worker fills messages on its loop, where all other calls would wait for megabytes of JSON."""
    taken = list[int]()

    class Items(list[int]):
        def __iter__(self) -> Iterator[int]:
            for item in super().__iter__():
                taken.append(item)
                yield item

    poll_values, _ = filled("{result.items}", {"items": Items(range(1_000_000))})

    assert (len(poll_values), poll_values[-1]) == (4_000, "…")
    assert len(taken) < 4_000


def test_what_is_no_json_is_not_filled_in() -> None:
    """A module's result may be anything that came over the wire."""
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert filled("{result}", float("nan")) == ("{result}", ("result",))
    assert filled("{result}", deep) == ("{result}", ("result",))


def spec(**fields: Any) -> JobSpec:
    known: dict[str, Any] = {
        "job_id": "job-1",
        "caller": Caller(user_id="ada"),
        "conversation": Conversation(conversation_id="talk-1"),
        "poll": Poll(tool_name="owls.state"),
        "created_at": 1.0,
        "deadline_at": 2.0,
        "message": "{result.state}: go on.",
        "on_failure_message": "{job_id} is lost at {result.step}.",
        "fills": True,
    }
    return JobSpec(**{**known, **fields})


def over(ended: EndedRound) -> Transition:
    return Transition(JobPosition(state=ended.state, step=1), ended, is_over=True)


def messages(job: JobSpec, ended: EndedRound) -> list[str]:
    events: list[JobEvent] = list(end_events_of(job, over(ended), 5.0, has_core=True, seal=str))
    return [json.loads(one.body)["message"] for one in events]


def test_a_job_that_completed_says_its_message_filled_in() -> None:
    """For the agent and for the user alike."""
    job = spec(on_complete=("resume_conversation", "notify"))
    assert messages(job, EndedRound("completed", {"state": "done"})) == ["done: go on."] * 2
    assert unfilled(job, over(EndedRound("completed", {}))) == ("result.state",)


@pytest.mark.parametrize("state", ["failed", "timed_out"])
def test_a_job_that_did_not_complete_says_the_other_one(state: Any) -> None:
    """And why; a job without that message says the usual one."""
    ended = EndedRound(state, {"step": 7}, "It broke.", "module_error")
    (poll_values,) = messages(spec(), ended)
    assert poll_values.startswith("job-1 is lost at 7.\n\nThe job has ")
    assert poll_values.endswith(": It broke.")
    (usual,) = messages(spec(on_failure_message=None), ended)
    assert usual.startswith("{result.state}: go on.\n\n")


def test_a_failure_in_a_workflow_says_what_becomes_of_the_others() -> None:
    """A round that fails ends nothing else, and says nothing of it."""
    broken = EndedRound("failed", None, "It broke.", "module_error")
    (poll_values,) = messages(spec(workflow_id="release"), broken)
    assert poll_values.endswith("The other jobs of its workflow 'release' that have not ended are cancelled.")
    recurring = spec(workflow_id="release", schedule=Schedule(cron="* * * * *"))
    assert "workflow" not in messages(recurring, broken)[0]
    assert "workflow" not in messages(spec(workflow_id="release"), EndedRound("completed", {}))[0]


def test_of_sensitive_results_nothing_is_told() -> None:
    """The message says so in their places."""
    (poll_values,) = messages(spec(hides_results=True), EndedRound("completed", {"state": "s3cret"}))
    assert poll_values.startswith("[redacted]: go on.")
    assert unfilled(spec(hides_results=True), over(EndedRound("completed"))) == ()


def test_a_job_of_an_earlier_version_says_its_message_as_it_stands() -> None:
    """Whoever wrote it meant the braces; a job with places is left to workers that fill them."""
    plain = spec(fills=False, on_failure_message=None)
    assert messages(plain, EndedRound("completed", {"state": "done"})) == ["{result.state}: go on."]
    assert unfilled(plain, over(EndedRound("completed"))) == ()
    assert (json_text.version_of(plain), json_text.version_of(spec())) == (1, 2)
    assert has_places(None, "Go on, {job_id}")
    assert not has_places(None, "Go on", "{}")


def test_a_call_of_the_end_is_for_workers_of_every_version() -> None:
    """What the job was asked with is not in it; nor is it kept of a job that is over."""
    job = spec(on_complete=(ToolCall(tool_name="owls.echo"),), schedule=Schedule(cron="* * * * *", max_runs=2))
    (events,) = end_events_of(job, over(EndedRound("completed", {})), 5.0, has_core=True, seal=str)
    then = json_text.load(ThenCall, json.loads(events.body)["call"])

    assert json_text.version_of(then) == 1
    assert unfilled(job, over(EndedRound("completed", {}))) == ()  # nobody is told
    assert "lost" not in json_text.dump(without_arguments(job))
