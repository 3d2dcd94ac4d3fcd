"""A queue that is paused and resumed again and again while calls come: none is lost, and none happens twice."""

import asyncio
from collections import Counter

from bed.fleet import Bed
from support.module_server import ModuleServer
from toolfleet import Caller, ToolCall

ROUNDS = 50


async def test_fifty_pauses_under_load_lose_no_call(bed: Bed, owls: ModuleServer, owner: Caller) -> None:
    """With two workers, in which calls run, wait for their turns and are on their way to their queue when it is paused."""
    await bed.serve(owls)
    for _ in range(2):
        await bed.worker()
    fleet, is_over = await bed.agent(), False

    async def call_again_and_again(number: int) -> int:
        done = 0
        while not is_over:
            nap = ToolCall(tool_name="owls.nap_once", arguments={"seconds": 0.3 * number})
            result = await fleet.call(nap, owner, timeout=120)
            assert result.success, result
            done += 1
        return done

    callers = [asyncio.create_task(call_again_and_again(number)) for number in range(1, 21)]
    for number in range(ROUNDS):
        await fleet.queues.pause("owls", reason=f"round {number}")
        await asyncio.sleep(0.25 * (number % 7))  # also for less than workers take to hear of it
        await fleet.queues.resume("owls")
        await asyncio.sleep(0.25 * (number % 5))
    is_over = True
    successes = sum(await asyncio.gather(*callers))

    counted = Counter(owls.call_ids("nap_once"))
    assert len(counted) == successes > ROUNDS
    assert set(counted.values()) == {1}
    assert bed.ask("EXISTS", "toolfleet:queue-states", "tools.owls") == 0
