"""What is special about each store: what it forgets, whether it knows that, its shape, and what it does without its file or server."""

import asyncio
import functools
import json
import math
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from redis.asyncio import Redis
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from support.clocks import HandClock
from toolfleet.sdk import MemoryReplies, Record, RedisReplies, Replies, SQLiteReplies
from toolfleet.webhooks import RedisSeen, SQLSeen
from toolfleet_registry.errors import FleetUnavailable, SettingsError
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.system import machine_clock
from toolfleet_tasks.webhooks.dedup import WakeMemory

MakeReplies = Callable[[], Replies]

RUNNING = Record("running", "t1", "f", time.time() + 60)
DONE = Record("done", "t2", "f", reply='{"success":true,"result":"é \\u0000"}')


async def test_a_file_may_be_made_by_many_at_once(tmp_path: Path) -> None:
    """SQLite itself lets nobody wait who switches it to a write-ahead log."""
    for number in range(10):
        stores = [SQLiteReplies(tmp_path / f"{number}.db") for _ in range(10)]
        assert sum(await asyncio.gather(*(store.swap("c", None, RUNNING) for store in stores))) == 1
        await asyncio.gather(*(store.aclose() for store in stores))


async def test_the_memory_is_bounded_and_keeps_what_runs() -> None:
    """In calls and in bytes; the oldest are forgotten first."""
    replies = MemoryReplies(most=3, most_bytes=10_000)
    assert await replies.swap("running", None, RUNNING)
    for n in range(10):
        assert await replies.swap(f"c{n}", None, replace(DONE, reply="x" * 10))
    kept = [n for n in range(10) if await replies.get(f"c{n}")]
    assert kept == [7, 8, 9]
    assert await replies.swap("large", None, replace(DONE, reply="x" * 9_990))
    assert await replies.get("c8") is None
    assert await replies.get("large")
    assert await replies.get("running") == RUNNING
    assert await replies.complete_since() == math.inf


async def test_a_memory_forgets_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """And may begin the call anew."""
    clock = HandClock()
    monkeypatch.setattr(machine_clock, "monotonic", clock)
    replies = MemoryReplies(seconds=60)
    assert await replies.swap("c", None, DONE)
    clock.now = 59
    assert await replies.get("c") == DONE
    clock.now = 61
    assert await replies.get("c") is None
    assert await replies.swap("c", None, RUNNING)


async def test_a_file_forgets_the_oldest_of_too_many_and_knows_that_it_did(tmp_path: Path) -> None:
    """What runs stays; from the loss on, nobody is told that a call was never begun."""
    replies = SQLiteReplies(tmp_path / "replies.db", most=10)
    before = await replies.complete_since()
    assert await replies.swap("running", None, RUNNING)
    for n in range(250):
        assert await replies.swap(f"c{n}", None, DONE)
    assert await replies.get("c0") is None
    assert await replies.get("c249") == DONE
    assert await replies.get("running") == RUNNING
    assert before < await replies.complete_since() < time.time() + 1
    await replies.aclose()
    with sqlite3.connect(tmp_path / "replies.db") as rows:
        assert rows.execute("SELECT count(*) FROM replies").fetchone()[0] < 150
    rows.close()


async def test_what_may_be_repeated_is_forgotten_before_what_may_not() -> None:
    """However many reads there are, a repeat of what happened once is known for one."""
    replies = MemoryReplies(most=3, most_bytes=200)
    assert await replies.swap("paid", None, DONE)
    for n in range(50):
        assert await replies.swap(f"read{n}", None, replace(DONE, reply="x" * 80, is_repeatable=True))
    assert await replies.get("paid") == DONE
    assert await replies.get("read48") is None
    assert await replies.get("read49")


async def test_the_memory_counts_what_texts_take() -> None:
    """A character is up to four bytes."""
    replies = MemoryReplies(most_bytes=10_000)
    assert await replies.swap("a", None, replace(DONE, reply="🦉" * 2_000))
    assert await replies.swap("b", None, replace(DONE, reply="🦉" * 2_000))
    assert await replies.get("a") is None
    assert await replies.get("b")


