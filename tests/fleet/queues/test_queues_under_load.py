"""A queue that is paused and resumed again and again while calls come: none is lost, and none happens twice."""

import asyncio
from collections import Counter

from redis.asyncio import Redis

from support.fleet import TestBed
from support.module_server import ModuleServer
from toolfleet import Caller, ToolCall, ToolFleet

ROUNDS = 50
OWNER = Caller(user_id="ada", permission="owner", allowed_modules="*")


async def test_fifty_pauses_under_load_lose_no_call(bed: TestBed, fleet: ToolFleet, owls: ModuleServer) -> None:
    """With two workers, in which calls run, wait for their turns and are on their way to their queue when it is paused."""
    owls.forget()
    is_over, successes = False, 0

    async def call_again_and_again(number: int) -> int:
        done = 0
        while not is_over:
            call = ToolCall(tool_name="owls.nap_once", arguments={"seconds": 0.002 * number})
            result = await fleet.call(call, OWNER, timeout=120)
            assert result.success, result
            done += 1
        return done

    with bed.worker():
        callers = [asyncio.create_task(call_again_and_again(number)) for number in range(20)]
        for number in range(ROUNDS):
            await fleet.queues.pause("owls", reason=f"round {number}")
            await asyncio.sleep(0.05 * (number % 7))  # also for less than workers take to hear of it
            await fleet.queues.resume("owls")
            await asyncio.sleep(0.05 * (number % 5))
        is_over = True
        successes = sum(await asyncio.gather(*callers))

    counted = Counter(owls.call_ids("nap_once"))
    assert len(counted) == successes > ROUNDS
    assert set(counted.values()) == {1}
    async with Redis.from_url(bed.redis_url) as redis:
        assert await redis.exists("toolfleet:queue-states", "tools.owls") == 0
