"""The ledgers of two workers. Every fact holds as well when each script is sent twice."""

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from support.workers.ledgers import worker_ledger
from toolfleet_tasks.ledger.ledger import Ledger


@pytest.fixture(params=[False, True], ids=["", "sent-again"])
def repeats(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
async def ledger(redis: Redis, redis_url: str, repeats: bool, request: pytest.FixtureRequest) -> AsyncIterator[Ledger]:
    """One worker's, with this file's `SETTINGS`."""
    settings = getattr(request.module, "SETTINGS", {})
    async with worker_ledger(redis_url, repeats=repeats, **settings) as ledger:
        yield ledger


@pytest.fixture
async def other(redis_url: str, repeats: bool) -> AsyncIterator[Ledger]:
    """Another worker's, or an agent's."""
    async with worker_ledger(redis_url, repeats=repeats) as ledger:
        yield ledger
