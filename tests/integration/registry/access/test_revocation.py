"""What one process revokes another one lets in no more, whatever happens to Redis meanwhile."""

from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from support.servers.redis_faults import FaultyRedis, faulty_redis
from support.waiting import wait_until_answered
from toolfleet_registry.access import COMMAND_LINE, KeyDraft
from toolfleet_registry.api_keys import ApiKeys, LiveKeys
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.settings import Settings


@pytest.fixture
async def redis_here(tmp_path: Path) -> AsyncIterator[FaultyRedis]:
    with faulty_redis(tmp_path) as redis:
        yield redis


@pytest.mark.slow
async def test_a_frozen_redis_lets_nobody_in(redis_here: FaultyRedis) -> None:
    """When it is back the same keys are let in, until another store revokes them."""
    settings = Settings(redis_url=redis_here.url)
    live = LiveKeys.of(settings)

    async def becomes(word: str) -> bool:
        try:
            return ("refused" if await live.find(made.text) is None else "let in") == word
        except FleetUnavailable:
            return word == "unavailable"

    with closing(ApiKeys.of(settings)) as keys:
        made = keys.create(KeyDraft(user_id="ada"), COMMAND_LINE)
        assert await becomes("let in")
        with redis_here.frozen():
            await wait_until_answered(lambda: becomes("unavailable"), "nobody is let in")
        await wait_until_answered(lambda: becomes("let in"), "the key is let in again")
        keys.revoke([made.key.id])
        await wait_until_answered(lambda: becomes("refused"), "the key is revoked")
    await live.aclose()
