"""What Redis itself knows of overload: breakers, rooms, shares and slots, by a clock that the test sets."""

from typing import Any

import pytest
from redis.asyncio import Redis

from toolfleet_registry.keys import Keys
from toolfleet_tasks.overload_scripts import BREAKER, ROOM, SHARE, SLOTS

KEYS = Keys()
BREAKER_KEY, ROOM_KEY, SHARE_KEY = KEYS.breaker("owls"), KEYS.running("owls"), KEYS.share("fast", "ada")
THRESHOLD, OPEN_MS, PROBE_MS = 3, 10_000, 2_000


@pytest.fixture
async def now(redis: Redis) -> int:
    """The server's time, in ms, to count from: keys expire by its clock."""
    seconds, micros = await redis.time()
    return int(seconds * 1000 + micros // 1000)


async def call(redis: Redis, fragment: str, function: str, key: str, *arguments: Any) -> Any:
    """Call one function as a script would; texts stay texts, numbers are numbers."""
    shown = [f"'{argument}'" if isinstance(argument, str) else str(argument) for argument in arguments]
    return await redis.eval(f"{fragment} return {function}({', '.join(['KEYS[1]', *shown])})", 1, key)


async def rest(redis: Redis, now: int) -> int:
    return int(await call(redis, BREAKER, "breaker_rest", BREAKER_KEY, now))


async def passes(redis: Redis, now: int, call_id: str | None = None) -> int:
    arguments: list[Any] = [now, PROBE_MS] if call_id is None else [now, PROBE_MS, call_id]
    return int(await call(redis, BREAKER, "breaker_pass", BREAKER_KEY, *arguments))


async def note(redis: Redis, now: int, *, failed: bool) -> None:
    await call(redis, BREAKER, "breaker_note", BREAKER_KEY, now, int(failed), THRESHOLD, OPEN_MS)


async def fail(redis: Redis, now: int, times: int = THRESHOLD) -> None:
    for _ in range(times):
        await note(redis, now, failed=True)


async def test_failures_in_a_row_open_the_breaker(redis: Redis, now: int) -> None:
    """One fewer does not; the last one does, and everybody is told how long."""
    await fail(redis, now, THRESHOLD - 1)
    assert (await rest(redis, now), await passes(redis, now)) == (0, 0)
    await fail(redis, now, 1)

    assert (await rest(redis, now + 1), await passes(redis, now + 1)) == (OPEN_MS - 1, OPEN_MS - 1)


async def test_a_success_between_starts_the_count_anew(redis: Redis, now: int) -> None:
    """Only failures in a row count."""
    for _ in range(3):
        await fail(redis, now, THRESHOLD - 1)
        await note(redis, now, failed=False)

    assert await rest(redis, now) == 0
    assert not await redis.exists(BREAKER_KEY)


async def test_looking_changes_nothing(redis: Redis, now: int) -> None:
    """However many calls are published while it may be probed, none of them is the probe."""
    await fail(redis, now)
    later = now + OPEN_MS
    before = await redis.hgetall(BREAKER_KEY)

    assert [await rest(redis, later) for _ in range(3)] == [0, 0, 0]
    assert await redis.hgetall(BREAKER_KEY) == before


async def test_one_probe_at_a_time(redis: Redis, now: int) -> None:
    """When the time is over one call may go, and the others hear how long its chance lasts."""
    await fail(redis, now)
    later = now + OPEN_MS

    assert [await passes(redis, later) for _ in range(3)] == [0, PROBE_MS, PROBE_MS]
    assert await rest(redis, later) == PROBE_MS


async def test_a_probe_that_asks_again_is_the_same_probe(redis: Redis, now: int) -> None:
    """A script that is sent twice does not stand in its own way; another call still waits."""
    await fail(redis, now)
    later = now + OPEN_MS

    assert [await passes(redis, later, "c1"), await passes(redis, later, "c1")] == [0, 0]
    assert await passes(redis, later, "c2") == PROBE_MS


async def test_a_probe_that_dies_frees_itself(redis: Redis, now: int) -> None:
    """After its time the next call is the probe."""
    await fail(redis, now)
    await passes(redis, now + OPEN_MS, "c1")

    assert await passes(redis, now + OPEN_MS + PROBE_MS, "c2") == 0
    assert await passes(redis, now + OPEN_MS + PROBE_MS, "c1") == PROBE_MS


async def test_a_probes_success_closes_the_breaker(redis: Redis, now: int) -> None:
    """After it nothing is left of the failures."""
    await fail(redis, now)
    await passes(redis, now + OPEN_MS)
    await note(redis, now + OPEN_MS + 1, failed=False)

    assert [await passes(redis, now + OPEN_MS + 2) for _ in range(3)] == [0, 0, 0]
    assert not await redis.exists(BREAKER_KEY)


async def test_a_probes_failure_opens_it_again(redis: Redis, now: int) -> None:
    """One is enough, and the whole time begins anew; after it the next probe may go."""
    await fail(redis, now)
    later = now + OPEN_MS
    await passes(redis, later)
    await note(redis, later + 5, failed=True)

    assert await rest(redis, later + 5) == OPEN_MS
    assert await passes(redis, later + 5 + OPEN_MS) == 0


async def test_late_failures_do_not_prolong_it(redis: Redis, now: int) -> None:
    """Calls that were under way when it opened fail one after the other, and say nothing new."""
    await fail(redis, now)
    await fail(redis, now + 5_000, 10)

    assert await rest(redis, now + 5_000) == OPEN_MS - 5_000


async def test_a_breaker_expires(redis: Redis, now: int) -> None:
    """Also in the middle of it, and with a probe that takes long."""
    await fail(redis, now, 1)
    assert OPEN_MS < await redis.pttl(BREAKER_KEY) <= OPEN_MS + 600_000
    await fail(redis, now)
    await call(redis, BREAKER, "breaker_pass", BREAKER_KEY, now + OPEN_MS, 3_600_000)

    assert 3_600_000 < await redis.pttl(BREAKER_KEY) <= 3_600_000 + 600_000


async def take(redis: Redis, now: int, call_id: str, *, until: int, bound: int = 2) -> int:
    return int(await call(redis, ROOM, "room_take", ROOM_KEY, call_id, now, until, bound))


async def test_a_room_holds_so_many(redis: Redis, now: int) -> None:
    """The next one finds it full until one has left."""
    taken = [await take(redis, now, call_id, until=now + 60_000) for call_id in ("c1", "c2", "c3")]
    assert taken == [1, 1, 0]
    assert await call(redis, ROOM, "room_left", ROOM_KEY, now, 2) == 0
    await call(redis, ROOM, "room_leave", ROOM_KEY, "c1")

    assert await call(redis, ROOM, "room_left", ROOM_KEY, now, 2) == 1
    assert await take(redis, now, "c3", until=now + 60_000) == 1


async def test_a_call_has_one_place_only(redis: Redis, now: int) -> None:
    """Taking it again changes its end, and no other's place; leaving twice frees one."""
    for _ in range(3):
        assert await take(redis, now, "c1", until=now + 60_000) == 1
    assert [await take(redis, now, call_id, until=now + 60_000) for call_id in ("c2", "c1")] == [1, 1]

    left = [await call(redis, ROOM, "room_leave", ROOM_KEY, "c1") for _ in range(2)]
    assert (left, await redis.zcard(ROOM_KEY)) == ([1, 0], 1)


async def test_a_place_ends_with_its_lease(redis: Redis, now: int) -> None:
    """A dead worker's calls stand in nobody's way for longer; a renewed one's do."""
    await take(redis, now, "c1", until=now + 1_000)
    await take(redis, now, "c2", until=now + 1_000)
    await call(redis, ROOM, "room_renew", ROOM_KEY, "c2", now + 60_000)

    assert await call(redis, ROOM, "room_left", ROOM_KEY, now + 1_000, 2) == 1
    assert [await take(redis, now + 1_000, call_id, until=now + 60_000) for call_id in ("c3", "c4")] == [1, 0]
    assert await redis.zrange(ROOM_KEY, 0, -1) == ["c2", "c3"]


async def test_a_place_that_is_gone_is_not_renewed(redis: Redis, now: int) -> None:
    """Who has left stays away, and no key comes into being."""
    await call(redis, ROOM, "room_renew", ROOM_KEY, "c1", now + 60_000)

    assert not await redis.exists(ROOM_KEY)


async def test_a_room_expires_with_its_last_lease(redis: Redis, now: int) -> None:
    """Not before it, also when it was renewed, and not long after."""
    await take(redis, now, "c1", until=now + 60_000)
    await take(redis, now, "c2", until=now + 1_000)
    assert 60_000 < await redis.pttl(ROOM_KEY) <= 91_000
    await call(redis, ROOM, "room_renew", ROOM_KEY, "c1", now + 600_000)

    assert 595_000 < await redis.pttl(ROOM_KEY) <= 631_000


async def share(redis: Redis, now: float, call_id: str, *, left: float, bound: int = 2, keep_ms: int = 0) -> int:
    return int(await call(redis, SHARE, "share_take", SHARE_KEY, call_id, now + left, bound, keep_ms))


async def test_a_share_has_so_many_calls(redis: Redis, now: int) -> None:
    """The next one is over it until one has ended; the same call counts once."""
    seconds = now / 1000
    taken = [await share(redis, seconds, call_id, left=60) for call_id in ("c1", "c1", "c2", "c3", "c2")]
    assert taken == [1, 1, 1, 0, 1]
    assert sorted(await redis.zrange(SHARE_KEY, 0, -1)) == ["c1", "c2"]
    left = [await call(redis, SHARE, "share_leave", SHARE_KEY, "c1") for _ in range(2)]

    assert (left, await share(redis, seconds, "c3", left=60)) == ([1, 0], 1)


async def test_a_call_counts_until_its_deadline(redis: Redis, now: int) -> None:
    """Who has died without a word stands in nobody's way after that."""
    seconds = now / 1000
    assert [await share(redis, seconds, call_id, left=left) for call_id, left in (("c1", -5), ("c2", 60))] == [1, 1]

    assert [await share(redis, seconds, call_id, left=60) for call_id in ("c3", "c4")] == [1, 0]
    assert sorted(await redis.zrange(SHARE_KEY, 0, -1)) == ["c2", "c3"]


async def test_a_share_expires_after_its_last_deadline(redis: Redis, now: int) -> None:
    """Never before: not with the first call, nor with one that has much more time, nor while it is in use."""
    seconds = now / 1000
    await share(redis, seconds, "c1", left=1, bound=9)
    assert 3_590_000 < await redis.pttl(SHARE_KEY) <= 3_600_000
    await share(redis, seconds, "c2", left=7200, bound=9, keep_ms=7_200_000)
    assert 7_190_000 < await redis.pttl(SHARE_KEY) <= 7_200_000
    await share(redis, seconds, "c3", left=1, bound=9, keep_ms=3_600_000)
    assert 7_190_000 < await redis.pttl(SHARE_KEY) <= 7_200_000
    await redis.pexpire(SHARE_KEY, 100_000)
    await share(redis, seconds, "c4", left=1, bound=9)
    assert await redis.pttl(SHARE_KEY) <= 100_000
    await share(redis, seconds, "c5", left=1, bound=9, keep_ms=3_600_000)

    assert 3_590_000 < await redis.pttl(SHARE_KEY) <= 3_600_000


async def test_slots_are_those_of_live_workers(redis: Redis, now: int) -> None:
    """The sum over all workers of the lane that have noted themselves lately."""
    key = KEYS.slots("fast")
    await redis.zadd(key, {"100 one:1": 1000, "20 two:1": 1010, "3 three:1": 990, "nonsense": 1010})
    await redis.expire(key, 60)

    assert await call(redis, SLOTS, "slots_sum", key, 1000) == 120
    assert await call(redis, SLOTS, "slots_sum", KEYS.slots("slow"), 1000) == 0
