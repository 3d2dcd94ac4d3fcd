"""Events of a real registry on their way over the outbox to real receivers."""

import asyncio
import functools
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from redis.asyncio import Redis

from support.followers import SECRET, Follower, change, following, live_through_all, spec
from support.waiting import PATIENCE_SECONDS, wait_until
from support.workers.wakes import delivering, never, put, scores
from toolfleet import Settings, ToolFleet
from toolfleet.stores import ToolRegistry
from toolfleet_registry.catalog.operator import fleets_registry
from toolfleet_registry.catalog.registry_events import EventsAfter, events_after
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.servers import connection_factory
from toolfleet_tasks.control.beat import RegistryFeed
from toolfleet_tasks.redis_connection import PipelinedConnection
from toolfleet_tasks.scripts import MOST_EVENTS_WAITING
from toolfleet_tasks.wakeups import webhook_feed
from toolfleet_tasks.wakeups.outbox import WakeupOutbox
from toolfleet_tasks.wakeups.webhook_feed import WebhookFeed, receiver_of

KEYS = Keys()
KEY = "kJ3vR9wQ2mZx7LpT5bNc8YdF1gHs4VuAeXoPq6WiMzE="
_SENDERS_NEED = {
    "registry_webhooks",
    "registry_webhooks_secret",
    "signing_key",
    "wake_give_up_seconds",
    "dead_letters_kept",
}


class Bed:
    """A registry, what feeds webhooks from it as beat does, and what sends them as a worker does."""

    def __init__(self, redis_url: str, stack: AsyncExitStack) -> None:
        self._redis_url, self._stack = redis_url, stack

    async def follower(self) -> Follower:
        return await self._stack.enter_async_context(following())

    def settings(self, *followers: Follower, **more: Any) -> Settings:
        own: dict[str, Any] = {"registry_webhooks": [one.url for one in followers], "registry_webhooks_secret": SECRET}
        return Settings(redis_url=self._redis_url, **{**own, **more})

    async def feed(self, settings: Settings) -> WebhookFeed:
        """One that knows already where it begins."""
        line = PipelinedConnection(connection_factory(self._redis_url), name="beat")
        line.start()
        self._stack.push_async_callback(line.aclose)
        feed = WebhookFeed(line, settings, functools.partial(fleets_registry, settings))
        await feed.feed()
        return feed

    async def sender(self, settings: Settings) -> WakeupOutbox:
        values = settings.model_dump(include=_SENDERS_NEED)
        return await self._stack.enter_async_context(delivering(self._redis_url, None, core_secret=None, **values))


@pytest.fixture
async def bed(redis_url: str) -> AsyncIterator[Bed]:
    async with AsyncExitStack() as stack:
        yield Bed(redis_url, stack)


async def hurry(redis: "Redis", *followers: Follower) -> None:
    """The time until the next try passes."""
    for follower in followers:
        due = KEYS.webhooks_due(receiver_of(follower.url))
        for wake_id in await scores(redis, due):
            await redis.zadd(due, {wake_id: 1})


@pytest.mark.parametrize("key", [None, KEY], ids=["unsigned", "signed"])
async def test_each_kind_of_event_comes_once(bed: Bed, redis: Redis, key: str | None) -> None:
    """To each receiver, signed, under the event's id; nothing is left but how far each was told."""
    followers = [await bed.follower() for _ in range(2)]
    settings = bed.settings(*followers, signing_key=key)
    feed, wakes = await bed.feed(settings), await bed.sender(settings)
    async with fleets_registry(settings) as registry:
        expected = await asyncio.to_thread(live_through_all, registry)
    assert await feed.feed() == 2 * len(expected)
    assert await feed.feed() == 0
    assert await wakes.send_webhooks(seconds=10) == 2 * len(expected)
    assert await wakes.send_webhooks(seconds=10) == 0

    for follower in followers:
        assert Counter(follower.told) == Counter(expected)
        assert [
            kind_and_tool for _, kind_and_tool in sorted((one.id, (one.kind, one.tool_name)) for one in follower.events)
        ] == expected
        assert follower.refused == 0
    assert [name async for name in redis.scan_iter("*wake*")] == []
    assert len(await redis.hgetall(KEYS.webhook_positions)) == 2


async def test_a_receiver_may_want_some_kinds_only(bed: Bed) -> None:
    """The others are passed over."""
    follower = await bed.follower()
    settings = bed.settings(registry_webhooks={follower.url: ["removed", "withheld"]})
    feed, wakes = await bed.feed(settings), await bed.sender(settings)
    async with fleets_registry(settings) as registry:
        await asyncio.to_thread(live_through_all, registry)
    await feed.feed()
    await wakes.send_webhooks(seconds=10)

    assert sorted(follower.told) == [("removed", "owls.count"), ("withheld", "owls.feed")]


