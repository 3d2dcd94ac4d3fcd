"""What stores leave behind keeps its shape: processes of earlier versions read it, and have left the same."""

import json
import time
from pathlib import Path

from redis.asyncio import Redis
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from toolfleet.sdk import Record, RedisReplies
from toolfleet.webhooks import RedisSeen, SQLSeen
from toolfleet_tasks.webhooks.dedup import WakeMemory

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
