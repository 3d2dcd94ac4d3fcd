"""What a job's message is filled with: values of the last result, as text, once, and no more than a model reads."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from toolfleet_tasks.wakeups.events import filled_in

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
