"""How a worker listens to the bells of few queues, and of thousands."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import pytest
from redis import Redis

from support.waiting import PATIENCE_SECONDS, wait_until
from support.workers.held_messages import KEYS, cut, open_connection, open_notify_keys
from toolfleet_tasks.redis_connection import PipelinedConnection, RedisConnectionLost
from toolfleet_tasks.transport.fetcher import BATCH_SIZE, MOST_CONNECTIONS, NotifyKeys

FEW = [f"tools.m{number}" for number in range(20)]
MANY = [f"tools.m{number}" for number in range(3000)]


@dataclass
class Listener:
    notify_keys: NotifyKeys
    lines: list[PipelinedConnection]

    async def notified(self, queues: Sequence[str], *, seconds: float = 10, capacity: int = 100) -> list[str]:
        return await asyncio.wait_for(
            self.notify_keys.notified(queues, seconds=seconds, capacity=lambda: capacity), PATIENCE_SECONDS
        )


@pytest.fixture
async def listener(redis_url: str) -> AsyncIterator[Listener]:
    async with open_connection(redis_url) as line, open_notify_keys(redis_url, line) as (notify_keys, lines):
        yield Listener(notify_keys, lines)


def ring(redis: Redis, *queues: str) -> None:
    for queue in queues:
        redis.lpush(KEYS.notify_key(queue), "1")


def sleepers(redis: Redis) -> int:
    """How often somebody has fallen asleep on bells."""
    return int(redis.info("commandstats").get("cmdstat_brpop", {}).get("calls", 0))


@pytest.mark.parametrize("queues", [FEW, MANY], ids=["few", "many"])
async def test_a_ring_is_heard(listener: Listener, redis: Redis, queues: Sequence[str]) -> None:
    """Of any queue, one that rang before, and one that rings while somebody waits; without one, none by the time."""
    ring(redis, queues[-1])
    assert await listener.notified(queues) == [queues[-1]]
    waiting = asyncio.create_task(listener.notified(queues))
    await wait_until(lambda: redis.info("clients")["blocked_clients"], "it listens")
    ring(redis, queues[0])
    assert await waiting == [queues[0]]

    assert await listener.notified(FEW[:1], seconds=0.05) == []


async def test_after_a_ring_only_its_share_is_asked_for_again(listener: Listener, redis: Redis) -> None:
    """Few queues have one line, thousands a bounded number of them; a ring costs what its share does."""
    await listener.notified(FEW, seconds=0.01)
    assert len(listener.lines) == 1
    before = sleepers(redis)
    ring(redis, MANY[5])
    assert await listener.notified(MANY) == [MANY[5]]
    assert len(listener.lines) == MOST_CONNECTIONS
    await wait_until(lambda: sleepers(redis) - before == MOST_CONNECTIONS, "all have asked")
    for number in range(5, 3000, 500):
        ring(redis, MANY[number])
        assert await listener.notified(MANY) == [MANY[number]]

    await wait_until(
        lambda: sleepers(redis) - before >= MOST_CONNECTIONS + 6, "one share has asked again after each ring"
    )
    assert sleepers(redis) - before == MOST_CONNECTIONS + 6
    assert BATCH_SIZE <= 3000 / MOST_CONNECTIONS < 2 * BATCH_SIZE


async def test_as_many_are_answered_as_there_is_room_for(listener: Listener, redis: Redis) -> None:
    """The others ring on as soon as the listener rests: another worker may have room."""
    rang = MANY[::1000]
    ring(redis, *rang)
    heard = await listener.notified(MANY, capacity=1)
    await wait_until(lambda: len(listener.notify_keys._heard) == 2, "it has heard the others")
    listener.notify_keys.rest()
    await wait_until(lambda: redis.exists(*map(KEYS.notify_key, rang)) == 2, "they ring on")

    assert len(heard) == 1


async def test_what_rings_while_it_rests_rings_on(listener: Listener, redis: Redis) -> None:
    """Its lines have listened since before; when it listens again it hears that."""
    ring(redis, MANY[0])
    await listener.notified(MANY)
    listener.notify_keys.rest()
    ring(redis, MANY[-1])
    await wait_until(lambda: redis.exists(KEYS.notify_key(MANY[-1])), "it rings on")

    assert await listener.notified(MANY) == [MANY[-1]]


@pytest.mark.parametrize("queues", [FEW, MANY], ids=["few", "many"])
async def test_a_lost_line_is_told_and_mended(listener: Listener, redis: Redis, queues: Sequence[str]) -> None:
    """By `RedisConnectionLost`, once; the next question finds it standing."""
    waiting = asyncio.create_task(listener.notified(queues))
    number = MOST_CONNECTIONS if queues is MANY else 1
    await wait_until(lambda: redis.info("clients")["blocked_clients"] == number, "all listen")
    cut(listener.lines[-1])
    with pytest.raises(RedisConnectionLost):
        await waiting
    await wait_until(lambda: redis.info("clients")["blocked_clients"] == number - 1, "Redis knows of it")
    ring(redis, queues[-1])

    assert await listener.notified(queues) == [queues[-1]]


async def test_other_queues_are_listened_to_from_the_next_question_on(listener: Listener, redis: Redis) -> None:
    """What was listened to before is heard as well, until its time is over: whose it is the listener says."""
    ring(redis, FEW[0])
    assert await listener.notified(MANY, seconds=0.3) == [FEW[0]]
    ring(redis, "tools.new")
    heard = list[str]()
    while "tools.new" not in heard:
        heard += await listener.notified(["tools.new"], seconds=0.3)

    assert heard == ["tools.new"]
