"""A fleet whose registry is in Redis, or in a database that agents do not know of, and its operator."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from support.modules.operated import Stage, staged
from toolfleet_registry.catalog.operator import Operator, operating


@pytest.fixture(params=["redis", "sqlite"])
async def stage(request: pytest.FixtureRequest, redis: Redis, redis_url: str, elsewhere: Path) -> AsyncIterator[Stage]:
    registry_url = f"sqlite:///{elsewhere}/tools.db" if request.param == "sqlite" else None
    async with staged(redis, redis_url, registry_url) as one:
        yield one


@pytest.fixture
async def operator(stage: Stage) -> AsyncIterator[Operator]:
    async with operating(stage.settings) as one:
        yield one
