"""All channels of a tick are subscribed to in one command, and nobody who came back is left out."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from support.waiting import PATIENCE_SECONDS, wait_until
from toolfleet_registry.redis.servers import connection_factory
from toolfleet_tasks.redis_connection import PipelinedConnection, Push
from toolfleet_tasks.results.listener import ChannelSubscriptions

A, B = b"celery-task-meta-a", b"celery-task-meta-b"


class Ear:
    """A connection that subscribes to what is `wanted`, and has `heard` messages."""

    def __init__(self, url: str) -> None:
        self.connection = PipelinedConnection(connection_factory(url), name="test")
        self.wanted = set[bytes]()
        self.heard: list[bytes] = []
        self.confirmed: list[tuple[bytes, bytes]] = []
        self.subscriptions = ChannelSubscriptions(self.connection, self.wanted.__contains__)
        self.connection.on_push = self._take

    def join(self, channel: bytes) -> None:
        self.wanted.add(channel)
        self.subscriptions.subscribe(channel)

    def leave(self, channel: bytes) -> None:
        self.wanted.discard(channel)
        self.subscriptions.unsubscribe(channel)

    def _take(self, frame: Push) -> None:
        if frame[0] == b"message":
            self.heard.append(frame[1])
        else:
            self.confirmed.append((frame[0], frame[1]))


@pytest.fixture
async def ear(redis_url: str) -> AsyncIterator[Ear]:
    ear = Ear(redis_url)
    ear.connection.start()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await ear.connection.connected()
    yield ear
    await ear.connection.aclose()


async def commands_seen(redis: Redis, name: str) -> int:
    stats = await redis.info("commandstats")
    return int(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"])


async def test_the_channels_of_a_tick_are_one_command(ear: Ear, redis: Redis) -> None:
    """A hundred calls that are made in one tick cost Redis one SUBSCRIBE, and each is confirmed."""
    before = await commands_seen(redis, "subscribe")
    for number in range(100):
        ear.join(A + b"%d" % number)
    await ear.connection.send("PING")

    assert await commands_seen(redis, "subscribe") == before + 1
    assert [channel for _, channel in ear.confirmed] == [A + b"%d" % number for number in range(100)]


async def test_a_command_behind_is_answered_after_the_subscription(ear: Ear) -> None:
    """What is published over the connection in the same tick is heard, also by a channel that came after the first."""
    ear.join(A)
    ear.join(B)
    await ear.connection.send("PUBLISH", B, "x")
    await wait_until(lambda: ear.heard == [B], "the message has come")


async def test_who_comes_back_before_the_write_is_heard(ear: Ear) -> None:
    """A channel that is left and wanted again, all before its command has left, stays subscribed to."""
    ear.join(A)
    ear.leave(A)
    ear.subscriptions._leave()  # the loop may run it before the write
    ear.join(A)
    await ear.connection.send("PUBLISH", A, "x")
    await wait_until(lambda: ear.heard == [A], "the message has come")


async def test_a_lost_connection_leaves_no_command_open(ear: Ear, redis: Redis) -> None:
    """Who comes after a loss is subscribed to over the next connection, though a command was open when that was lost."""
    lost = asyncio.Event()
    ear.connection.on_connect.append(lambda: ear.subscriptions.subscribe_again(sorted(ear.wanted)))
    ear.connection.on_lost.append(lost.set)
    ear.join(A)
    protocol = ear.connection._protocol
    assert protocol is not None
    protocol.close("the test cuts it")
    async with asyncio.timeout(PATIENCE_SECONDS):
        await lost.wait()
        await ear.connection.connected()
    ear.join(B)
    await ear.connection.send("PING")
    for channel in (A, B):
        await redis.publish(channel, "x")
    await wait_until(lambda: set(ear.heard) == {A, B}, "both have come")
