"""What tests of a worker's inside share: its line to Redis, and the leases on that."""

from collections.abc import AsyncIterator

import pytest

from support.workers.held_messages import open_leases, open_line
from toolfleet_tasks.redis.connection import Line
from toolfleet_tasks.transport.leases import Leases


@pytest.fixture
async def line(redis_url: str) -> AsyncIterator[Line]:
    async with open_line(redis_url) as line:
        yield line


@pytest.fixture
async def leases(line: Line) -> AsyncIterator[Leases]:
    async with open_leases(line) as leases:
        yield leases
