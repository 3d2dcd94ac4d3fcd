"""What a model writes about a job, and what becomes of it."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from support.published_call import published
from toolfleet_registry.contracts import Caller, Conversation, ToolCall
from toolfleet_registry.contracts.jobs import Job, JobSpec, Poll, Schedule
from toolfleet_tasks.jobs.state_machine import check_schedule
from toolfleet_workers.executors.scheduler import description_of, job_wanted

YEAR = 366 * 86_400.0
SOON = (datetime.now(UTC) + timedelta(hours=1)).isoformat()


def wanted(**arguments: Any) -> JobSpec:
    call = published("scheduler.add_job", arguments=arguments, user_id="ada", caller=Caller(user_id="ada"))
    return job_wanted(call, longest_seconds=YEAR)


def test_a_job_is_its_callers() -> None:
    """Who asks, and in which conversation, come from the call; its id is the call's, so that a second attempt makes no second job."""
    spec = wanted(tool_name="owls.status", conversation_id="talk", platform="chat", platform_channel_id="7")

    assert (spec.job_id, spec.user_id, spec.caller.user_id) == ("call-1", "ada", "ada")
    assert spec.conversation == Conversation(conversation_id="talk", platform="chat", platform_channel_id="7")


def test_a_tool_is_polled_as_the_model_says() -> None:
    """What it leaves out has the defaults of a poll."""
    spec = wanted(
        tool_name="owls.status", arguments={"id": 1}, interval_seconds=5, until={"done": True}, max_seconds=60
    )

    assert spec.poll == Poll(
        tool_name="owls.status", arguments={"id": 1}, interval_seconds=5, until={"done": True}, max_seconds=60
    )
    assert spec.start is None
    assert spec.deadline_at == pytest.approx(spec.created_at + 60)


def test_a_tool_at_a_time_is_called_once() -> None:
    """Not again and again until it succeeds: it may be one whose effect must not happen twice."""
    spec = wanted(tool_name="mail.send", arguments={"to": "ada"}, at=SOON)

    assert (spec.start, spec.poll) == (ToolCall(tool_name="mail.send", arguments={"to": "ada"}), None)
    assert spec.schedule == Schedule(at=datetime.fromisoformat(SOON).timestamp())


def test_work_may_be_watched_from_a_time_on() -> None:
    """Whoever says how to poll wants it polled."""
    spec = wanted(tool_name="owls.status", at=SOON, interval_seconds=60)
    assert (spec.start, spec.poll) == (None, Poll(tool_name="owls.status", interval_seconds=60))


def test_what_recurs_is_called_once_each_time() -> None:
    """The first result ends the round; the job lasts as long as a job may."""
    spec = wanted(tool_name="owls.count", cron="0 9 * * *", timezone="Europe/Berlin")

    assert spec.poll == Poll(tool_name="owls.count", until=None)
    assert spec.schedule == Schedule(cron="0 9 * * *", timezone="Europe/Berlin")
    assert spec.deadline_at == spec.created_at + YEAR


def test_a_delay_counts_from_when_the_call_was_made() -> None:
    """So that a second attempt of that call means the same time; the job's own time is added to it."""
    spec = wanted(tool_name="mail.send", delay_seconds=90, max_seconds=60)

    assert spec.schedule == Schedule(at=spec.created_at + 90)
    assert spec.deadline_at == pytest.approx(spec.created_at + 150)


def test_a_delay_that_passed_in_the_queue_is_over() -> None:
    """The job begins at once: nobody who named a delay is told that a time of theirs is in the past."""
    asked_at = time.time() - 120
    arguments = {"tool_name": "mail.send", "delay_seconds": 30}
    call = published("scheduler.add_job", arguments=arguments, user_id="ada", published_at=asked_at)

    schedule = job_wanted(call, longest_seconds=YEAR).schedule

    assert schedule is not None
    assert schedule.at == pytest.approx(time.time(), abs=30)
    check_schedule(schedule)


def test_rounds_may_be_counted_and_a_failure_has_its_own_words() -> None:
    """As the model says them."""
    spec = wanted(tool_name="owls.count", cron="0 9 * * *", max_runs=5, message="{result}", on_failure_message="No.")

    assert spec.schedule == Schedule(cron="0 9 * * *", max_runs=5)
    assert (spec.message, spec.on_failure_message) == ("{result}", "No.")