async def test_what_was_before_is_not_told(bed: Bed) -> None:
    """A receiver that is new is told of what happens from now on."""
    follower = await bed.follower()
    settings = bed.settings(follower)
    await change(settings, "owls.old")
    feed, wakes = await bed.feed(settings), await bed.sender(settings)
    await change(settings, "owls.new")
    await feed.feed()
    await wakes.send_webhooks(seconds=10)

    assert follower.told == [("registered", "owls.new")]


@pytest.mark.slow
async def test_more_than_a_thousand_events_at_once_come_once(bed: Bed, redis: Redis) -> None:
    """Two that feed and two that send at the same time double none; what has no room waits in the registry."""
    follower = await bed.follower()
    settings = bed.settings(follower)
    feeds = [await bed.feed(settings) for _ in range(2)]
    senders = [await bed.sender(settings) for _ in range(2)]
    names = [f"owls.t{number}" for number in range(1_250)]
    await change(settings, *names)
    due = KEYS.webhooks_due(receiver_of(follower.url))
    while await feeds[0].feed():
        pass
    assert await redis.zcard(due) == MOST_EVENTS_WAITING

    async with asyncio.timeout(3 * PATIENCE_SECONDS):
        while len(follower.events) < len(names):
            await asyncio.gather(*(feed.feed() for feed in feeds))
            await asyncio.gather(*(sender.send_webhooks(seconds=20) for sender in senders))
    assert Counter(event.tool_name for event in follower.events) == Counter(names)


