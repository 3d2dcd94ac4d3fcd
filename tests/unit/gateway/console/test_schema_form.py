"""The console's parts: forms made of schemas, moments, counts and its own files."""

import hashlib
import json
from typing import Any

import pytest
from starlette.requests import Request

from toolfleet_gateway.console.overview import MOST_LINES, RecentCalls
from toolfleet_gateway.console.page import STATIC, StaticFiles, when
from toolfleet_gateway.console.tools import MOST_FIELDS, arguments_of, fields_of_schema, typed
from toolfleet_gateway.http.problems import Problem
from toolfleet_registry.system import fleet_clock

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["name", "count"],
    "properties": {
        "name": {"type": "string", "maxLength": 50},
        "text": {"type": "string", "maxLength": 5_000},
        "count": {"type": "integer"},
        "ratio": {"type": "number", "default": 0.5},
        "is_dry": {"type": "boolean"},
        "size": {"enum": ["s", "m", 3]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "odd": True,
    },
}
ARGUMENTS: dict[str, Any] = {
    "name": 'Ada "<b>"',
    "text": "one\ntwo",
    "count": 7,
    "ratio": 0.25,
    "is_dry": False,
    "size": 3,
    "tags": ["a"],
    "odd": {"x": None},
}


def test_each_simple_type_has_a_field_of_its_own() -> None:
    """What is anything else is typed as JSON."""
    fields = fields_of_schema(SCHEMA)

    assert fields is not None
    assert {field.name: field.kind for field in fields} == {
        "name": "text",
        "text": "lines",
        "count": "integer",
        "ratio": "number",
        "is_dry": "boolean",
        "size": "choice",
        "tags": "json",
        "odd": "json",
    }
    assert [field.name for field in fields if field.is_required] == ["name", "count"]
    assert next(field.usual for field in fields if field.name == "ratio") == "0.5"


def test_what_a_form_says_are_the_arguments_again() -> None:
    """Each value comes back as it was, of each type."""
    fields = fields_of_schema(SCHEMA)

    assert arguments_of(fields, typed(ARGUMENTS, fields)) == ARGUMENTS
    assert arguments_of(None, typed(ARGUMENTS, None)) == ARGUMENTS


def test_what_is_empty_is_left_out() -> None:
    """A required text may be empty."""
    assert arguments_of(fields_of_schema(SCHEMA), {"argument.count": "1", "argument.tags": ""}) == {
        "name": "",
        "count": 1,
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [("count", "one"), ("ratio", "NaN"), ("is_dry", "maybe"), ("size", "xl"), ("tags", "[1,"), ("odd", "\ud800")],
)
def test_what_cannot_be_read_is_said_with_its_name(name: str, text: str) -> None:
    """One clear sentence, before anything is called."""
    with pytest.raises(Problem, match=name):
        arguments_of(fields_of_schema(SCHEMA), {f"argument.{name}": text})


@pytest.mark.parametrize("text", ["[]", "1", "{", '{"a": NaN}'])
def test_all_arguments_together_are_an_object(text: str) -> None:
    """Nothing else is sent."""
    with pytest.raises(Problem, match="JSON object"):
        arguments_of(None, {"arguments": text})


@pytest.mark.parametrize("properties", [None, [], {f"p{number}": {} for number in range(MOST_FIELDS + 1)}])
def test_a_schema_without_fields_is_typed_as_json(properties: object) -> None:
    """Also one with more arguments than a form should have."""
    assert fields_of_schema({"properties": properties}) is None


JULY = 1_782_907_200.0  # 2026-07-01 12:00:00


@pytest.mark.parametrize(
    ("days", "shown"),
    [
        (0, ">07-01 12:00:00 "),
        (30, ">07-31 12:00:00 "),
        (365, ">2027-07-01 12:00:00 "),
        (-365, ">2025-07-01 12:00:00 "),
    ],
)
def test_a_moment_of_another_year_has_its_year(monkeypatch: pytest.MonkeyPatch, days: int, shown: str) -> None:
    """Within this year the day will do."""
    monkeypatch.setattr(fleet_clock, "now", lambda: JULY)
    assert shown in when(JULY + days * 86_400)


NOW = 1_000_000.0


def line(age: float, outcome: str = "success", **more: object) -> dict[str, object]:
    return {"ts": NOW - age, "outcome": outcome, "tool": "owls.echo", "duration_ms": 10.0, "queued_ms": 1.0, **more}


def test_the_last_minute_is_counted() -> None:
    """By outcome and tool, with percentiles; older calls are in the series only, and changes are no calls."""
    calls = RecentCalls()
    calls.take(
        [line(200), line(30), line(20, "failed", duration_ms=30.0), line(1, change="tool_disabled"), {"ts": "x"}]
    )
    summary = calls.summary(NOW)

    assert summary.outcomes == {"success": 1, "failed": 1}
    assert summary.busiest == [("owls.echo", 2)]
    assert (summary.running.p50, summary.running.p95, summary.waiting.p50) == (10, 30, 1)
    assert summary.per_second == 2 / 60
    seconds, good, bad, _, _ = summary.series
    assert len(seconds) == len(good) == len(bad) == 60
    assert (sum(each or 0 for each in good) * 5, sum(each or 0 for each in bad) * 5) == (2, 1)


def test_a_flood_is_cut_and_said() -> None:
    """Only the latest lines are kept; the summary says how far they reach."""
    calls = RecentCalls()
    calls.take(line(100 - number * 100 / (MOST_LINES + 10)) for number in range(MOST_LINES + 10))

    assert calls.summary(NOW).covers_seconds < 100
    assert RecentCalls().summary(NOW).covers_seconds == 300


def test_nothing_is_no_percentile() -> None:
    """An idle fleet has zeros and gaps."""
    summary = RecentCalls().summary(NOW)

    assert (summary.per_second, summary.running.p95, summary.outcomes) == (0, None, {})


VENDOR = STATIC / "vendor"


def asking(query: str = "") -> Request:
    return Request({"type": "http", "method": "GET", "query_string": query.encode(), "headers": []})


def test_what_others_have_written_is_as_they_have_published_it() -> None:
    """Each file has its npm package, licence and digest in `sources.json`, and no other file is there."""
    sources = json.loads((VENDOR / "sources.json").read_text())
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.iterdir()}
    del found["sources.json"]

    assert {name: digest for name, (_, _, digest) in sources.items()} == found
    assert {licence for _, licence, _ in sources.values()} == {"0BSD", "MIT"}


def test_an_address_with_its_digest_is_kept_for_ever() -> None:
    """Any other address of the file is asked for again."""
    files = StaticFiles()
    name, _, query = files.address("console.css").removeprefix("/static/").partition("?")

    assert files.answer(asking(query), name).headers["cache-control"] == "public, max-age=31536000, immutable"
    assert files.answer(asking("v=old"), name).headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    "name", ["", "none.css", "../templates/frame.html", "vendor", "vendor/sources.json", "/etc/passwd"]
)
def test_nothing_else_is_served(name: str) -> None:
    """Whatever the path says: what is not in the list of files is not looked for."""
    with pytest.raises(Problem):
        StaticFiles().answer(asking(), name)
