"""How a worker takes messages while its slots are full: those of the queues that may go beyond them."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import pytest
from redis import Redis

from bed import clock
from support.waiting import wait_until
from support.workers.held_messages import KEYS, QUEUE, cut, evals, message, open_connection, open_parts, publish
from toolfleet_tasks.redis_connection import PipelinedConnection
from toolfleet_tasks.transport import kombu_transport
from toolfleet_tasks.transport.fetcher import Fetcher, Message
from toolfleet_tasks.transport.kombu_transport import BurstFetcher
from toolfleet_tasks.transport.reservations import Quarantine

OTHER = "tools.cats"


@dataclass
class FullWorker:
    """Consumes two queues; `beyond` says how many messages of which of them it may take more than it has slots."""

    beyond: dict[str, int] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)
    expected: int = 0

    def queues(self) -> list[str]:
        return [QUEUE, OTHER, *self.others]

    def capacity(self) -> int:
        return 0

    def burst(self) -> tuple[list[str], int]:
        bounds = {queue: capacity for queue, capacity in self.beyond.items() if capacity > 0}
        return list(bounds), min(bounds.values(), default=0)

    def expect(self, count: int) -> None:
        self.expected += count

    def deliver(self, message: Message, queue: str) -> None:
        self.taken.append(message["headers"]["id"])
        self.beyond[queue] -= 1

    def forget(self, tag: str) -> None:
        raise AssertionError(tag)


@dataclass
class Taking:
    worker: FullWorker
    burst: BurstFetcher
    blocking: PipelinedConnection
    running: asyncio.Task[None]


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url, decode_responses=True) as redis:
        yield redis


@pytest.fixture
async def taking(redis_url: str) -> AsyncIterator[Taking]:
    worker = FullWorker()
    async with open_parts(redis_url) as parts, open_connection(redis_url) as blocking:
        quarantine = Quarantine(KEYS.quarantine, KEYS.quarantined)
        fetcher = Fetcher(
            worker,
            connection=parts.connection,
            notify_keys=parts.notify_keys,
            leases=parts.leases,
            quarantine=quarantine,
        )
        burst = BurstFetcher(
            worker, fetcher, connection=parts.connection, blocking=blocking, notify_prefix=KEYS.notify_key("")
        )
        running = asyncio.create_task(burst.run())
        yield Taking(worker, burst, blocking, running)
        running.cancel()
        await asyncio.wait([running], timeout=5)
        assert running.done()
        assert worker.expected == 0


async def test_a_worker_with_free_slots_asks_nothing(taking: Taking, redis: Redis) -> None:
    """It costs nothing while nobody has to go beyond the slots."""
    before = evals(redis)
    publish(redis, message("1"))
    taking.burst.wake()
    await asyncio.sleep(5)  # less than until leases are begun anew

    assert (evals(redis) - before, taking.worker.taken) == (1, [])


async def test_a_bell_brings_what_may_begin(taking: Taking, redis: Redis) -> None:
    """What waits, what comes while it sleeps, and nothing of a queue that holds enough."""
    publish(redis, message("1"))
    publish(redis, message("2"), queue=OTHER)
    taking.worker.beyond = {OTHER: 2}
    taking.burst.begin()
    await wait_until(lambda: taking.worker.taken == ["2"], "what waited is here")
    publish(redis, message("3"), message("4"), queue=OTHER)
    await wait_until(lambda: taking.worker.taken == ["2", "3"], "it was woken")

    assert (redis.llen(QUEUE), redis.llen(OTHER)) == (1, 1)
    assert redis.exists(KEYS.notify_key(QUEUE), KEYS.notify_key(OTHER)) == 2, "for whoever has room"


async def test_a_bell_among_thousands_brings_what_may_begin(taking: Taking, redis: Redis) -> None:
    """The turn that follows asks for the queue whose bell it was; one that rings meanwhile is not forgotten."""
    taking.worker.others = [f"tools.silent-{number}" for number in range(2000)]
    taking.worker.beyond = dict.fromkeys([*taking.worker.others, QUEUE, OTHER], 5)
    taking.burst.begin()
    await wait_until(lambda: taking.burst._notification is not None, "it listens")
    publish(redis, message("1"))
    publish(redis, message("2"), queue=OTHER)
    await wait_until(lambda: sorted(taking.worker.taken) == ["1", "2"], "both are here", seconds=5)


async def test_a_queue_that_may_begin_again_is_looked_at_at_once(taking: Taking, redis: Redis) -> None:
    """While it listens to others' bells."""
    taking.worker.beyond = {OTHER: 1}
    taking.burst.begin()
    await wait_until(lambda: taking.burst._notification is not None, "it listens")
    publish(redis, message("1"))
    taking.worker.beyond = {OTHER: 1, QUEUE: 1}
    woken_at = clock.monotonic()
    taking.burst.wake()
    await wait_until(lambda: taking.worker.taken == ["1"], "it was taken", seconds=5)
    assert clock.monotonic() - woken_at < kombu_transport._BLOCK_SECONDS / 2


async def test_a_bell_that_nobody_needs_rings_on(taking: Taking, redis: Redis) -> None:
    """Slots are free again when it is heard: the ordinary intake, or another worker, is to hear it."""
    taking.worker.beyond = {OTHER: 1}
    taking.burst.begin()
    await wait_until(lambda: taking.burst._notification is not None, "it listens")
    taking.worker.beyond = {}
    publish(redis, message("1"), queue=OTHER)
    await wait_until(lambda: taking.burst._notification is None, "it has heard")
    await wait_until(lambda: redis.exists(KEYS.notify_key(OTHER)), "it rings on")

    assert taking.worker.taken == []


async def test_a_cut_line_is_no_end(taking: Taking, redis: Redis) -> None:
    """It listens again when the line is back; closed lines end it."""
    taking.worker.beyond = {OTHER: 9}
    taking.burst.begin()
    await wait_until(lambda: taking.burst._notification is not None, "it listens")
    cut(taking.blocking)
    publish(redis, message("1"), queue=OTHER)
    await wait_until(lambda: taking.worker.taken == ["1"], "it has arrived", seconds=10)
    await taking.blocking.aclose()
    await asyncio.wait([taking.running], timeout=5)

    assert taking.running.done()
