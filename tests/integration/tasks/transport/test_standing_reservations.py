"""How a worker that waits takes a message in the moment in which it is published, and what becomes of it if the worker is gone by then."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from redis import Redis

from support.waiting import wait_until
from support.workers.fetching_worker import OTHER, FetchingWorker, Taker, wait_until_waiting, working
from support.workers.held_messages import KEYS, QUEUE, STORE, cut, message, publish
from toolfleet_tasks.transport import reservations, scripts
from toolfleet_tasks.transport.reservations import AT_ONCE

FEW = [QUEUE, *(f"tools.silent-{number}" for number in range(AT_ONCE - 1))]


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url, decode_responses=True) as redis:
        redis.script_load(scripts.RESERVE.text)
        yield redis


@pytest.fixture
async def worker(redis: Redis, redis_url: str) -> AsyncIterator[FetchingWorker]:
    async with working(redis_url, Taker()) as worker:
        await wait_until_waiting(redis)
        yield worker


def reservations_sent(worker: FetchingWorker) -> list[Any]:
    """Those that are sent from now on over the connection that never blocks."""
    sent, send = list[Any](), worker.connection.send

    def noted(*command: Any) -> Any:
        if scripts.RESERVE.digest in command:
            sent.append(command)
        return send(*command)

    worker.connection.send = noted  # type: ignore[method-assign] # notes, and does the same
    return sent


@pytest.mark.parametrize("names", [[QUEUE], [OTHER, QUEUE], FEW])
async def test_a_message_is_taken_as_it_is_published(names: list[str], redis_url: str, redis: Redis) -> None:
    """Redis has moved it by the time at which the publisher has its answer, and the worker asks for nothing more."""
    async with working(redis_url, Taker(names=names)) as worker:
        await wait_until_waiting(redis)
        sent = reservations_sent(worker)
        publish(redis, message("1"))
        assert redis.hlen(STORE.unacked) == 1
        await wait_until(lambda: worker.taker.ids, "it is here")

        assert worker.leases.held == set(worker.taker.tags) == set(redis.hkeys(STORE.unacked))
        assert sent == []
        assert redis.exists(QUEUE, KEYS.notify_key(QUEUE)) == 0


async def test_workers_that_wait_get_one_message_each(redis_url: str, redis: Redis) -> None:
    """One notification for several messages wakes as many workers, each for its own."""
    takers = [Taker() for _ in range(4)]
    async with AsyncExitStack() as stack:
        for taker in takers:
            await stack.enter_async_context(working(redis_url, taker))
        await wait_until_waiting(redis, 4)
        redis.lpush(QUEUE, message("1"), message("2"), message("3"))
        publish(redis, message("4"))
        await wait_until(lambda: all(taker.taken for taker in takers), "each has one")

        assert sorted(call_id for taker in takers for call_id in taker.ids) == ["1", "2", "3", "4"]
        assert redis.hlen(STORE.unacked) == 4
        publish(redis, message("5"))
        await wait_until(lambda: sum(len(taker.taken) for taker in takers) == 5, "one more is here")


async def test_a_worker_that_is_full_by_then_gives_the_message_back(redis_url: str, redis: Redis) -> None:
    """Another one that has room gets it, as one that was never begun."""
    first, second = Taker(), Taker(slots=0)
    async with working(redis_url, first) as worker, working(redis_url, second) as other:
        await wait_until_waiting(redis)
        first.slots = 0
        publish(redis, message("1"))
        await wait_until(lambda: redis.llen(QUEUE) == 1 and not worker.leases.held, "it is back")
        second.slots = 1
        other.fetcher.wake()
        await wait_until(lambda: second.ids == ["1"], "it is there")

        assert first.ids == []
        assert "redelivered" not in second.taken[0]["headers"]
        assert redis.hlen(STORE.unacked) == 1


async def test_an_end_while_it_waits_takes_nothing_along(worker: FetchingWorker, redis: Redis) -> None:
    """What Redis reserves for it later goes back as soon as it hears of it; a worker that ends meanwhile knows that it may have it."""
    worker.running.cancel()
    await asyncio.wait([worker.running])
    assert worker.leases.held
    assert worker.leases.unbegun == worker.leases.held
    publish(redis, message("1"))
    assert redis.hlen(STORE.unacked) == 1
    await wait_until(lambda: redis.llen(QUEUE) == 1, "it is back")

    assert redis.hlen(STORE.unacked) == 0
    await wait_until(lambda: not worker.leases.held, "it knows")


async def test_what_is_reserved_after_a_loss_that_redis_has_not_heard_of_comes_back(
    worker: FetchingWorker, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network is gone on one side only: Redis reserves for a connection that nobody reads. It is back long before a lease runs out."""
    monkeypatch.setattr(reservations, "_BLOCKED_SECONDS", 1.5)
    assert worker.notify_key._protocol is not None
    transport: Any = worker.notify_key._protocol._transport
    still_open = os.dup(transport.get_extra_info("socket").fileno())
    try:
        cut(worker.notify_key)
        await wait_until(lambda: not worker.notify_key.is_connected, "the worker knows")
        publish(redis, message("1"))
        assert redis.hlen(STORE.unacked) == 1
        await wait_until(lambda: worker.taker.ids == ["1"], "it is here")
    finally:
        os.close(still_open)

    assert "redelivered" not in worker.taker.taken[0]["headers"]
    assert worker.leases.held == set(worker.taker.tags) == set(redis.hkeys(STORE.unacked))


async def test_a_wait_that_redis_refuses_ends_no_worker(worker: FetchingWorker, redis: Redis) -> None:
    """Somebody's key stands where notifications come: the message is found all the same, once."""
    redis.set(KEYS.notify_key(QUEUE), "of another type")
    redis.lpush(QUEUE, message("1"))
    await wait_until(lambda: worker.taker.ids == ["1"], "it is here")
    redis.delete(KEYS.notify_key(QUEUE))

    assert worker.leases.held == set(worker.taker.tags) == set(redis.hkeys(STORE.unacked))
