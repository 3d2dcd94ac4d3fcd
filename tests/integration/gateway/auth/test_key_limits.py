"""How much the holder of a key may send, counted in a real Redis by several gateways."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from support.servers.redis_faults import faulty_redis
from support.waiting import wait_until_answered
from toolfleet_gateway.auth.identity import AuthRefused, Identity
from toolfleet_gateway.auth.key_limits import KeyLimits
from toolfleet_registry.contracts import Caller
from toolfleet_registry.redis.keys import GatewayKeys, Keys
from toolfleet_registry.redis.servers import async_client


def identity(*, rate: float | None = None, streams: int | None = None, key_id: str = "a") -> Identity:
    return Identity(Caller(user_id="ada"), key_id=key_id, requests_per_second=rate, streams=streams)


@pytest.fixture
async def gateways(redis_url: str) -> AsyncIterator[list[KeyLimits]]:
    """Three, each with connections of its own."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(async_client(redis_url)) for _ in range(3)]
        yield [KeyLimits(client, Keys()) for client in clients]


async def let_in(asking: Callable[[], Awaitable[None]]) -> bool:
    try:
        await asking()
    except AuthRefused as exc:
        if exc.status != HTTPStatus.TOO_MANY_REQUESTS:
            raise
        return False
    return True


async def lease_end(redis: Redis, streams: str) -> float:
    """When the lease of the stream that ends last does, in ms; 0 if none is open."""
    found: Any = await redis.zrange(streams, -1, -1, withscores=True)
    return float(found[0][1]) if found else 0


async def test_requests_are_counted_over_all_gateways(gateways: list[KeyLimits], redis: Redis) -> None:
    """Of many at once as many are let in as in a second; the others are told when."""
    slow = identity(rate=0.05)
    tried = [each.take_request(slow) for each in gateways * 20]
    found = await asyncio.gather(*tried, return_exceptions=True)
    refused = [each for each in found if isinstance(each, AuthRefused)]

    assert len(found) - len(refused) == 1
    assert {(each.status, each.problem) for each in refused} == {(429, "too-many-requests")}
    assert all(0 < int(each.headers["Retry-After"]) <= 20 for each in refused)


async def test_a_second_may_come_at_once(gateways: list[KeyLimits], redis: Redis) -> None:
    """And what is taken is told to whoever asks."""
    some, bucket = identity(rate=50), GatewayKeys(Keys()).requests(identity().name)
    for each in gateways * 10:
        await each.take_request(some)
    seconds, microseconds = await redis.time()
    await redis.set(bucket, seconds * 1_000_000 + microseconds + 1_000_000_000, ex=60)  # far from being full

    assert 40_000 < (await gateways[1].taken(some)).requests <= 50_000


async def test_a_bucket_fills_again(gateways: list[KeyLimits]) -> None:
    """After a while there is another one."""
    some = identity(rate=2)
    while await let_in(lambda: gateways[0].take_request(some)):
        pass
    await wait_until_answered(lambda: let_in(lambda: gateways[1].take_request(some)), "the bucket fills")


async def test_each_key_has_limits_of_its_own(gateways: list[KeyLimits], redis: Redis) -> None:
    """And who has none is not counted at all."""
    one, other, free = identity(rate=0.01), identity(rate=0.01, key_id="b"), identity()
    assert await let_in(lambda: gateways[0].take_request(one))
    assert not await let_in(lambda: gateways[0].take_request(one))
    assert await let_in(lambda: gateways[0].take_request(other))
    async with gateways[0].stream(free):
        await gateways[0].take_request(free)
    assert len(await redis.keys("*")) == 2


async def test_streams_are_counted_over_all_gateways(gateways: list[KeyLimits], redis: Redis) -> None:
    """As many are open as may be; when one ends there is a place, and at the end nothing is left."""
    two = identity(streams=2)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(gateways[0].stream(two))
        async with gateways[1].stream(two):
            with pytest.raises(AuthRefused) as refused:
                await stack.enter_async_context(gateways[2].stream(two))
            assert (refused.value.status, refused.value.problem) == (429, "too-many-streams")
            assert (await gateways[2].taken(two)).streams == 2
        await stack.enter_async_context(gateways[2].stream(two))

    assert await redis.keys("*") == []
    with pytest.raises(AuthRefused):
        await gateways[0].stream(identity(streams=0)).__aenter__()


async def test_a_stream_that_breaks_is_given_back(gateways: list[KeyLimits]) -> None:
    """By an error in it, and by a client that goes away while it is opened."""
    one = identity(streams=1)
    with pytest.raises(ZeroDivisionError):
        async with gateways[0].stream(one):
            raise ZeroDivisionError
    opening = asyncio.create_task(gateways[0].stream(one).__aenter__())
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.wait({opening})

    async with gateways[1].stream(one):
        pass


async def test_the_streams_of_a_lost_gateway_are_free_again(redis_url: str, redis: Redis) -> None:
    """After its lease; those of one that lives are renewed for as long as they are open."""
    one, names = identity(streams=1), GatewayKeys(Keys())
    async with async_client(redis_url) as client:
        limits = KeyLimits(client, Keys(), lease_seconds=0.6)
        lost = limits.stream(one)
        await lost.__aenter__()
        first = await lease_end(redis, names.streams(one.name))

        async def is_renewed() -> bool:
            return await lease_end(redis, names.streams(one.name)) > first + 1000

        await wait_until_answered(is_renewed, "it is renewed")
        for task in asyncio.all_tasks():
            if task.get_name() == "toolfleet-stream-lease":
                task.cancel()  # as if its process had died

        await wait_until_answered(lambda: let_in(lambda: _opened(limits, one)), "its place is free")
        await lost.__aexit__(None, None, None)


async def _opened(limits: KeyLimits, who: Identity) -> None:
    async with limits.stream(who):
        pass


async def test_a_clock_that_was_set_back_shuts_nobody_out(gateways: list[KeyLimits], redis: Redis) -> None:
    """What stands in the future counts for no longer than what is new."""
    one, names = identity(rate=5, streams=1), GatewayKeys(Keys())
    await redis.set(names.requests(one.name), "9999999999000000", ex=60)
    await redis.zadd(names.streams(one.name), {"x": 9_999_999_999_000})
    await redis.expire(names.streams(one.name), 60)

    with pytest.raises(AuthRefused) as refused:
        await gateways[0].take_request(one)
    assert refused.value.headers["Retry-After"] == "1"
    taken = await gateways[0].taken(one)
    assert taken.streams == 1
    assert await lease_end(redis, names.streams(one.name)) < 9_999_999_999_000


@pytest.mark.slow
async def test_without_redis_nobody_with_a_limit_is_let_in(tmp_path: Path) -> None:
    """It is 503, within a bounded time, whether Redis stands still or is gone; who has no limit is not asked about."""
    with faulty_redis(tmp_path) as redis:
        async with async_client(redis.url) as client:
            limits = KeyLimits(client, Keys())
            await limits.take_request(identity(rate=5))
            with redis.frozen():
                for asking in (limits.take_request(identity(rate=5)), limits.stream(identity(streams=5)).__aenter__()):
                    with pytest.raises(AuthRefused) as refused:
                        await asking
                    assert refused.value.status == 503
                await limits.take_request(identity())
            await limits.take_request(identity(rate=5))
