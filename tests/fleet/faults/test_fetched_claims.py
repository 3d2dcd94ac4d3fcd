"""A worker that dies with a call that was claimed as its message was taken: the call is run all the same, and once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from support.fleet import TestBed, own_bed
from support.module_server import ModuleServer, Request, serve
from support.waiting import PATIENCE_SECONDS
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.queue_keys import QueueKeys
from toolfleet_tasks.lua.queues import RESERVE

OWNER = Caller(user_id="ada", permission="owner", allowed_modules="*")
KEYS, QUEUE = Keys(), "tools.owls"


@pytest.fixture
def owls() -> Iterator[ModuleServer]:
    async def hoot(request: Request) -> dict[str, Any]:
        return {"success": True, "result": request["arguments"]}

    module = ModuleServer("owls")
    module.add("hoot", hoot, effect="read")
    module.add("hoot_once", hoot, effect="once")
    with serve(module):
        yield module


@pytest.fixture
def bed(owls: ModuleServer, tmp_path: Path) -> Iterator[TestBed]:
    """A fleet whose workers are taken for lost after two seconds."""
    with own_bed(owls, tmp_path, visibility_timeout=2) as bed:
        yield bed


@pytest.mark.parametrize(("tool", "attempts"), [("owls.hoot", 2), ("owls.hoot_once", 1)])
async def test_a_call_that_was_taken_and_not_begun_is_run(
    bed: TestBed, fleet: ToolFleet, owls: ModuleServer, tool: str, attempts: int
) -> None:
    """Of one that was claimed with its message nobody knows whether it was begun; of one that must not be repeated it is known."""
    handle = await fleet.submit(ToolCall(tool_name=tool), OWNER, timeout=60)
    async with Redis.from_url(bed.redis_url, decode_responses=True) as redis:
        claimed = await _taken_by_the_dead(redis)
        assert claimed == (attempts == 2)
        with bed.worker():
            result = await handle.result(2 * PATIENCE_SECONDS)

        assert (result.success, result.audit.attempts, len(owls.requests)) == (True, attempts, 1)
        assert await redis.hlen("unacked") == 0


async def _taken_by_the_dead(redis: Redis) -> bool:
    """Take the message as a worker does that dies then, and say whether its call was claimed."""
    _, *command = RESERVE.command(
        unacked="unacked",
        unacked_index="unacked_index",
        queue_states=QueueKeys("").states,
        queues=[(KEYS.queue(QUEUE), KEYS.notify_key(QUEUE))],
        wanted=1,
        tag="wb0b-0-",
        prefix_length=0,
        reserve_ms=1000,
        lease_ms=500,
        worker="dead",
        record_seconds=600,
        record_prefix=KEYS.call(""),
        breaker_prefix=KEYS.breaker(""),
    )
    _, _, tag, _, _, call_id = await redis.eval(*command)
    await redis.zadd("unacked_index", {tag: 1})
    return bool(call_id)
