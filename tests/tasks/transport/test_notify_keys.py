"""How a worker listens to the bells of few queues, and of thousands."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

import pytest
from redis import Redis

from support.waiting import wait_until
from support.workers.held_messages import KEYS, cut, open_bells, open_line
from toolfleet_tasks.redis.connection import Line, LineLost
from toolfleet_tasks.transport.notify_keys import MOST_LINES, SHARE, Bells

FEW = [f"tools.m{number}" for number in range(20)]
MANY = [f"tools.m{number}" for number in range(3000)]


@dataclass
class Listener:
    bells: Bells
    lines: list[Line]

    async def rung(self, queues: Sequence[str], *, seconds: float = 10, room: int = 100) -> list[str]:
        return await asyncio.wait_for(self.bells.rung(queues, seconds=seconds, room=lambda: room), 20)


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url, decode_responses=True) as redis:
        yield redis


@pytest.fixture
async def listener(redis_url: str) -> AsyncIterator[Listener]:
    async with open_line(redis_url) as line, open_bells(redis_url, line) as (bells, lines):
        yield Listener(bells, lines)


def ring(redis: Redis, *queues: str) -> None:
    for queue in queues:
        redis.lpush(KEYS.bell(queue), "1")


def sleepers(redis: Redis) -> int:
    """How often somebody has fallen asleep on bells."""
    return int(redis.info("commandstats").get("cmdstat_brpop", {}).get("calls", 0))


@pytest.mark.parametrize("queues", [FEW, MANY], ids=["few", "many"])
async def test_a_ring_is_heard(listener: Listener, redis: Redis, queues: Sequence[str]) -> None:
    """Of any queue, one that rang before, and one that rings while somebody waits; without one, none by the time."""
    ring(redis, queues[-1])
    assert await listener.rung(queues) == [queues[-1]]
    waiting = asyncio.create_task(listener.rung(queues))
    await wait_until(lambda: redis.info("clients")["blocked_clients"], "it listens")
    ring(redis, queues[0])
    assert await waiting == [queues[0]]

    assert await listener.rung(FEW[:1], seconds=0.05) == []


async def test_after_a_ring_only_its_share_is_asked_for_again(listener: Listener, redis: Redis) -> None:
    """Few queues have one line, thousands a bounded number of them; a ring costs what its share does."""
    await listener.rung(FEW, seconds=0.01)
    assert len(listener.lines) == 1
    before = sleepers(redis)
    ring(redis, MANY[5])
    assert await listener.rung(MANY) == [MANY[5]]
    assert len(listener.lines) == MOST_LINES
    await wait_until(lambda: sleepers(redis) - before == MOST_LINES, "all have asked")
    for number in range(5, 3000, 500):
        ring(redis, MANY[number])
        assert await listener.rung(MANY) == [MANY[number]]

    await wait_until(lambda: sleepers(redis) - before >= MOST_LINES + 6, "one share has asked again after each ring")
    assert sleepers(redis) - before == MOST_LINES + 6
    assert SHARE <= 3000 / MOST_LINES < 2 * SHARE


async def test_as_many_are_answered_as_there_is_room_for(listener: Listener, redis: Redis) -> None:
    """The others ring on as soon as the listener rests: another worker may have room."""
    rang = MANY[::1000]
    ring(redis, *rang)
    heard = await listener.rung(MANY, room=1)
    await wait_until(lambda: len(listener.bells._heard) == 2, "it has heard the others")
    listener.bells.rest()
    await wait_until(lambda: redis.exists(*map(KEYS.bell, rang)) == 2, "they ring on")

    assert len(heard) == 1


async def test_what_rings_while_it_rests_rings_on(listener: Listener, redis: Redis) -> None:
    """Its lines have listened since before; when it listens again it hears that."""
    ring(redis, MANY[0])
    await listener.rung(MANY)
    listener.bells.rest()
    ring(redis, MANY[-1])
    await wait_until(lambda: redis.exists(KEYS.bell(MANY[-1])), "it rings on")

    assert await listener.rung(MANY) == [MANY[-1]]


@pytest.mark.parametrize("queues", [FEW, MANY], ids=["few", "many"])
async def test_a_lost_line_is_told_and_mended(listener: Listener, redis: Redis, queues: Sequence[str]) -> None:
    """By `LineLost`, once; the next question finds it standing."""
    waiting = asyncio.create_task(listener.rung(queues))
    number = MOST_LINES if queues is MANY else 1
    await wait_until(lambda: redis.info("clients")["blocked_clients"] == number, "all listen")
    cut(listener.lines[-1])
    with pytest.raises(LineLost):
        await waiting
    await wait_until(lambda: redis.info("clients")["blocked_clients"] == number - 1, "Redis knows of it")
    ring(redis, queues[-1])

    assert await listener.rung(queues) == [queues[-1]]


async def test_other_queues_are_listened_to_from_the_next_question_on(listener: Listener, redis: Redis) -> None:
    """What was listened to before is heard as well, until its time is over: whose it is the listener says."""
    ring(redis, FEW[0])
    assert await listener.rung(MANY, seconds=0.3) == [FEW[0]]
    ring(redis, "tools.new")
    heard = list[str]()
    while "tools.new" not in heard:
        heard += await listener.rung(["tools.new"], seconds=0.3)

    assert heard == ["tools.new"]