def test_a_job_may_belong_to_a_workflow() -> None:
    """As the model calls it; that it has a name is looked at before."""
    assert wanted(tool_name="owls.count", workflow_id="release").workflow_id == "release"
    with pytest.raises(ValueError, match="workflow_id: String should have at most 200 characters"):
        wanted(tool_name="owls.count", workflow_id="x" * 201)


def test_an_address_is_polled_by_the_module_that_fetches() -> None:
    """As often as the model says, until it answers as expected."""
    expected = {"expected_status": [200, 203], "expected_field": "a.b", "expected_value": "done"}
    spec = wanted(poll_url="https://owls.example/", interval_seconds=5, **expected)

    assert spec.start is None
    assert spec.poll == Poll(
        tool_name="research.check_url",
        arguments={"url": "https://owls.example/", "field": "a.b"},
        interval_seconds=5,
        until={"status": [200, 203], "value": "done"},
        failed_when=None,
    )


def test_a_reminder_calls_nothing() -> None:
    """It has a time, and what is to be said then."""
    spec = wanted(at=SOON, message="Water the plants.")
    assert (spec.start, spec.poll, spec.message) == (None, None, "Water the plants.")


@pytest.mark.parametrize(
    ("said", "wishes"),
    [
        ({}, ("resume_conversation",)),
        ({"on_complete": "notify"}, ("notify",)),
        (
            {"on_complete": ["notify", {"tool_name": "a.b", "arguments": {"x": 1}}]},
            ("notify", ToolCall(tool_name="a.b", arguments={"x": 1})),
        ),
        ({"on_complete": {"tool_name": "a.b"}}, (ToolCall(tool_name="a.b"),)),
    ],
)
def test_what_happens_at_the_end_is_one_thing_or_several(said: dict[str, Any], wishes: tuple[object, ...]) -> None:
    """A word, a call, or a list of them."""
    assert wanted(at=SOON, **said).on_complete == wishes


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({}, "Give `tool_name`"),
        ({"message": "hi"}, "or `at` or `cron`"),
        ({"at": SOON, "cron": "* * * * *"}, "not both"),
        ({"at": SOON, "interval_seconds": 5}, "`interval_seconds` needs `tool_name`"),
        ({"at": SOON, "timezone": "UTC"}, "that of `cron`"),
        ({"at": SOON, "delay_seconds": 5}, "Give `at` or `delay_seconds`, not both"),
        ({"delay_seconds": 5, "cron": "* * * * *"}, "Give `delay_seconds` or `cron`, not both"),
        ({"delay_seconds": -1}, "greater than 0"),
        ({"delay_seconds": 5, "timezone": "UTC"}, "that of `cron`"),
        ({"poll_url": "https://a.b/", "tool_name": "a.b"}, "Give `poll_url` or `tool_name`, not both"),
        ({"poll_url": "ftp://a.b/"}, "must be an http or https address"),
        ({"poll_url": "https://a.b/", "expected_field": "a"}, "go together"),
        ({"tool_name": "a.b", "expected_status": 200}, "`expected_status` is for `poll_url`"),
        ({"at": SOON, "max_runs": 2}, "`max_runs` counts the rounds of `cron`"),
        ({"at": "2027-03-01T09:00:00"}, "has none, and it is 2"),  # no offset: whose nine o'clock?
        ({"at": "tomorrow"}, "not 'tomorrow'"),
        ({"at": "2027-02-30T09:00:00Z"}, "not '2027-02-30"),
    ],
)
def test_what_is_no_job_is_said_in_a_sentence(said: dict[str, Any], reason: str) -> None:
    """The model reads what to write instead."""
    with pytest.raises(ValueError, match=reason):
        wanted(**said)


def test_a_model_is_told_of_a_job_without_its_arguments() -> None:
    """What is there, with times that can be read."""
    job = Job(
        job_id="a",
        state="completed",
        created_at=0,
        deadline_at=60,
        ended_at=3.4,
        polls=2,
        result={"count": 3},
        schedule=Schedule(cron="* * * * *"),
    )

    told = description_of(job)
    assert told == {
        "job_id": "a",
        "state": "completed",
        "cron": "* * * * *",
        "timezone": "UTC",
        "created_at": "1970-01-01T00:00:00Z",
        "deadline_at": "1970-01-01T00:01:00Z",
        "ended_at": "1970-01-01T00:00:03Z",
        "calls": 2,
    }
    assert description_of(job, with_result=True) == {**told, "result": {"count": 3}}
