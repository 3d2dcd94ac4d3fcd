"""What operators ask for and change while Redis takes connections and says nothing."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from bed import clock
from bed.fleet import Bed
from toolfleet import FleetUnavailable, Settings
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.operations.call_index import CallFilter, CallIndex
from toolfleet_tasks.operations.change_trail import Actor, ChangeTrail
from toolfleet_tasks.resources.audit import AuditReader

CALL_LINE = {"call_id": "call-1", "tool": "owls.echo", "outcome": "success"}


async def read_audit(settings: Settings, meanwhile: Callable[[], object]) -> Any:
    async with AuditReader.of(settings) as reader:
        meanwhile()
        return (await reader.page(1)).lines


async def find_calls(settings: Settings, meanwhile: Callable[[], object]) -> Any:
    async with CallIndex.of(settings) as index:
        meanwhile()
        return (await index.find(CallFilter())).calls


@pytest.mark.parametrize("ask", [read_audit, find_calls])
async def test_a_question_ends_and_the_next_one_is_answered(
    bed: Bed, redis: Redis, ask: Callable[[Settings, Callable[[], object]], Awaitable[Any]]
) -> None:
    """With one error, in bounded time."""
    await redis.xadd(Keys().audit, {"line": json.dumps(CALL_LINE)})
    before = clock.monotonic()
    with pytest.raises(FleetUnavailable, match="answer"):
        await ask(bed.settings, bed.redis.freeze)
    assert clock.monotonic() - before < 30
    bed.redis.thaw()

    assert await ask(bed.settings, lambda: None)


async def test_a_change_is_made_all_the_same(bed: Bed) -> None:
    """Nobody waits long for its lines, which count as missed."""
    before, is_made = clock.monotonic(), False
    async with ChangeTrail.of(bed.settings, Actor("ada", "key abc")) as trail:
        bed.redis.freeze()
        async with trail.change("key_revoked", "abc"):
            is_made = True
        bed.redis.thaw()

    assert is_made
    assert trail.missed == 2
    assert clock.monotonic() - before < 5
