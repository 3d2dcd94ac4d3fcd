"""News that wait or are dead: shown, tried anew and dropped, through the fleet."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from support.modules.raw_module import answering, http, raw_module
from support.servers.redis_faults import faulty_redis
from support.waiting import PATIENCE_SECONDS
from support.workers.wakes import complete, delivering, never, put, scores
from toolfleet import FleetUnavailable, NotReplayable, Settings, ToolFleet
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.dead_letters import store

ACCEPTS = answering(http(b"", "202 Taken"))


@pytest.fixture
async def fleet(redis_url: str) -> AsyncIterator[ToolFleet]:
    async with ToolFleet(settings=Settings(redis_url=redis_url)) as fleet:
        yield fleet


async def bury(redis_url: str, redis: Redis, *wake_ids: str, kind: str = "continue") -> None:
    """Nobody accepts them, and their time is over."""
    for wake_id in wake_ids:
        await put(redis, wake_id, kind=kind, since=100)
        async with delivering(redis_url, "http://127.0.0.1:1", wake_give_up_seconds=60) as wakes:

            async def refuse(_: object) -> str:
                return "Never."

            await wakes.deliver_due(publish=refuse, seconds=5)


async def test_what_waits_is_shown(fleet: ToolFleet, redis_url: str, redis: Redis) -> None:
    """Those due next first, calls among them, with what went wrong."""
    await put(redis, "job-1.then.0", kind="call", body=json.dumps({"job_id": "job-1", "step": 0}))
    await put(redis, "job-2", kind="notify")
    async with delivering(redis_url, "http://127.0.0.1:1") as wakes:

        async def fail(_: object) -> str:
            raise RuntimeError("not now")

        tried_at = time.time()
        await wakes.deliver_due(publish=fail, seconds=5)
    await put(redis, "job-0", since=10)
    waiting = await fleet.wakeups.waiting()

    assert waiting[0].wake_id == "job-0"
    assert {one.wake_id: (one.kind, one.tries) for one in waiting} == {
        "job-0": ("continue", 0),
        "job-1.then.0": ("call", 1),
        "job-2": ("notify", 1),
    }
    found = await fleet.wakeups.show("job-2")
    assert found is not None
    assert "ConnectError" in found.error
    assert found.due_at is not None
    assert tried_at < found.due_at < time.time() + 2
    assert found.text_field("conversation_id") == "talk-1"
    assert found.died_at is None
    assert [one.wake_id for one in await fleet.wakeups.waiting(limit=1, offset=0)] == ["job-0"]
    assert await fleet.wakeups.dead() == []


async def test_what_waits_for_a_conversation_is_shown(fleet: ToolFleet, redis: Redis) -> None:
    """What is to be delivered, and what its readers have not confirmed; of other conversations there is nothing, nor what nobody of the fleet has written."""
    await put(redis, "job-1")
    await put(redis, "job-2", conversation_id="talk-2")
    await complete(redis, "job-3", is_older=True)
    await complete(redis, "job-4", conversation_id="talk-2")
    await complete(redis, "job-5", body="no news")
    found = await fleet.wakeups.of_conversation("talk-1")

    assert [(one.wake_id, one.kind, one.due_at is None) for one in found] == [
        ("job-1", "continue", False),
        ("job-3", "continue", True),
    ]
    assert await fleet.wakeups.of_conversation("talk-3") == []


async def test_dead_news_are_tried_anew_under_their_id(fleet: ToolFleet, redis_url: str, redis: Redis) -> None:
    """With all their time again."""
    await bury(redis_url, redis, "job-1", "job-2")
    dead = await fleet.wakeups.dead()
    assert [one.wake_id for one in dead] == ["job-2", "job-1"]
    assert dead[0].died_at is not None
    assert dead[0].tries == 1
    assert [one.wake_id for one in await fleet.wakeups.dead(limit=1, offset=1)] == ["job-1"]

    assert await fleet.wakeups.replay("job-1")
    assert [one.wake_id for one in await fleet.wakeups.dead()] == ["job-2"]
    found = await fleet.wakeups.show("job-1")
    assert found is not None
    assert found.first_at > time.time() - 10
    async with raw_module(ACCEPTS) as core, delivering(redis_url, core.url) as wakes:
        assert await wakes.deliver_due(publish=never, seconds=5) == 1
    assert [one.headers["webhook-id"] for one in core.requests] == ["job-1"]
    assert await fleet.wakeups.show("job-1") is None


async def test_waiting_news_are_tried_now(fleet: ToolFleet, redis_url: str, redis: Redis) -> None:
    """An operator who knows that the core is back need not wait for the next try."""
    await put(redis, "job-1")
    async with delivering(redis_url, "http://127.0.0.1:1") as wakes:
        await wakes.deliver_due(publish=never, seconds=5)
    before = (await fleet.wakeups.waiting())[0].due_at
    is_there = await fleet.wakeups.replay("job-1")
    (waiting,) = await fleet.wakeups.waiting()

    assert is_there
    assert waiting.due_at is not None
    assert before is not None
    assert waiting.due_at < before
    assert not await fleet.wakeups.replay("job-2")


async def test_a_waiting_call_is_tried_now_and_tells_no_secret(fleet: ToolFleet, redis: Redis) -> None:
    """It waits among the calls; sealed is not encrypted, so that its call is shown only if nothing in it is sensitive."""
    for number, extra in enumerate(({}, {"is_secret": True})):
        body = json.dumps({"job_id": "job-1", "tool_name": "owls.echo", "call": "hunter2", **extra})
        await put(redis, f"job-1.then.{number}", kind="call", body=body)
        await redis.zadd(Keys().calls_due, {f"job-1.then.{number}": time.time() * 1000 + 60_000})

    assert await fleet.wakeups.replay("job-1.then.1")
    due = {wake.wake_id: (wake.due_at or 0) - time.time() for wake in await fleet.wakeups.waiting()}
    assert due["job-1.then.1"] < 1
    assert due["job-1.then.0"] > 50
    shown = [str(await fleet.wakeups.show(f"job-1.then.{number}")) for number in range(2)]
    assert ["hunter2" in one for one in shown] == [True, False]


async def test_a_dead_call_is_replayed_among_the_calls(fleet: ToolFleet, redis_url: str, redis: Redis) -> None:
    """As what it was."""
    await bury(redis_url, redis, "job-1.then.0", kind="call")
    found = await fleet.wakeups.show("job-1.then.0")
    assert found is not None
    assert found.error == "Never."
    assert await fleet.wakeups.replay("job-1.then.0")
    assert await redis.zrange(Keys().calls_due, 0, -1) == ["job-1.then.0"]


async def test_dead_news_are_dropped(fleet: ToolFleet, redis_url: str, redis: Redis) -> None:
    """Those that were there are named."""
    await bury(redis_url, redis, "job-1", "job-2", "job-3")
    assert await fleet.wakeups.drop("job-1", "job-9", "job-1") == ("job-1",)
    assert await fleet.wakeups.drop_all() == 2
    assert await fleet.wakeups.dead() == []
    assert await redis.keys() in ([], [Keys().data_id])


async def test_news_that_are_not_the_fleets_are_shown_as_such(redis_url: str, redis: Redis) -> None:
    """An operator sees that they are there, and nothing that a stranger has written."""
    await put(redis, "job-1")
    await bury(redis_url, redis, "job-2")
    settings = Settings(redis_url=redis_url, signing_key="kJ3vR9wQ2mZx7LpT5bNc8YdF1gHs4VuAeXoPq6WiMzE=")
    async with ToolFleet(settings=settings) as fleet:
        (waiting,), (dead,) = await fleet.wakeups.waiting(), await fleet.wakeups.dead()

    assert (waiting.wake_id, waiting.body) == ("job-1", None)
    assert (dead.wake_id, dead.body) == ("job-2", None)


@pytest.mark.parametrize("value", ["no json", "[]", "{}", '{"kind": 1, "tries": "x"}', "[" * 5000, b"\xff"])
async def test_what_cannot_be_read_is_shown_as_such(
    fleet: ToolFleet, redis_url: str, redis: Redis, value: str | bytes
) -> None:
    """It hides no others, cannot be replayed, and can be dropped."""
    await bury(redis_url, redis, "job-0", "job-2")
    await redis.hset(Keys().dead_wakes, "job-1", value)
    between = sum((await scores(redis, Keys().dead_wakes_order)).values()) / 2
    await redis.zadd(Keys().dead_wakes_order, {"job-1": between})
    latest, found, first = await fleet.wakeups.dead()

    assert (found.wake_id, found.body) == ("job-1", None)
    assert [(one.wake_id, one.text_field("wake_id")) for one in (first, latest)] == [
        ("job-0", "job-0"),
        ("job-2", "job-2"),
    ]
    with pytest.raises(NotReplayable, match="dropped only"):
        await fleet.wakeups.replay("job-1")
    assert await fleet.wakeups.drop("job-1") == ("job-1",)


@pytest.mark.parametrize(("limit", "offset"), [(0, 0), (1001, 0), (1, -1)])
async def test_a_list_has_bounds(fleet: ToolFleet, limit: int, offset: int) -> None:
    """Asking for none, or for more than memory should hold, is a programming error."""
    for look in (fleet.wakeups.dead, fleet.wakeups.waiting):
        with pytest.raises(ValueError, match="limit must be from 1 to 1000"):
            await look(limit, offset)


async def test_a_redis_that_is_away_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`FleetUnavailable`, when patience ends."""
    monkeypatch.setattr(store, "_PATIENCE_SECONDS", 0.2)
    with faulty_redis(tmp_path) as server:
        async with ToolFleet(settings=Settings(redis_url=server.url)) as fleet:
            with server.frozen(), pytest.raises(FleetUnavailable, match="no answer within"):
                await asyncio.wait_for(fleet.wakeups.dead(), PATIENCE_SECONDS)


