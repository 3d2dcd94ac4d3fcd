"""`toolfleet wakes`, on a real Redis."""

import functools
import json
from collections.abc import Callable

import pytest

from support.command import Run
from support.workers.dead_news import maker

Make = Callable[..., None]


@pytest.fixture
def wakes(run: Run, monkeypatch: pytest.MonkeyPatch, redis_url: str) -> Run:
    """Runs `toolfleet wakes`, with a Redis."""
    monkeypatch.setenv("TOOLFLEET_REDIS_URL", redis_url)
    return functools.partial(run, "wakes")


@pytest.fixture
def make(redis_url: str) -> Make:
    """News that wait, or with `dead=True` that nobody has accepted."""
    return maker(redis_url)


def test_those_that_wait_are_a_line_each(wakes: Run, make: Make) -> None:
    """As JSON, too; those that are dead are none of them."""
    assert "No wake-ups wait." in wakes("list").err
    make("job-9", dead=True)
    make("job-1")
    make("job-2", kind="notify")

    out = wakes("list").out
    assert "NEXT" in out
    assert "job-1" in out
    assert "talk-1" in out
    assert "job-9" not in out
    assert {one["wake_id"] for one in json.loads(wakes("list", "--json").out)} == {"job-1", "job-2"}
    ended = wakes("list", "--limit", "1")
    assert "--offset 1" in ended.err


def test_one_is_shown_whole(wakes: Run, make: Make) -> None:
    """What is told, to whom, and what went wrong."""
    make("job-1", dead=True)
    ended = wakes("show", "job-1")

    assert ended.code == 0
    assert "The owls are counted." in ended.out
    assert "given up" in ended.out
    assert json.loads(wakes("show", "job-1", "--json").out)["body"]["user_id"] == "ada"
    ended = wakes("show", "job-7")
    assert ended.code == 1
    assert "'job-7'" in ended.err


def test_news_that_wait_are_tried_now(wakes: Run, make: Make) -> None:
    """Who is dead or not there is named, with where to look."""
    make("job-0")
    make("job-1", dead=True)
    ended = wakes("replay", "job-0", "job-1", "job-7", "job-0")

    assert ended.code == 1
    assert ended.err.splitlines()[0] == "Due now: 1."
    assert "'job-1' is dead: `toolfleet dead replay job-1`" in ended.err
    assert "'job-7'" in ended.err
    assert wakes("replay", "job-0").code == 0
    assert wakes("replay").code == 2


def test_some_that_wait_are_dropped(wakes: Run, make: Make) -> None:
    """Who is dead or not there is named; the others are gone."""
    make("job-0")
    make("job-1", dead=True)
    make("job-2")
    ended = wakes("drop", "job-0", "job-1", "job-7", "job-0")

    assert ended.code == 1
    assert ended.err.splitlines()[0] == "Dropped: 1."
    assert "'job-1'" in ended.err
    assert "'job-7'" in ended.err
    assert {one["wake_id"] for one in json.loads(wakes("list", "--json").out)} == {"job-2"}


def test_all_of_a_filter_are_handled(wakes: Run, make: Make, run: Run) -> None:
    """What narrows them goes with --all; who did it stands in the audit."""
    for number in range(3):
        make(f"job-{number}")
    make("job-9", kind="notify")
    listed = json.loads(wakes("list", "--kind", "notify", "--json").out)
    dropped = wakes("drop", "--all", "--kind", "continue", "--about", "JOB", "--as", "olga")
    left = json.loads(wakes("list", "--json").out)
    tried = wakes("replay", "--all")
    audit = [json.loads(line) for line in run("audit", "tail", "--changes", "--json").out.splitlines()]

    assert [one["wake_id"] for one in listed] == [one["wake_id"] for one in left] == ["job-9"]
    assert (dropped.code, dropped.err.strip()) == (0, "Dropped: 3.")
    assert (tried.code, tried.err.splitlines()[-1].startswith("Due now: ")) == (0, True)
    assert (audit[0]["change"], audit[0]["user_id"], audit[0]["count"]) == ("wakeups_dropped", "olga", 3)


@pytest.mark.parametrize("words", [(), ("--kind", "call"), ("job-1", "--all"), ("job-1", "--error", "x")])
@pytest.mark.parametrize("command", ["drop", "replay"])
def test_it_is_said_which_are_meant(wakes: Run, command: str, words: tuple[str, ...]) -> None:
    """Ids or all: a filter alone drops nothing."""
    assert wakes(command, *words).code == 2
