"""What tests of a worker's inside share: its line to Redis, and the leases on that."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from support.servers.redis_faults import FaultyRedis, faulty_redis
from support.workers.hand_worker import HandWorker, hand_worker
from support.workers.held_messages import open_connection, open_leases
from toolfleet_registry.settings import Settings
from toolfleet_tasks.redis_connection import PipelinedConnection
from toolfleet_tasks.transport.leases import Leases


@pytest.fixture
async def connection(redis_url: str) -> AsyncIterator[PipelinedConnection]:
    async with open_connection(redis_url) as connection:
        yield connection


@pytest.fixture
async def leases(connection: PipelinedConnection) -> AsyncIterator[Leases]:
    async with open_leases(connection) as leases:
        yield leases


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[FaultyRedis]:
    """A Redis of the test's own, that it may freeze, fill or end."""
    with faulty_redis(tmp_path / "redis") as redis:
        yield redis


@pytest.fixture
async def worker(settings: Settings) -> AsyncIterator[HandWorker]:
    """One by hand, with the `settings` of the test's file."""
    async with hand_worker(settings) as worker:
        yield worker