async def test_whoever_dies_while_it_feeds_loses_and_doubles_nothing(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between reading and storing, and between two batches."""
    follower = await bed.follower()
    settings = bed.settings(follower)
    feed, wakes = await bed.feed(settings), await bed.sender(settings)
    names = [f"owls.t{number}" for number in range(250)]
    await change(settings, *names)
    move, moved = WebhookFeed._move, list[str]()

    async def die(self: WebhookFeed, *args: Any) -> bool:
        if len(moved) == 1:
            raise asyncio.CancelledError
        moved.append(args[0])
        return await move(self, *args)

    monkeypatch.setattr(WebhookFeed, "_move", die)
    with pytest.raises(asyncio.CancelledError):
        await feed.feed()
    monkeypatch.undo()
    again = await bed.feed(settings)
    await again.feed()
    await wakes.send_webhooks(seconds=30)

    assert Counter(event.tool_name for event in follower.events) == Counter(names)


async def test_a_receiver_that_is_away_is_told_when_it_is_back(bed: Bed, redis: Redis) -> None:
    """Each once; meanwhile others are told, and it is tried later and later."""
    away, here = [await bed.follower() for _ in range(2)]
    settings = bed.settings(away, here)
    feed, wakes = await bed.feed(settings), await bed.sender(settings)
    await away.stop()
    await change(settings, "owls.a", "owls.b")
    await feed.feed()
    assert await wakes.send_webhooks(seconds=10) == 2
    await hurry(redis, away)
    assert await wakes.send_webhooks(seconds=10) == 0
    assert sorted(here.told) == [("registered", "owls.a"), ("registered", "owls.b")]

    await away.start()
    await hurry(redis, away)
    assert await wakes.send_webhooks(seconds=10) == 2
    assert sorted(away.told) == sorted(here.told)


async def test_a_receiver_that_hangs_holds_up_nobody_else(bed: Bed, redis: Redis) -> None:
    """Neither other receivers nor wake-ups wait for it, however much waits for it itself."""
    slow, quick = [await bed.follower() for _ in range(2)]
    slow.hangs = True
    settings = bed.settings(slow, quick)
    feed, wakes = await bed.feed(settings), await bed.sender(settings)
    await change(settings, *(f"owls.t{number}" for number in range(30)))
    await feed.feed()
    sending = asyncio.create_task(wakes.send_webhooks(seconds=14))
    await wait_until(lambda: len(quick.events) == 30, "the other receiver was told")
    await change(settings, "owls.late")
    await feed.feed()
    await put(redis, "job-1", kind="call", body="{}")
    published = list[str]()

    async def publish(wake: Any) -> None:
        published.append(wake.wake_id)

    assert await wakes.deliver_due(publish=publish, seconds=5) == 1
    again = asyncio.create_task(wakes.send_webhooks(seconds=14))  # as each tick does
    await wait_until(lambda: ("registered", "owls.late") in quick.told, "a later event, too")
    assert not sending.done()
    assert (slow.events, published) == ([], ["job-1"])
    for task in (sending, again):
        task.cancel()


async def test_an_event_that_nobody_takes_is_dead_and_may_be_sent_anew(bed: Bed, redis: Redis, redis_url: str) -> None:
    """It is listed while it waits and when it is dead, and replayed under the same id."""
    follower = await bed.follower()
    follower.status = 500
    settings = bed.settings(follower, wake_give_up_seconds=60)
    feed, wakes = await bed.feed(settings), await bed.sender(settings)
    await change(settings, "owls.a")
    await feed.feed()
    await wakes.send_webhooks(seconds=10)
    async with ToolFleet(settings=Settings(redis_url=redis_url)) as fleet:
        (waiting,) = await fleet.wakeups.waiting()
        assert (waiting.kind, waiting.tries, waiting.died_at) == ("registry", 1, None)
        assert waiting.due_at is not None
        assert waiting.body is not None
        assert waiting.body["payload"]["data"]["tool_name"] == "owls.a"
        await redis.hincrby(KEYS.wake(waiting.wake_id), "first_at", -60_000)
        await hurry(redis, follower)
        await wakes.send_webhooks(seconds=10)
        (dead,) = await fleet.wakeups.dead()
        assert (dead.wake_id, dead.body, await fleet.wakeups.waiting()) == (waiting.wake_id, waiting.body, [])
        assert dead.error.startswith("HTTP 500")
        follower.status = 200
        assert await fleet.wakeups.replay(dead.wake_id)
        assert await wakes.send_webhooks(seconds=10) == 1

    assert [event.id for event in follower.events] == [dead.wake_id.partition("@")[0]]


async def test_dead_events_and_dead_wake_ups_have_limits_of_their_own(bed: Bed, redis: Redis) -> None:
    """However many of the ones there are, they push out none of the others."""
    follower = await bed.follower()
    follower.status = 500
    settings = bed.settings(follower, wake_give_up_seconds=60, dead_letters_kept=2)
    feed, wakes = await bed.feed(settings), await bed.sender(settings)
    await put(redis, "job-1", since=100)
    assert await wakes.deliver_due(publish=never, seconds=5) == 0
    for number in range(3):
        await change(settings, f"owls.{number}")
    await feed.feed()
    ids = sorted(await scores(redis, KEYS.webhooks_due(receiver_of(follower.url))))
    for wake_id in ids:
        await redis.hincrby(KEYS.wake(wake_id), "first_at", -60_000)
    await wakes.send_webhooks(seconds=10)

    assert await redis.hkeys(KEYS.dead_wakes) == await redis.zrange(KEYS.dead_wakes_order, 0, -1) == ["job-1"]
    kept = await redis.hgetall(KEYS.dead_webhooks())
    assert len(kept) == await redis.zcard(KEYS.dead_webhooks("-order")) == 2
    assert kept.keys() < {*ids}
    assert int(await redis.get(KEYS.dead_webhooks("-bytes")) or 0) == sum(map(len, kept.values()))


async def test_a_receiver_that_was_taken_away_is_sent_nothing(bed: Bed, redis: Redis) -> None:
    """What waits for it says why; the setting may come back, and then it is told what it has missed."""
    follower, other = [await bed.follower() for _ in range(2)]
    both, one = bed.settings(follower, other), bed.settings(other)
    feed, wakes = await bed.feed(both), await bed.sender(one)
    await change(both, "owls.a")
    await feed.feed()
    assert await wakes.send_webhooks(seconds=10) == 1
    ids = list(await scores(redis, KEYS.webhooks_due(receiver_of(follower.url))))
    error = await redis.hget(KEYS.wake(ids[0]), "error")
    assert error == "No URL of TOOLFLEET_REGISTRY_WEBHOOKS is its receiver, nor a webhook of TOOLFLEET_APPROVALS."

    await hurry(redis, follower)
    again = await bed.sender(both)
    assert await again.send_webhooks(seconds=10) == 1
    assert follower.told == [("registered", "owls.a")]


async def test_an_event_that_somebody_has_planted_is_not_sent(bed: Bed, redis: Redis) -> None:
    """Where the fleet signs, what lies in Redis must be the fleet's, and meant for this receiver."""
    one, other = [await bed.follower() for _ in range(2)]
    settings = bed.settings(one, other, signing_key=KEY, registry_webhooks={one.url: [], other.url: ["removed"]})
    feed, wakes = await bed.feed(settings), await bed.sender(settings)
    await change(settings, "owls.a")
    await feed.feed()
    (wake_id,) = await scores(redis, KEYS.webhooks_due(receiver_of(one.url)))
    record: Any = await redis.hgetall(KEYS.wake(wake_id))
    planted = f"{wake_id.partition('@')[0]}@{receiver_of(other.url)}"
    await redis.hset(KEYS.wake(planted), mapping=record)
    await redis.zadd(KEYS.webhooks_due(receiver_of(other.url)), {planted: 1})
    forged = {"wake_id": "f", "kind": "registry", "payload": {"type": "registry.removed"}}
    await redis.hset(KEYS.wake(f"f@{receiver_of(other.url)}"), mapping={**record, "body": json.dumps(forged)})
    await redis.zadd(KEYS.webhooks_due(receiver_of(other.url)), {f"f@{receiver_of(other.url)}": 1})

    assert await wakes.send_webhooks(seconds=10) == 1
    assert (len(one.events), other.events, other.refused) == (1, [], 0)


async def test_a_history_that_is_gone_is_said(
    bed: Bed, redis: Redis, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """A position of another registry, or none at all that can be read: it goes on with what there is."""
    follower = await bed.follower()
    settings = bed.settings(follower)
    feed, wakes = await bed.feed(settings), await bed.sender(settings)
    await change(settings, "owls.a")
    for wrong in ("9999999999999999-1", "an owl"):
        await redis.hset(KEYS.webhook_positions, receiver_of(follower.url), wrong)
        await feed.feed()
        assert "registry_events_lost" in caplog.text + capsys.readouterr().out
        caplog.clear()
    await change(settings, "owls.b")
    await feed.feed()
    await wakes.send_webhooks(seconds=10)

    assert follower.told == [("registered", "owls.b")]


async def test_what_feeds_outlives_a_registry_that_is_away(
    bed: Bed, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on when that is back; other faults do not end it, either."""
    monkeypatch.setattr(webhook_feed, "_EVERY_SECONDS", 0.01)
    follower = await bed.follower()
    settings = bed.settings(follower)
    feed, wakes = await bed.feed(settings), await bed.sender(settings)
    stolen: Any = await redis.hgetall(KEYS.webhook_positions)
    await redis.delete(KEYS.webhook_positions)
    await redis.set(KEYS.webhook_positions, "an owl")
    keeping = asyncio.create_task(feed.keep())
    await change(settings, "owls.a")
    await wait_until(lambda: feed._is_away, "it has met the fault")
    await redis.delete(KEYS.webhook_positions)
    await redis.hset(KEYS.webhook_positions, mapping=stolen)
    due = KEYS.webhooks_due(receiver_of(follower.url))
    found = 0
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not found:
            found = await redis.exists(due)
    keeping.cancel()
    await wakes.send_webhooks(seconds=10)

    assert follower.told == [("registered", "owls.a")]


async def test_bodies_are_bounded(bed: Bed) -> None:
    """Of a name or a version of any length its beginning is told."""
    follower = await bed.follower()
    settings = bed.settings(follower)
    feed, wakes = await bed.feed(settings), await bed.sender(settings)
    async with fleets_registry(settings) as registry:
        await asyncio.to_thread(registry.register, spec("o" * 100_000))
    await feed.feed()
    await wakes.send_webhooks(seconds=10)

    assert [event.tool_name for event in follower.events] == ["o" * 999 + "…"]


async def test_no_wake_up_is_tried_as_a_webhook(bed: Bed, redis: Redis) -> None:
    """Each has its own queue."""
    follower = await bed.follower()
    settings = bed.settings(follower)
    feed, wakes = await bed.feed(settings), await bed.sender(settings)
    await put(redis, "job-1")
    await change(settings, "owls.a")
    await feed.feed()
    await wakes.send_webhooks(seconds=10)
    assert await wakes.deliver_due(publish=never, seconds=5) == 0

    assert follower.told == [("registered", "owls.a")]
    assert await redis.hget(KEYS.wake("job-1"), "tries") == "1"


async def test_a_feed_keeps_its_connections(bed: Bed, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """No question makes one of its own, however long nothing happens."""
    asked = list[str | None]()

    def counted(registry: ToolRegistry, after: str | None) -> EventsAfter:
        asked.append(after)
        return events_after(registry, after)

    monkeypatch.setattr(webhook_feed, "_EVERY_SECONDS", 0.01)
    monkeypatch.setattr(webhook_feed, "events_after", counted)
    feed = RegistryFeed(bed.settings(await bed.follower()))
    feed.start()
    try:
        await wait_until(lambda: len(asked) > 10, "it feeds")
        before = (await redis.info("stats"))["total_connections_received"]
        await wait_until(lambda: len(asked) > 60, "it has asked often")
        after = (await redis.info("stats"))["total_connections_received"]
    finally:
        await asyncio.to_thread(feed.end)

    assert after - before < 10
