"""One connection brings all results, and what it may have missed is read."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from support.waiting import wait_until
from toolfleet_registry.errors import NotPublished
from toolfleet_tasks import inbox as inbox_module
from toolfleet_tasks.inbox import Inbox

KEY = "celery-task-meta-"


def meta(status: str, result: Any = None) -> str:
    return json.dumps({"status": status, "result": result})


@pytest.fixture
async def inbox(redis: Redis, redis_url: str) -> AsyncIterator[Inbox]:
    inbox = Inbox(redis, redis_url, news={})
    inbox.start()
    yield inbox
    await inbox.aclose()


async def subscriptions(redis: Redis) -> int:
    return len(await redis.pubsub_channels(f"{KEY}*"))


async def test_a_result_is_heard(inbox: Inbox, redis: Redis) -> None:
    """What is published after `listening` is done arrives."""
    expected = inbox.expect("a")
    await expected.listening
    await redis.publish(f"{KEY}a", meta("SUCCESS", "x"))

    assert (await expected.meta)["result"] == "x"


async def test_only_an_end_is_a_result(inbox: Inbox, redis: Redis) -> None:
    """Started and retried are news, not results; and a stranger's message is nothing at all."""
    expected = inbox.expect("a")
    await expected.listening
    for message in (meta("STARTED"), meta("RETRY"), "no json", '["no", "meta"]', '{"status": []}', "[" * 100_000):
        await redis.publish(f"{KEY}a", message)
    await redis.publish(f"{KEY}a", meta("FAILURE"))

    assert (await expected.meta)["status"] == "FAILURE"
    assert expected.begun


async def test_nothing_stays_subscribed(inbox: Inbox, redis: Redis) -> None:
    """After `forget` Redis holds no subscription of ours, and nobody waits."""
    many = [inbox.expect(f"call-{number}") for number in range(300)]
    for expected in many:
        await expected.listening
    assert await subscriptions(redis) == 300

    for number in range(300):
        inbox.forget(f"call-{number}")
    left = [await subscriptions(redis)]
    async with asyncio.timeout(20):
        while left[-1]:
            left.append(await subscriptions(redis))

    assert not inbox._expected
    assert all(expected.meta.cancelled() for expected in many)


async def test_a_lost_connection_loses_no_result(inbox: Inbox, redis: Redis) -> None:
    """A result that was announced while the connection was down is read after the reconnect."""
    expected = inbox.expect("a")
    await expected.listening
    await redis.set(f"{KEY}a", meta("SUCCESS", "meanwhile"), ex=60)
    await redis.client_kill_filter(_type="pubsub")

    assert (await expected.meta)["result"] == "meanwhile"


async def test_calls_after_a_lost_connection_are_heard(inbox: Inbox, redis: Redis) -> None:
    """The inbox listens again, for those it knew and for new ones."""
    old = inbox.expect("old")
    await old.listening
    await redis.client_kill_filter(_type="pubsub")
    new = inbox.expect("new")
    await new.listening
    await wait_until_subscribed(redis, 2)
    for name in ("old", "new"):
        await redis.publish(f"{KEY}{name}", meta("SUCCESS", name))

    assert [(await old.meta)["result"], (await new.meta)["result"]] == ["old", "new"]


async def wait_until_subscribed(redis: Redis, count: int) -> None:
    seen = [0]
    async with asyncio.timeout(20):
        while seen[-1] != count:
            seen.append(await subscriptions(redis))


async def test_a_lost_announcement_is_swept_up(inbox: Inbox, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pub/sub delivers at most once; the stored result is found all the same."""
    monkeypatch.setattr(inbox_module, "_BEAT_SECONDS", 0.05)
    await redis.client_kill_filter(_type="pubsub")  # the next connection uses the short beat
    expected = inbox.expect("a")
    await expected.listening
    await redis.set(f"{KEY}a", meta("SUCCESS", "silent"), ex=60)  # stored, never announced

    assert (await expected.meta)["result"] == "silent"


async def test_a_silent_connection_is_replaced(inbox: Inbox, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that answers nothing is half open: it is given up, and calls are heard on another one."""
    expected = inbox.expect("a")
    await expected.listening
    before = await listener_ids(redis)
    monkeypatch.setattr(inbox_module, "_BEAT_SECONDS", 0.05)
    monkeypatch.setattr(inbox_module, "_SILENCE_SECONDS", 0.3)
    await redis.client_kill_filter(_type="pubsub")  # the next connection uses the short times
    await wait_until_subscribed(redis, 1)
    between = await listener_ids(redis)
    await redis.client_pause(1000)
    seen = [between]
    async with asyncio.timeout(20):
        while seen[-1] <= between:
            seen.append(await listener_ids(redis))
    await wait_until_subscribed(redis, 1)
    await redis.publish(f"{KEY}a", meta("SUCCESS", "heard"))

    assert (await expected.meta)["result"] == "heard"
    assert before.isdisjoint(between)


async def listener_ids(redis: Redis) -> set[str]:
    return {client["id"] for client in await redis.client_list(_type="pubsub")}


async def test_news_is_passed_on(redis: Redis, redis_url: str) -> None:
    """A channel's listener is called once when the connection stands, and for each message."""
    calls: list[int] = []
    inbox = Inbox(redis, redis_url, news={"news": lambda: calls.append(1)})
    inbox.start()
    await wait_until(lambda: len(calls) == 1, "the inbox listens")
    await redis.publish("news", "x")
    await wait_until(lambda: len(calls) == 2, "the news has come")
    await inbox.aclose()


async def test_closing_leaves_nobody_waiting(inbox: Inbox) -> None:
    """Who waits when the inbox closes hears of it."""
    expected = inbox.expect("a")
    await inbox.aclose()

    assert expected.meta.cancelled()
    with pytest.raises(NotPublished):
        await expected.listening


async def test_closing_ends_it_while_its_connection_breaks(redis: Redis, redis_url: str) -> None:
    """A connection that is lost at the very moment of closing does not keep the inbox going."""
    for _ in range(20):
        inbox = Inbox(redis, redis_url, news={})
        inbox.start()
        await inbox.expect("a").listening
        await asyncio.gather(redis.client_kill_filter(_type="pubsub"), asyncio.wait_for(inbox.aclose(), 10))
