"""`toolfleet wakes`, on a real Redis."""

import asyncio
import functools
import json
import time
from collections.abc import Callable

import pytest
from redis.asyncio import Redis

from support.command import Run
from support.workers.wakes import put, wake
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.wakeups.events import wake_body

Make = Callable[..., None]
SECRET_CALL = '{"job_id":"job-1","tool_name":"owls.echo","is_secret":true}'


@pytest.fixture
def wakes(run: Run, monkeypatch: pytest.MonkeyPatch, redis_url: str) -> Run:
    """Runs `toolfleet wakes`, with a Redis."""
    monkeypatch.setenv("TOOLFLEET_REDIS_URL", redis_url)
    return functools.partial(run, "wakes")


@pytest.fixture
def make(redis_url: str) -> Make:
    """News that wait, or with `dead=True` that nobody has accepted."""

    async def make(wake_id: str, *, dead: bool = False, kind: str = "continue") -> None:
        async with Redis.from_url(redis_url) as redis:
            if not dead:
                await put(redis, wake_id, kind=kind)
                return
            now_ms = time.time() * 1000
            body = SECRET_CALL if kind == "call" else wake_body(wake(wake_id))
            kept = {"kind": kind, "body": body, "tries": "3", "error": "ConnectError: refused"}
            times = {"first_at": str(now_ms - 100_000), "died_at": str(now_ms)}
            await redis.hset(Keys().dead_wakes, wake_id, json.dumps({**kept, **times}))
            await redis.zadd(Keys().dead_wakes_order, {wake_id: now_ms})

    return lambda *args, **kwargs: asyncio.run(make(*args, **kwargs))


def test_lists_are_a_line_each(wakes: Run, make: Make) -> None:
    """Those that wait, and those that are dead; as JSON, too."""
    assert "No news wait." in wakes("list").err
    assert "no dead news" in wakes("dead").err
    make("job-9", dead=True)
    make("job-1")
    make("job-2", kind="notify")

    out = wakes("list").out
    assert "NEXT" in out
    assert "job-1" in out
    assert "talk-1" in out
    assert "job-9" not in out
    assert "ConnectError" in wakes("dead").out
    assert [one["wake_id"] for one in json.loads(wakes("dead", "--json").out)] == ["job-9"]
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


def test_dead_news_are_replayed(wakes: Run, make: Make) -> None:
    """By id, or all; who is not there is named."""
    for number in range(3):
        make(f"job-{number}", dead=True)

    ended = wakes("replay", "job-0", "job-7")
    assert ended.code == 1
    assert "Due again: 1." in ended.err
    assert "'job-7'" in ended.err
    assert "Due again: 2." in wakes("replay", "--all").err
    assert len(json.loads(wakes("list", "--json").out)) == 3
    assert wakes("replay").code == wakes("replay", "x", "--all").code == 2


def test_what_cannot_be_replayed_holds_up_no_others(wakes: Run, make: Make) -> None:
    """All that can be are, whatever stands before them; what cannot is named, with the reason."""
    make("job-0", dead=True)
    make("job-1.then.0", dead=True, kind="call")
    ended = wakes("replay", "--all")

    assert ended.code == 1
    assert "Due again: 1." in ended.err
    assert "'job-1.then.0' are a call with sensitive arguments" in ended.err
    assert [one["wake_id"] for one in json.loads(wakes("dead", "--json").out)] == ["job-1.then.0"]


def test_dead_news_are_dropped(wakes: Run, make: Make) -> None:
    """By id, or all; who is not there is named."""
    for number in range(3):
        make(f"job-{number}", dead=True)

    assert wakes("drop", "job-0").code == 0
    assert wakes("drop", "job-0").code == 1
    assert "Dropped: 2." in wakes("drop", "--all").err
    assert json.loads(wakes("dead", "--json").out) == []
    assert wakes("drop").code == 2
