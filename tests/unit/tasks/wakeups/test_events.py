"""How the news of a job's end are worded and bounded."""

import json
import sys
from typing import Any

import pytest

from toolfleet_registry.contracts import Caller, Conversation, ToolCall
from toolfleet_registry.contracts.jobs import JobSpec, Poll, WakeUp
from toolfleet_tasks.wakeups.events import MAX_RESULT_BYTES, End, bounded_wake, wake_body


def spec(**fields: Any) -> JobSpec:
    known: dict[str, Any] = {
        "job_id": "job-1",
        "caller": Caller(user_id="ada"),
        "user_id": "ada",
        "conversation": Conversation(conversation_id="talk-1", platform="owlchat", platform_channel_id="c-1"),
        "start": ToolCall(tool_name="owls.count"),
        "poll": Poll(tool_name="owls.count_status"),
        "created_at": 1.0,
        "deadline_at": 2.0,
    }
    return JobSpec(**{**known, **fields})


def test_news_say_where_they_belong_and_what_came_of_it() -> None:
    """Flat, as a core reads them; every field is there, and they are read as they were written."""
    wake = bounded_wake(spec(), "completed", wake_id="job-1", at=7.5, result={"status": "completed"})
    body = json.loads(wake_body(wake))

    assert WakeUp.model_validate(body) == wake
    assert body == {
        "type": "job.completed",
        "kind": "continue",
        "wake_id": "job-1",
        "job_id": "job-1",
        "timestamp": 7.5,
        "conversation_id": "talk-1",
        "user_id": "ada",
        "platform": "owlchat",
        "platform_channel_id": "c-1",
        "platform_thread_id": None,
        "message": "The job has completed.",
        "name": "",
        "tool_name": "owls.count_status",
        "result": {"status": "completed"},
        "result_preview": None,
        "is_truncated": False,
        "error": None,
        "error_code": None,
    }


@pytest.mark.parametrize(
    ("end", "fields", "error", "message"),
    [
        ("completed", {"name": "owl count"}, None, "The job 'owl count' has completed."),
        ("completed", {"message": "Tell Ada."}, None, "Tell Ada."),
        ("failed", {}, "The owls flew.", "The job has failed: The owls flew."),
        (
            "failed",
            {"on_failure_message": "It went wrong."},
            "The job has failed: its first call has failed: No.",
            "It went wrong.\n\nThe job has failed: its first call has failed: No.",
        ),
        ("timed_out", {}, "The job has timed out: it is late.", "The job has not ended in time: it is late."),
        ("failed", {"message": "Deploy it."}, None, "Deploy it.\n\nThe job has failed."),
        ("timed_out", {"name": "x"}, None, "The job 'x' has not ended in time."),
    ],
)
def test_the_message_is_the_jobs_own_or_ours(end: End, fields: dict[str, Any], error: str | None, message: str) -> None:
    """Who wrote one thought of success: that it failed is said beside it."""
    wake = bounded_wake(spec(**fields), end, wake_id="job-1", at=1, error=error)

    assert wake.message == message
    assert wake.type == f"job.{end}"


@pytest.mark.parametrize("result", ["x" * MAX_RESULT_BYTES, ["x" * 100] * 1000, {"owls": "🦉" * 10_000}])
def test_a_large_result_is_told_by_its_beginning(result: Any) -> None:
    """Over 64 kB as JSON."""
    wake = bounded_wake(spec(), "completed", wake_id="job-1", at=1, result=result)

    assert wake.result is None
    assert wake.is_truncated
    assert wake.result_preview is not None
    assert wake.result_preview.startswith((result if isinstance(result, str) else json.dumps(result))[:10])
    assert len(wake_body(wake)) < 70_000


def test_nothing_in_a_result_makes_its_news_fail() -> None:
    """What is no JSON, half characters, and depth that no JSON has."""
    deep: dict[str, Any] = {}
    for _ in range(sys.getrecursionlimit()):
        deep = {"a": deep}
    for result in (float("nan"), deep, {"half": "\ud800"}, object()):
        wake = bounded_wake(spec(), "failed", wake_id="job-1", at=1, result=result, error="\ud800" * 5000)
        assert wake_body(wake).isascii()
