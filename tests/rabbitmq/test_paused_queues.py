"""Queues that operators pause and drain where RabbitMQ has them: it has delivered calls that must not begin."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from support.fleet import TestBed
from support.module_server import ModuleServer
from support.waiting import wait_until, wait_until_answered
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_tasks.metrics.queue_overview import QueueOverview


def nap(seconds: float) -> ToolCall:
    return ToolCall(tool_name="owls.nap_once", arguments={"seconds": seconds})


async def queue_of_owls(fleet: ToolFleet) -> QueueOverview:
    """The queue of the one module here that is not another test's."""
    (one,) = [queue for queue in await fleet.queues.list() if queue.module == "owls"]
    return one


@pytest.fixture(autouse=True)
async def _resumed(fleet: ToolFleet) -> AsyncIterator[None]:
    """The queue is no longer paused when its test has ended, also when it has failed."""
    yield
    await fleet.queues.resume("owls")


async def test_calls_that_were_fetched_are_not_begun(
    bed: TestBed, fleet: ToolFleet, owner: Caller, owls: ModuleServer
) -> None:
    """They go back to their queue, and are run once when it is resumed, also by a worker that started meanwhile."""
    with bed.worker(worker_concurrency=1):
        running = await fleet.submit(nap(3), owner)
        await wait_until(lambda: owls.running == 1, "the only slot is taken")
        fetched = [await fleet.submit(nap(0), owner, timeout=90) for _ in range(5)]
        await fleet.queues.pause("owls")
        later = [await fleet.submit(nap(0), owner, timeout=90) for _ in range(5)]
        assert (await running.result(30)).success

        async def all_wait() -> bool:
            one = await queue_of_owls(fleet)
            return (one.state, one.waiting) == ("paused", 10)

        await wait_until_answered(all_wait, "all are back in their queue", seconds=20)
        with bed.worker():
            await wait_until_answered(all_wait, "nobody takes them", seconds=20)
            assert len(owls.calls("nap_once")) == 1
            await fleet.queues.resume("owls")
            assert [(await each.result(60)).success for each in (*fetched, *later)] == [True] * 10
    assert set(Counter(owls.call_ids("nap_once")).values()) == {1}


async def test_a_draining_queue_refuses_new_calls(
    bed: TestBed, fleet: ToolFleet, owner: Caller, owls: ModuleServer
) -> None:
    """Before they are published; what runs goes on, and then it is drained."""
    with bed.worker():
        running = asyncio.create_task(fleet.call(nap(2), owner))
        await wait_until(lambda: owls.running == 1, "it runs")
        await fleet.queues.drain("owls")
        refused = await fleet.call(nap(0), owner)
        assert (refused.error_code, refused.effect_state, refused.retryable) == ("busy", "none", True)
        assert (await running).success
        (drained,) = await fleet.queues.drain("owls", wait_seconds=20)
        await fleet.queues.resume("owls")
    assert (drained.state, len(owls.calls("nap_once"))) == ("drained", 1)