async def test_what_is_damaged_hides_nothing_else(fleet: ToolFleet, redis: Redis) -> None:
    """What waits or is dead is listed all the same, and the damaged ones can be dropped."""
    damaged: dict[Any, Any] = {"tries": "1e999", "first_at": "yesterday", "kind": "call", "body": "[" * 300 + "]" * 300}
    deep = json.dumps({"tool_name": "owls.echo", "arguments": json.loads("[" * 300 + "]" * 300)})
    for name, fields in {"odd-1": damaged, "odd-2": {**damaged, "body": deep}}.items():
        await put(redis, name)
        await redis.hset(Keys().wake(name), mapping=fields)
        await redis.hset(Keys().dead_wakes, f"dead-{name}", json.dumps(fields))
        await redis.zadd(Keys().dead_wakes_order, {f"dead-{name}": 1})
    await put(redis, "whole")

    waiting, dead = await fleet.wakeups.waiting(), await fleet.wakeups.dead()
    assert {wake.wake_id: wake.body is None for wake in waiting} == {"odd-1": True, "odd-2": True, "whole": False}
    assert {(wake.wake_id, wake.tries, wake.first_at, wake.body is None) for wake in dead} == {
        ("dead-odd-1", 0, 0.0, True),
        ("dead-odd-2", 0, 0.0, True),
    }
    names = ("odd-1", "odd-2", "dead-odd-1", "dead-odd-2")
    assert set(await fleet.wakeups.drop(*names)) == set(names)
