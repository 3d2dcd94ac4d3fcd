"""What workers note of their slots, and what a caller's share is by that."""

import time
from collections.abc import Callable

import pytest
from redis.asyncio import Redis

from support.published_call import published
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.servers import connection_factory
from toolfleet_registry.settings import Settings
from toolfleet_tasks.admission import AdmissionControl
from toolfleet_tasks.presence import LaneCapacity
from toolfleet_tasks.redis_connection import PipelinedConnection

FAST, SLOW = Keys().slots("fast"), Keys().slots("slow")


@pytest.fixture
def settings(redis_url: str) -> Callable[..., Settings]:
    return lambda **more: Settings(redis_url=redis_url, **more)


async def bound_of(settings: Settings, *, lane: str = "fast") -> int:
    """How many calls a caller may have, found by having one more."""
    assert settings.redis_url is not None
    line = PipelinedConnection(connection_factory(settings.redis_url), name="test")
    line.start()
    admission, number = AdmissionControl(settings), 0
    for number in range(50):
        call = published(call_id=f"call-{number}", lane=lane)
        if (refusal := await admission.ask(line, call)) is not None:
            assert (refusal.kind, refusal.count) == ("share", number)
            break
    await line.aclose()
    return number


@pytest.mark.parametrize(("lane", "fast", "slow"), [("fast", 1, 0), ("slow", 0, 1), ("all", 1, 1)])
async def test_a_worker_notes_its_slots_in_its_lane(
    redis: Redis, settings: Callable[..., Settings], lane: str, fast: int, slow: int
) -> None:
    """One that serves all in both; and the notes expire if it dies."""
    for _ in range(2):
        await LaneCapacity(settings(lane=lane), count=7).note()

    assert (await redis.zcard(FAST), await redis.zcard(SLOW)) == (fast, slow)
    for key in await redis.keys("toolfleet:slots:*"):
        assert 0 < await redis.ttl(key) <= 20


async def test_a_worker_that_ends_takes_its_slots_away(redis: Redis, settings: Callable[..., Settings]) -> None:
    """At once; and another worker's stay."""
    slots = LaneCapacity(settings(), count=7)
    await slots.note()
    await redis.zadd(FAST, {"3 other:1": time.time()})
    await slots.leave()

    assert await redis.zrange(FAST, 0, -1) == ["3 other:1"]
    assert not await redis.exists(SLOW)


async def test_silent_workers_are_forgotten(redis: Redis, settings: Callable[..., Settings]) -> None:
    """Whoever notes itself next removes the notes that count no more."""
    await redis.zadd(FAST, {"3 dead:1": 1000})
    await LaneCapacity(settings(lane="fast"), count=7).note()

    assert [str(note).split()[0] for note in await redis.zrange(FAST, 0, -1)] == ["7"]


async def test_a_callers_share_is_twice_the_slots(redis: Redis, settings: Callable[..., Settings]) -> None:
    """Of all live workers of the lane together."""
    await LaneCapacity(settings(lane="fast"), count=3).note()
    await redis.zadd(FAST, {"4 other:1": time.time(), "30 dead:1": 1000})

    assert await bound_of(settings()) == 14


async def test_without_workers_the_setting_counts(redis: Redis, settings: Callable[..., Settings]) -> None:
    """As if there were one worker, which will come."""
    assert await bound_of(settings(worker_concurrency=5), lane="slow") == 10


async def test_a_share_can_be_set(redis: Redis, settings: Callable[..., Settings]) -> None:
    """Then nobody's slots matter."""
    await LaneCapacity(settings(), count=3).note()

    assert await bound_of(settings(calls_per_caller=2)) == 2


async def test_without_redis_nothing_is_noted() -> None:
    """A worker whose results go nowhere has no share to tell of."""
    slots = LaneCapacity(Settings(broker_url="amqp://guest@127.0.0.1:1//"), count=3)
    await slots.keep()
    await slots.leave()
