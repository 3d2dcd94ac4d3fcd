"""Looks at a module for the whole fleet, by workers that die or stand still meanwhile, and at one that says it is not ready."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from redis.asyncio import Redis

from support.workers.ledgers import worker_ledger
from toolfleet_registry.contracts.attempts import Health
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks.presence import note_of
from toolfleet_workers.execution import health_checks
from toolfleet_workers.execution.health_checks import UNREADY_SECONDS, Finding, Prober

KEY, SLOTS = Keys().breaker("owls"), Keys().slots("fast")
DUE: dict[Any, Any] = {"failures": 20, "open_until": 1}


@dataclass
class Modules:
    """What a worker's runner sees of modules. While `go` is not set, looking takes for ever."""

    health: Health = Health.WELL
    looks: int = 0
    go: asyncio.Event = field(default_factory=asyncio.Event)
    asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def probe(self, module: str, *, seconds: float) -> Health:
        del module, seconds
        self.looks += 1
        self.asked.set()
        await self.go.wait()
        return self.health


@dataclass
class Worker:
    """One of several, with an eye of its own."""

    name: str
    prober: Prober
    modules: Modules


@pytest.fixture
async def worker(redis: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Any]]:
    """Starts workers that live, by their names."""
    async with AsyncExitStack() as stack:

        async def start(name: str) -> Worker:
            ledger = await stack.enter_async_context(worker_ledger(redis_url))
            monkeypatch.setattr(socket, "gethostname", lambda: name)
            modules = Modules()
            modules.go.set()
            runner: Any = modules
            prober = Prober(ledger.connection, Settings(redis_url=redis_url), runner)
            note = note_of(1, prober._worker)
            await redis.zadd(SLOTS, {note: fleet_clock.now()})
            await redis.expire(SLOTS, 60)
            return Worker(prober._worker, prober, modules)

        yield start


async def due(redis: Redis) -> None:
    """The module's breaker is open, and it is time to look."""
    await redis.delete(KEY)
    await redis.hset(KEY, mapping=DUE)
    await redis.expire(KEY, 60)


async def soon_due(redis: Redis) -> None:
    """It has been left alone for long enough, and whoever looked last has let others go first."""
    await redis.hset(KEY, "open_until", 1)


async def probe(worker: Worker) -> Finding:
    return (await worker.prober.probe("owls", is_unreached=False)).finding


async def test_who_stands_still_while_it_looks_is_replaced(redis: Redis, worker: Callable[..., Any]) -> None:
    """When its time is over another one looks, whose word counts; the first one's comes too late and changes nothing."""
    one, two = await worker("one"), await worker("two")
    await due(redis)
    one.modules.go.clear()
    stuck = asyncio.create_task(probe(one))
    await one.modules.asked.wait()
    assert await probe(two) is Finding.OPEN, "one at a time"
    await asyncio.sleep(health_checks._LOCK_SECONDS)
    assert await probe(two) is Finding.WELL
    assert two.modules.looks == 1
    before = await redis.hgetall(KEY)
    one.modules.health = Health.AWAY
    one.modules.go.set()

    assert await stuck is Finding.OPEN
    assert await redis.hgetall(KEY) == before
    assert "half_at" in before
    assert await probe(one) is Finding.WELL, "as the other one has found it"


async def test_a_worker_that_cannot_look_says_nothing_of_the_module(redis: Redis, worker: Callable[..., Any]) -> None:
    """Its own trouble; another one may look at once."""
    one, two = await worker("one"), await worker("two")
    await due(redis)
    one.modules.health = Health.UNKNOWN

    assert [await probe(one), await probe(two)] == [Finding.BLOCKED, Finding.WELL]


async def test_a_module_that_is_not_ready_for_long_is_tried(redis: Redis, worker: Callable[..., Any]) -> None:
    """Whoever has looked before: what counts is since when it says so, to all workers together."""
    workers = [await worker("one"), await worker("two")]
    for each in workers:
        each.modules.health = Health.NOT_READY
    await due(redis)
    assert await probe(workers[0]) is Finding.OPEN
    assert await redis.hget(KEY, "half_at") is None
    await asyncio.sleep(UNREADY_SECONDS)
    await soon_due(redis)
    await probe(workers[1])

    assert await redis.hget(KEY, "half_at") is not None
    assert await probe(workers[1]) is Finding.WELL


async def test_what_a_module_said_before_it_was_well_does_not_count(redis: Redis, worker: Callable[..., Any]) -> None:
    """One that is restarted for the second time has as long for it as for the first, whoever looks."""
    one, two = await worker("one"), await worker("two")
    one.modules.health = Health.NOT_READY
    await due(redis)
    assert await probe(one) is Finding.OPEN
    await soon_due(redis)
    assert await probe(two) is Finding.WELL
    await asyncio.sleep(UNREADY_SECONDS)
    await redis.hset(KEY, "open_until", 2**50)  # it has failed again
    await redis.hdel(KEY, "half_at")
    await soon_due(redis)

    assert await probe(one) is Finding.OPEN
    assert await redis.hget(KEY, "half_at") is None


async def test_a_module_that_answers_differently_has_to_begin_anew(redis: Redis, worker: Callable[..., Any]) -> None:
    """Away in between, it starts once more, which takes as long."""
    one = await worker("one")
    await due(redis)
    for health in (Health.NOT_READY, Health.AWAY):
        one.modules.health = health
        await probe(one)
        await redis.hdel(KEY, "failed_by")
        await soon_due(redis)
    await asyncio.sleep(UNREADY_SECONDS)
    one.modules.health = Health.NOT_READY

    assert await probe(one) is Finding.OPEN


async def test_only_when_nobody_connects_is_the_module_away(redis: Redis, worker: Callable[..., Any]) -> None:
    """One that is cut off says so and opens nothing; the second one does; who has found it again is counted no more."""
    one, two = await worker("one"), await worker("two")
    one.modules.health = two.modules.health = Health.AWAY
    assert (await one.prober.probe("owls", is_unreached=True)).finding is Finding.AWAY
    one.modules.health = Health.WELL
    assert (await one.prober.probe("owls", is_unreached=True)).finding is Finding.WELL
    assert not await redis.exists(KEY)
    assert (await two.prober.probe("owls", is_unreached=True)).finding is Finding.AWAY
    two.modules.health = Health.UNKNOWN
    assert (await two.prober.probe("owls", is_unreached=True)).finding is Finding.BLOCKED
    one.modules.health = Health.AWAY
    assert (await one.prober.probe("owls", is_unreached=True)).finding is Finding.OPEN
