"""What tests of a worker's inside share: its line to Redis, and the leases on that."""

from collections.abc import AsyncIterator

import pytest

from support.workers.held_messages import open_connection, open_leases
from toolfleet_tasks.redis.connection import PipelinedConnection
from toolfleet_tasks.transport.leases import Leases


@pytest.fixture
async def connection(redis_url: str) -> AsyncIterator[PipelinedConnection]:
    async with open_connection(redis_url) as connection:
        yield connection


@pytest.fixture
async def leases(connection: PipelinedConnection) -> AsyncIterator[Leases]:
    async with open_leases(connection) as leases:
        yield leases
