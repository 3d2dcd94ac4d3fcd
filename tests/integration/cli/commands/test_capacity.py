"""`toolfleet capacity`: a table, JSON, and wrong inputs; it asks no fleet."""

import json

import pytest

from support.command import Run


def test_it_says_how_many_of_each(run: Run) -> None:
    """For people, and as JSON."""
    shown = run("capacity", "--rate", "300", "--latency", "4")
    told = json.loads(run("capacity", "--rate", "300", "--latency", "4", "--json").out)

    assert shown.code == 0
    assert "worker processes" in shown.out
    assert "14,000 calls a second" in shown.err
    assert (told["workers"], told["short_of"], told["measured_by"]) == (3, "slots", "make bench")


@pytest.mark.parametrize(
    "words", [("--rate", "0", "--latency", "1"), ("--rate", "1", "--latency", "-1"), ("--rate", "1")]
)
def test_a_load_that_is_none_is_refused(run: Run, words: tuple[str, ...]) -> None:
    """By the option's name."""
    ended = run("capacity", *words)

    assert ended.code == 2
    assert "--rate" in ended.err or "--latency" in ended.err
