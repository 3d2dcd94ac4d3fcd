"""What `tasks/JOBS.md` shows works as it stands."""

import re
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

from support.wakes import OTHER_SECRET, SECRET
from toolfleet_registry.conditions import check_condition
from toolfleet_registry.expressions import _FUNCTIONS
from toolfleet_registry.job_settings import JobSettings
from toolfleet_registry.jobs import Poll, WakeUp

DOCUMENT = (Path(__file__).parents[2] / "tasks" / "JOBS.md").read_text()
CONDITIONS, VERIFIER = re.findall(r"^```python\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("line", CONDITIONS.splitlines())
def test_the_conditions_are_taken(line: str) -> None:
    """Each line is a condition that a job may have."""
    check_condition(eval(line))  # noqa: S307 - a literal of our own document


def test_every_function_and_field_is_named() -> None:
    """The document has all that a condition may call, and every field of a poll and of the news."""
    for name in (*_FUNCTIONS, *Poll.model_fields, *WakeUp.model_fields):
        assert re.search(rf"\b{name}\b", DOCUMENT), name


def test_every_setting_is_named_with_its_default() -> None:
    """As the settings themselves have it."""
    rows = re.findall(r"^\| (`TOOLFLEET_[^|]*) \| ([^|]*) \|", DOCUMENT, re.MULTILINE)
    told = {
        name.lower(): default
        for names, defaults in rows
        for name, default in zip_longest(
            re.findall(r"`TOOLFLEET_(\w+)`", names), defaults.split(", "), fillvalue="none"
        )
    }
    own = {name: field.default for name, field in JobSettings.model_fields.items()}

    assert told == {name: "none" if default is None else str(default).lower() for name, default in own.items()}


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