@pytest.mark.parametrize("place", ["a file", "Redis"])
async def test_what_was_to_be_kept_for_less_time_may_be_gone(
    place: str, tmp_path: Path, redis_url: str, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Raising `seconds` brings nothing back: a store that forgot a call sooner must not say that it never began."""
    now = time.time()
    long_ago, then = now - 20 * 3600, now - 2 * 3600
    await redis.delete(Keys().module_replies)
    makes: dict[str, Callable[..., Replies]] = {
        "a file": functools.partial(SQLiteReplies, tmp_path / "replies.db"),
        "Redis": functools.partial(RedisReplies, redis_url),
    }
    short, long = (makes[place](seconds=seconds) for seconds in (3600, 86_400))
    monkeypatch.setattr(machine_clock, "wall", lambda: long_ago)
    assert await short.complete_since() == long_ago
    monkeypatch.setattr(machine_clock, "wall", lambda: then)
    assert await short.swap("c", None, DONE)
    monkeypatch.setattr(machine_clock, "wall", lambda: now)
    await redis.delete(Keys().module_reply("c"))  # as Redis would have, in two hours
    assert await long.get("c") is None
    assert await long.complete_since() == then
    assert await long.swap("d", None, DONE)
    assert await long.complete_since() == then
    for replies in (short, long):
        await replies.aclose()


async def test_tools_that_keep_all_threads_do_not_keep_the_file_waiting(tmp_path: Path) -> None:
    """It has a thread of its own: asyncio's are few, and everybody's."""
    loop, go = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))
    tool = asyncio.create_task(asyncio.to_thread(go.wait))
    replies = SQLiteReplies(tmp_path / "replies.db")
    try:
        assert await replies.swap("c", None, DONE)
        await replies.aclose()
        assert not tool.done()
    finally:
        go.set()
        await tool


async def test_a_file_that_is_gone_is_a_new_memory(tmp_path: Path) -> None:
    """It says so by its age."""
    replies = SQLiteReplies(tmp_path / "replies.db")
    first = await replies.complete_since()
    await replies.aclose()
    assert await replies.complete_since() == first
    await replies.aclose()
    for path in tmp_path.glob("replies.db*"):
        path.unlink()
    assert await replies.complete_since() > first
    await replies.aclose()


async def test_a_file_that_cannot_be_one_is_an_error_at_once(tmp_path: Path) -> None:
    """And works again when it can be."""
    (tmp_path / "file").write_text("no folder")
    replies = SQLiteReplies(tmp_path / "file" / "replies.db")
    with pytest.raises(OSError, match="file"):
        await replies.get("c")
    (tmp_path / "file").unlink()
    assert await replies.get("c") is None
    await replies.aclose()


async def test_a_redis_that_is_another_one_may_have_forgotten(redis_url: str, redis: Redis) -> None:
    """After a restart the memory begins anew; within one run it goes on."""
    replies = RedisReplies(redis_url)
    first = await replies.complete_since()
    assert await replies.complete_since() == first
    await redis.hset(Keys().module_replies, "run_id", "another run")
    assert await replies.complete_since() > first
    await replies.aclose()


async def test_a_redis_that_evicts_may_have_forgotten(redis_url: str, redis: Redis) -> None:
    """Nobody can say what a cache has thrown away."""
    replies = RedisReplies(redis_url)
    await redis.config_set("maxmemory", 2**30)
    try:
        assert await replies.complete_since() < math.inf  # it answers with an error when it is full
        await redis.config_set("maxmemory-policy", "volatile-lru")
        assert await replies.complete_since() == math.inf
    finally:
        await redis.config_set("maxmemory-policy", "noeviction")
        await redis.config_set("maxmemory", 0)
        await replies.aclose()


async def test_records_in_redis_expire(redis_url: str, redis: Redis) -> None:
    """Those that run, too: a module that has ended for good leaves nothing."""
    replies = RedisReplies(redis_url, seconds=100)
    await replies.swap("a", None, RUNNING)
    await replies.swap("b", None, DONE)
    for name in "ab":
        assert 90 < await redis.ttl(Keys().module_reply(name)) <= 100
    await replies.aclose()


@pytest.mark.parametrize(
    "make",
    [
        lambda: MemoryReplies(most=0),
        lambda: MemoryReplies(seconds=-1),
        lambda: SQLiteReplies("x", seconds=0),
        lambda: RedisReplies("redis://x", seconds=0),
        lambda: RedisReplies("nonsense"),
    ],
    ids=range(5),
)
def test_what_cannot_be_meant_is_refused_at_once(make: MakeReplies) -> None:
    """When the store is made, not at the first call."""
    with pytest.raises((ValueError, SettingsError), match=r"positive|URL"):
        make()


async def test_a_memory_of_wake_ups_keeps_no_replies(redis_url: str, tmp_path: Path) -> None:
    """A module that is given one hears of it at its first call."""
    for seen in (RedisSeen(redis_url), SQLSeen(f"sqlite:///{tmp_path / 'core.db'}")):
        with pytest.raises(ValueError, match="has no replies"):
            await seen.swap("c", None, DONE)
        assert await seen.complete_since() == math.inf
        assert await seen.get("c") is None
        await seen.aclose()


@pytest.mark.parametrize("make", [RedisReplies, RedisSeen])
async def test_a_redis_that_is_away_is_named(make: Callable[[str], RedisReplies | RedisSeen]) -> None:
    """And its password is not."""
    store = make("redis://:s3cret@127.0.0.1:1")
    for question in (store.get("c"), store.swap("c", None, Record("running", "t"))):
        with pytest.raises(FleetUnavailable, match=r"127\.0\.0\.1:1 does not answer") as caught:
            await question
        assert "s3cret" not in str(caught.value)
    await store.aclose()


REPLY = 't1#1\n{"state": "done", "token": "t1#1", "fingerprint": "f", "until": 0, "reply": "{}", "is_repeatable": true}'


async def test_a_reply_in_redis_is_its_token_and_its_record(redis_url: str, redis: Redis) -> None:
    """Under the call's id, with a note of how long such replies are kept."""
    await redis.set("toolfleet:module-reply:old", REPLY, ex=60)
    replies = RedisReplies(redis_url, seconds=60)
    assert await replies.get("old") == Record("done", "t1#1", "f", reply="{}")

    assert await replies.swap("new", None, Record("done", "t1#1", "f", reply="{}", is_repeatable=True))
    written = str(await redis.get("toolfleet:module-reply:new"))
    assert written.partition("\n")[0] == "t1#1"
    assert json.loads(written.partition("\n")[2]) == json.loads(REPLY.partition("\n")[2])
    assert [*await redis.hkeys("toolfleet:module-replies")] == ["kept_for:60"]
    await replies.aclose()


async def test_a_wake_up_in_redis_is_a_hash(redis_url: str, redis: Redis) -> None:
    """`token`, `until` in ms by the server's clock, and `done` once it was acted on."""
    until_ms = round((time.time() + 20) * 1000)
    for name, fields in (("done", {"token": "t", "until": 1, "done": 1}), ("held", {"token": "t", "until": until_ms})):
        await redis.hset(f"toolfleet:seen:core:{name}", mapping=fields)  # type: ignore[arg-type] # redis-py takes numbers
        await redis.expire(f"toolfleet:seen:core:{name}", 60)
    seen = RedisSeen(redis_url)
    memory = WakeMemory(seen)
    assert (await memory.claim("done", "mine", seconds=30)).state == "done"
    held = await memory.claim("held", "mine", seconds=30)
    assert (held.state, 10 < held.rest_seconds <= 20) == ("busy", True)
    assert (await memory.claim("held", "t", seconds=30)).state == "ours"

    assert (await memory.claim("new", "mine", seconds=30)).state == "ours"
    found = await redis.hgetall("toolfleet:seen:core:new")
    assert found.keys() == {"token", "until"}
    assert found["token"] == "mine"
    assert 10_000 < int(found["until"]) - time.time() * 1000 < 40_000
    assert await memory.done("new", "mine")
    assert (await redis.hgetall("toolfleet:seen:core:new")).keys() == {"token", "until", "done"}
    await seen.aclose()


async def test_a_wake_up_in_a_database_is_a_row(tmp_path: Path) -> None:
    """With the same columns, in a table of the same name."""
    url = f"sqlite:///{tmp_path / 'core.db'}"
    seen = SQLSeen(url)
    memory = WakeMemory(seen)
    assert (await memory.claim("new", "mine", seconds=30)).state == "ours"
    assert await memory.done("new", "mine")
    now_ms = round(time.time() * 1000)
    with create_engine(url, poolclass=NullPool).begin() as connection:
        columns = connection.execute(text("SELECT * FROM toolfleet_seen_wakes")).mappings().one()
        assert [*columns] == ["receiver", "wake_id", "token", "until_ms", "done_at_ms", "forget_at_ms"]
        assert (columns["receiver"], columns["wake_id"]) == ("core", "new")
        assert abs(columns["done_at_ms"] - now_ms) < 60_000
        rows = [("done", now_ms, now_ms), ("held", now_ms + 20_000, None)]
        for wake_id, until_ms, done_at_ms in rows:
            values = {"id": wake_id, "until": until_ms, "done": done_at_ms, "forget": now_ms + 60_000}
            row = "INSERT INTO toolfleet_seen_wakes VALUES ('core', :id, 't', :until, :done, :forget)"
            connection.execute(text(row), values)
    assert (await memory.claim("done", "mine", seconds=30)).state == "done"
    held = await memory.claim("held", "mine", seconds=30)
    assert (held.state, 10 < held.rest_seconds <= 20) == ("busy", True)
    await seen.aclose()
