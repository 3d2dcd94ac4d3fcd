"""A worker's fetcher that runs in the test itself, for somebody who never ends with a message."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from redis import Redis

from support.waiting import PATIENCE_SECONDS, wait_until
from support.workers.held_messages import KEYS, QUEUE, open_parts
from toolfleet_tasks.redis_connection import PipelinedConnection
from toolfleet_tasks.transport.fetcher import Fetcher, Message
from toolfleet_tasks.transport.leases import Leases
from toolfleet_tasks.transport.reservations import Capacity, Quarantine

OTHER = "tools.cats"


@dataclass
class Taker:
    """Consumer of a fetcher: takes messages and never ends with one, until a test says so."""

    slots: int = 1000
    names: list[str] = field(default_factory=lambda: [QUEUE])
    taken: list[Message] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    expected: int = 0
    begin: Callable[[Message], Awaitable[object] | None] = lambda _: None

    @property
    def ids(self) -> list[str]:
        return [message["headers"]["id"] for message in self.taken]

    @property
    def tags(self) -> list[str]:
        return [message["properties"]["delivery_tag"] for message in self.taken]

    def queues(self) -> list[str]:
        return self.names

    def capacity(self) -> int:
        return self.slots - len(self.taken)

    def burst(self) -> tuple[list[str], int]:
        return [], 0

    def expect(self, count: int) -> None:
        self.expected += count

    def deliver(self, message: Message, queue: str) -> Awaitable[object] | None:
        assert queue in {QUEUE, OTHER}
        self.taken.append(message)
        return self.begin(message)

    def forget(self, tag: str) -> None:
        self.forgotten.append(tag)
        self.taken = [message for message in self.taken if message["properties"]["delivery_tag"] != tag]


@dataclass
class FetchingWorker:
    """Its parts, while its fetcher runs."""

    taker: Taker
    connection: PipelinedConnection
    notify_key: PipelinedConnection
    leases: Leases
    fetcher: Fetcher
    running: asyncio.Task[None]


async def wait_until_waiting(redis: Redis, connections: int = 1) -> None:
    """Return when so many connections wait in Redis for a notification: all that was asked before has its answer."""
    await wait_until(lambda: redis.info("clients")["blocked_clients"] == connections, "they wait")


@asynccontextmanager
async def working(url: str, taker: Taker, *, bound: int | None = None) -> AsyncGenerator[FetchingWorker]:
    """Fetch messages for `taker`. `bound`: of the calls of `QUEUE` that may run at once."""
    async with open_parts(url) as parts:
        quarantine = Quarantine(KEYS.quarantine, KEYS.quarantined)
        leases, keys = parts.leases, parts.notify_keys
        bounds = {} if bound is None else {QUEUE: Capacity("toolfleet:running:owls", bound)}
        fetcher = Fetcher(
            taker, connection=parts.connection, notify_keys=keys, leases=leases, quarantine=quarantine, bounds=bounds
        )
        running = asyncio.create_task(fetcher.run())
        yield FetchingWorker(taker, parts.connection, parts.notify_key, parts.leases, fetcher, running)
        running.cancel()
        await asyncio.wait([running], timeout=PATIENCE_SECONDS)
        assert running.done()
        assert taker.expected == 0
