"""`toolfleet wake-ups`, on a real Redis."""

import functools
import json
from collections.abc import Callable

import pytest
from redis import Redis

from support.command import Run
from support.workers.dead_news import maker
from toolfleet_registry.redis.keys import Keys

Make = Callable[..., None]


@pytest.fixture
def wakes(redis_run: Run) -> Run:
    """Runs `toolfleet wake-ups`, with a Redis."""
    return functools.partial(redis_run, "wake-ups")


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
    assert [word in out for word in ("NEXT", "job-1", "talk-1", "job-9")] == [True, True, True, False]
    for words, found in {(): {"job-1", "job-2"}, ("--kind", "notify"): {"job-2"}}.items():
        assert {one["wake_id"] for one in json.loads(wakes("list", "--json", *words).out)} == found
    assert "--offset 1" in wakes("list", "--limit", "1").err


def test_all_of_a_filter_are_handled(wakes: Run, make: Make, run: Run, redis_url: str) -> None:
    """With --all, which --kind narrows; the others stay, and who has dropped how many is in the audit."""
    for number in range(3):
        make(f"job-{number}")
    make("job-9", kind="notify")
    with Redis.from_url(redis_url) as redis:
        redis.zadd(Keys().wakes_due, {"job-9": 2e12})  # it was tried, and waits for its next time
    dropped = wakes("drop", "--all", "--kind", "continue", "--as", "olga")
    left = json.loads(wakes("list", "--json").out)
    tried = wakes("replay", "--all")
    audit = [json.loads(line) for line in run("audit", "tail", "--changes", "--json").out.splitlines()]

    assert (dropped.code, dropped.err) == (0, "Dropped: 3.\n")
    assert [one["wake_id"] for one in left] == ["job-9"]
    assert (tried.code, tried.err.splitlines()[-1]) == (0, "Due now: 1.")
    assert (audit[0]["change"], audit[0]["user_id"], audit[0]["count"]) == ("wakeups_dropped", "olga", 3)
