"""What `docs/guides/jobs.md` shows works as it stands."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

from support.documents import programs
from support.workers.wakes import OTHER_SECRET, SECRET
from toolfleet_registry.conditions import _FUNCTIONS, check_condition
from toolfleet_registry.contracts.jobs import Poll, Schedule, WakeUp
from toolfleet_registry.local.scheduler_tools import url_poll
from toolfleet_tasks.jobs.state_machine import check_schedule
from toolfleet_tasks.wakeups.events import filled_in

PAGE = "docs/guides/jobs.md"
DOCUMENT = (Path(__file__).parents[4] / PAGE).read_text()
PROGRAMS = programs(PAGE)
CONDITIONS, ADDRESS = PROGRAMS["job-conditions"], PROGRAMS["url-poll"]
SCHEDULES, VERIFIER = PROGRAMS["schedules"], PROGRAMS["is-from-the-fleet"]


@pytest.mark.parametrize("line", CONDITIONS.splitlines())
def test_the_conditions_are_taken(line: str) -> None:
    """Each line is a condition that a job may have."""
    check_condition(eval(line))  # noqa: S307 - a literal of our own document


def test_an_address_is_polled() -> None:
    """With a condition that a job may have."""
    poll: Poll = eval(ADDRESS, {"url_poll": url_poll})  # noqa: S307 - as above
    assert poll.until is not None
    check_condition(poll.until)
    assert f"`{poll.tool_name}`" in DOCUMENT


@pytest.mark.parametrize("line", SCHEDULES.splitlines())
def test_the_schedules_are_taken(line: str) -> None:
    """Each line is one that a job may have."""
    names = {"Schedule": Schedule, "datetime": datetime, "timedelta": timedelta, "UTC": UTC}
    check_schedule(eval(line, names).counted_from(datetime.now(UTC).timestamp()))  # noqa: S307 - as above


def test_the_messages_are_told_as_it_says() -> None:
    """Each line of the table, with the result above it."""
    (result,) = re.findall(r"the last result, here\s`(.*)`:$", DOCUMENT, re.MULTILINE)
    rows = re.findall(
        r"^\| `(.*)` \| `(.*)` \|$", DOCUMENT.partition("| what is told |")[2].partition("\n\n")[0], re.MULTILINE
    )

    assert len(rows) == 3
    for message, poll_values in rows:
        assert filled_in(message, "4f0c", json.loads(result), has_result=True, is_hidden=False)[0] == poll_values


def test_every_function_and_field_is_named() -> None:
    """The document has all that a condition may call, and every field of a poll, a schedule and the news."""
    for name in (*_FUNCTIONS, *Poll.model_fields, *Schedule.model_fields, *WakeUp.model_fields):
        assert re.search(rf"\b{name}\b", DOCUMENT), name


def test_the_verifier_knows_the_fleets_signature() -> None:
    """Written with the standard library alone, it takes what the library signs, and nothing else."""
    place: dict[str, Any] = {}
    exec(VERIFIER, place)  # noqa: S102 - as above
    body, now = '{"wake_id": "job-1"}', datetime.now(UTC)
    headers = {
        "webhook-id": "job-1",
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(SECRET).sign("job-1", now, body),
    }

    assert place["is_from_the_fleet"](headers, body.encode(), SECRET)
    assert not place["is_from_the_fleet"](headers, body.encode(), OTHER_SECRET)
    assert not place["is_from_the_fleet"](headers, b'{"wake_id": "job-2"}', SECRET)
    assert not place["is_from_the_fleet"]({**headers, "webhook-timestamp": "1"}, body.encode(), SECRET)
