"""What Redis itself knows of overload: rooms, shares and slots, by a clock that the test sets."""

from typing import Any

import pytest
from redis.asyncio import Redis

from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.scripts import FILES, LONGEST_LEASE_SECONDS

OVERLOAD = FILES.functions("overload")
KEYS = Keys()
ROOM_KEY, SHARE_KEY = KEYS.running("owls"), KEYS.caller_limit("fast", "ada")


@pytest.fixture
async def now(redis: Redis) -> int:
    """The server's time, in ms, to count from: keys expire by its clock."""
    seconds, micros = await redis.time()
    return int(seconds * 1000 + micros // 1000)


async def call(redis: Redis, function: str, key: str, *arguments: Any) -> Any:
    """Call one function as a script would; texts stay texts, numbers are numbers."""
    shown = [f"'{argument}'" if isinstance(argument, str) else str(argument) for argument in arguments]
    return await redis.eval(f"{OVERLOAD} return {function}({', '.join(['KEYS[1]', *shown])})", 1, key)


async def take(redis: Redis, now: int, call_id: str, *, until: int, bound: int = 2) -> int:
    return int(await call(redis, "running_take", ROOM_KEY, call_id, now, until, bound))


async def test_a_room_holds_so_many(redis: Redis, now: int) -> None:
    """The next one finds it full until one has left."""
    taken = [await take(redis, now, call_id, until=now + 60_000) for call_id in ("c1", "c2", "c3")]
    assert taken == [1, 1, 0]
    await redis.zrem(ROOM_KEY, "c1")

    assert await take(redis, now, "c3", until=now + 60_000) == 1


async def test_a_call_has_one_place_only(redis: Redis, now: int) -> None:
    """Taking it again changes its end, and no other's place; leaving twice frees one."""
    for _ in range(3):
        assert await take(redis, now, "c1", until=now + 60_000) == 1
    assert [await take(redis, now, call_id, until=now + 60_000) for call_id in ("c2", "c1")] == [1, 1]

    left = [await redis.zrem(ROOM_KEY, "c1") for _ in range(2)]
    assert (left, await redis.zcard(ROOM_KEY)) == ([1, 0], 1)


async def test_a_place_ends_with_its_lease(redis: Redis, now: int) -> None:
    """A dead worker's calls stand in nobody's way for longer; a renewed one's do."""
    await take(redis, now, "c1", until=now + 1_000)
    await take(redis, now, "c2", until=now + 1_000)
    await call(redis, "running_renew", ROOM_KEY, "c2", now + 60_000)

    assert [await take(redis, now + 1_000, call_id, until=now + 60_000) for call_id in ("c3", "c4")] == [1, 0]
    assert await redis.zrange(ROOM_KEY, 0, -1) == ["c2", "c3"]


async def test_a_clock_that_is_set_back_holds_no_place(redis: Redis, now: int) -> None:
    """What a dead worker's call has holds for a lease from then on; a place that is only kept can still be freed."""
    await take(redis, now, "c1", until=now + 10_000)
    await call(redis, "running_reserve", ROOM_KEY, "c2", now, now + 5_000, 2)
    back, lease = now - 600_000, round(LONGEST_LEASE_SECONDS * 1000)
    assert await take(redis, back, "c3", until=back + 10_000) == 0
    await call(redis, "running_release", ROOM_KEY, "c2")
    assert [await take(redis, back, call_id, until=back + 60_000) for call_id in ("c3", "c4")] == [1, 0]

    assert await take(redis, back + lease + 1, "c4", until=back + 60_000) == 1


async def test_a_place_that_is_gone_is_not_renewed(redis: Redis, now: int) -> None:
    """Who has left stays away, and no key comes into being."""
    await call(redis, "running_renew", ROOM_KEY, "c1", now + 60_000)

    assert not await redis.exists(ROOM_KEY)


async def test_a_room_expires_with_its_last_lease(redis: Redis, now: int) -> None:
    """Not before it, also when it was renewed, and not long after."""
    await take(redis, now, "c1", until=now + 60_000)
    await take(redis, now, "c2", until=now + 1_000)
    assert 60_000 < await redis.pttl(ROOM_KEY) <= 91_000
    await call(redis, "running_renew", ROOM_KEY, "c1", now + 600_000)

    assert 595_000 < await redis.pttl(ROOM_KEY) <= 631_000


async def caller_limit(redis: Redis, now: float, call_id: str, *, left: float, bound: int = 2, keep_ms: int = 0) -> int:
    return int(await call(redis, "caller_take", SHARE_KEY, call_id, now + left, bound, keep_ms))


async def test_a_share_has_so_many_calls(redis: Redis, now: int) -> None:
    """The next one is over it until one has ended; the same call counts once."""
    seconds = now / 1000
    taken = [await caller_limit(redis, seconds, call_id, left=60) for call_id in ("c1", "c1", "c2", "c3", "c2")]
    assert taken == [1, 1, 1, 0, 1]
    assert sorted(await redis.zrange(SHARE_KEY, 0, -1)) == ["c1", "c2"]
    left = [await redis.zrem(SHARE_KEY, "c1") for _ in range(2)]

    assert (left, await caller_limit(redis, seconds, "c3", left=60)) == ([1, 0], 1)


async def test_a_call_counts_until_its_deadline(redis: Redis, now: int) -> None:
    """Who has died without a word stands in nobody's way after that."""
    seconds = now / 1000
    assert [await caller_limit(redis, seconds, call_id, left=left) for call_id, left in (("c1", -5), ("c2", 60))] == [
        1,
        1,
    ]

    assert [await caller_limit(redis, seconds, call_id, left=60) for call_id in ("c3", "c4")] == [1, 0]
    assert sorted(await redis.zrange(SHARE_KEY, 0, -1)) == ["c2", "c3"]


async def test_a_share_expires_after_its_last_deadline(redis: Redis, now: int) -> None:
    """Never before: not with the first call, nor with one that has much more time, nor while it is in use."""
    seconds = now / 1000
    await caller_limit(redis, seconds, "c1", left=1, bound=9)
    assert 3_590_000 < await redis.pttl(SHARE_KEY) <= 3_600_000
    await caller_limit(redis, seconds, "c2", left=7200, bound=9, keep_ms=7_200_000)
    assert 7_190_000 < await redis.pttl(SHARE_KEY) <= 7_200_000
    await caller_limit(redis, seconds, "c3", left=1, bound=9, keep_ms=3_600_000)
    assert 7_190_000 < await redis.pttl(SHARE_KEY) <= 7_200_000
    await redis.pexpire(SHARE_KEY, 100_000)
    await caller_limit(redis, seconds, "c4", left=1, bound=9)
    assert await redis.pttl(SHARE_KEY) <= 100_000
    await caller_limit(redis, seconds, "c5", left=1, bound=9, keep_ms=3_600_000)

    assert 3_590_000 < await redis.pttl(SHARE_KEY) <= 3_600_000


async def test_slots_are_those_of_live_workers(redis: Redis, now: int) -> None:
    """The sum over all workers of the lane that have noted themselves lately."""
    key = KEYS.slots("fast")
    await redis.zadd(key, {"100 one:1": 1000, "20 two:1": 1010, "3 three:1": 990, "nonsense": 1010})
    await redis.expire(key, 60)

    assert await call(redis, "slots_sum", key, 1000) == 120
    assert await call(redis, "slots_sum", KEYS.slots("slow"), 1000) == 0
