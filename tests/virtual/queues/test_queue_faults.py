"""What happens to paused queues when processes die and Redis freezes, and that callers have their turns after a pause."""

import asyncio
from collections import Counter

from bed.fleet import Bed, until
from support.module_server import ModuleServer
from toolfleet import Caller, ToolCall, ToolFleet

ADA, BOB = (Caller(user_id=name, permission="owner", allowed_modules="*") for name in ("ada", "bob"))


def nap(seconds: float, name: str = "") -> ToolCall:
    return ToolCall(tool_name="owls.nap_once", arguments={"seconds": seconds, "name": name})


async def until_waiting(fleet: ToolFleet, count: int) -> None:
    async def do_wait() -> bool:
        (one,) = [queue for queue in await fleet.queues.list() if queue.module == "owls"]
        return one.waiting == count

    await until(do_wait, f"{count} calls wait")


async def test_a_worker_that_is_killed_loses_nothing_that_waits(bed: Bed, owls: ModuleServer) -> None:
    """What ran in it is unknown; what waited is run by the next one, once, and only when the queue is resumed."""
    await bed.serve(owls)
    worker, fleet = await bed.worker(worker_concurrency=20), await bed.agent()
    running = await fleet.submit(nap(600, "running"), ADA, timeout=200)
    await until(lambda: owls.calls("nap_once"), "it runs")
    await fleet.queues.pause("owls")
    waiting = [await fleet.submit(nap(0, f"waits-{number}"), ADA, timeout=900) for number in range(10)]
    worker.kill()
    await bed.worker()
    assert (await running.result()).effect_state == "unknown"
    assert len(owls.calls("nap_once")) == 1
    await fleet.queues.resume("owls")

    assert [each for each in [await handle.result() for handle in waiting] if not each.success] == []
    assert set(Counter(owls.call_ids("nap_once")).values()) == {1}


async def test_a_frozen_redis_resumes_nothing(bed: Bed, owls: ModuleServer) -> None:
    """Workers that run go on with what they know, and one that starts meanwhile takes nothing."""
    await bed.serve(owls)
    await bed.worker()
    fleet = await bed.agent()
    await fleet.queues.pause("owls")
    waiting = [await fleet.submit(nap(0), ADA, timeout=900) for _ in range(5)]
    bed.redis.freeze()
    await asyncio.sleep(7)  # longer than a poll of the states waits for its answer
    bed.redis.thaw()
    await until_waiting(fleet, 5)
    await bed.worker()
    await until_waiting(fleet, 5)
    assert owls.calls("nap_once") == []
    await fleet.queues.resume("owls")

    assert [(await each.result()).success for each in waiting] == [True] * 5
    assert set(Counter(owls.call_ids("nap_once")).values()) == {1}


async def test_callers_have_their_turns_after_a_pause(bed: Bed, owls: ModuleServer) -> None:
    """Who has called most while it was paused is not before all others: each may have so many in the queue only."""
    bed.given["calls_per_caller"] = 5
    await bed.serve(owls)
    fleet = await bed.agent()
    await fleet.queues.pause("owls")
    await bed.worker(worker_concurrency=1)
    many = [
        await fleet.submit(nap(0, "ada"), ADA, timeout=900, waits_for_turn=True, waits_for_worker=True)
        for _ in range(5)
    ]
    more = [asyncio.create_task(fleet.call(nap(0, "ada"), ADA, timeout=900)) for _ in range(20)]
    few = [await fleet.submit(nap(0, "bob"), BOB, timeout=900) for _ in range(2)]
    await fleet.queues.resume("owls")

    assert [(await each.result()).success for each in (*many, *few)] == [True] * 7
    assert [(await each).success for each in more] == [True] * 20
    order = [call["arguments"]["name"] for call in owls.calls("nap_once")]
    assert max(index for index, name in enumerate(order) if name == "bob") < 5 + 2 + 5
