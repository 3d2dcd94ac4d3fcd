"""RabbitMQ has the queues, and Redis knows who may publish: nobody is let in twice, or for nothing."""

import asyncio
from collections import Counter
from typing import Any
from uuid import uuid4

import pytest
from redis.asyncio import Redis

from support.fleet import TestBed
from support.module_server import ModuleServer, holding, serve
from support.owls import make_module
from support.programs.closed_port import closed_port
from support.servers.rabbitmq import RabbitMq
from support.waiting import PATIENCE_SECONDS, wait_until, wait_until_answered
from toolfleet import Caller, ToolCall, ToolFleet

ADA, BOB = (Caller(user_id=name, permission="owner", allowed_modules="*") for name in ("ada", "bob"))
ECHO = ToolCall(tool_name="owls.echo", arguments={"text": "hu"})
NAP = ToolCall(tool_name="owls.nap", arguments={"seconds": 0.2})


@pytest.fixture
async def few(bed: TestBed) -> TestBed:
    """A fleet in which little may wait."""
    return TestBed(bed.redis_url, bed.modules, bed.folder, {**bed.more, "backlog_limit": 3, "calls_per_caller": 4})


async def test_backlog_and_share_are_bounded(few: TestBed) -> None:
    """Without a worker: three may wait, whoever asks; then they are run, and the next ones get in."""
    async with ToolFleet(settings=few.settings) as fleet, Redis.from_url(few.redis_url) as redis:
        handles = [await fleet.submit(ECHO, ADA, timeout=60) for _ in range(5)]
        busy = [handle for handle in handles if handle._ending.done()]
        assert [(await handle.result()).error_code for handle in busy] == ["busy"] * 2
        assert (await fleet.call(ECHO, BOB, timeout=5)).error_code == "busy"
        assert await redis.zcard(few.settings.keys.caller_limit("fast", "ada")) == 3
        assert not await redis.exists(few.settings.keys.caller_limit("fast", "bob"))
        with few.worker():
            served = [handle for handle in handles if handle not in busy]
            results = await asyncio.wait_for(
                asyncio.gather(*(handle.result() for handle in served)), 2 * PATIENCE_SECONDS
            )

            async def gets_in() -> bool:
                again = await fleet.call(ECHO, BOB, timeout=20)
                assert again.success or (again.error_code, again.retry_after_seconds) == ("busy", 1)
                return again.success

            await wait_until_answered(gets_in, "there is room again")

    assert all(result.success for result in results)


async def test_a_modules_bound_holds_over_all_workers(bed: TestBed, owls: ModuleServer, redis_url: str) -> None:
    """By the module's own count: never more at once, and it is used up; another module's calls are not held up."""
    owls.forget()
    with serve(make_module("ravens")) as ravens:
        bound = {**bed.more, "module_concurrency": {"owls": 3}}
        both = TestBed(redis_url, (owls, ravens), bed.folder, bound)
        with both.worker(), both.worker():
            async with ToolFleet(settings=both.settings) as fleet:
                with holding(owls, "nap"):
                    naps = asyncio.create_task(fleet.call_many([NAP] * 9, ADA, timeout=60))
                    await wait_until(lambda: owls.running == 3, "as many naps as may be are under way")
                    raven = await fleet.call(ToolCall(tool_name="ravens.echo"), ADA, timeout=20)
                    assert not naps.done()
                results = await asyncio.wait_for(naps, 3 * PATIENCE_SECONDS)

    assert raven.success
    assert all(result.success for result in results)
    assert (owls.most_running, len(owls.requests)) == (3, 9)


@pytest.mark.load
async def test_of_a_thousand_calls_hardly_one_fails(bed: TestBed) -> None:
    """With one of two workers cut off from their module, which hands its calls back: less than one in a hundred."""
    cut_off: dict[str, Any] = {"module_services": {"owls": f"http://127.0.0.1:{closed_port()}"}}
    with bed.worker(), bed.worker(**cut_off):
        async with ToolFleet(settings=bed.settings) as fleet:
            results = [each for _ in range(10) for each in await fleet.call_many([ECHO] * 100, ADA, timeout=60)]
    found = Counter(result.error_code for result in results)
    print(found)  # noqa: T201 - for the record

    assert found[None] > 990


async def test_one_intention_is_one_call(bed: TestBed, owls: ModuleServer, broker: RabbitMq) -> None:
    """A repeat joins the running call and later brings its result, also with RabbitMQ."""
    once = ToolCall(tool_name="owls.nap_once", arguments={"seconds": 1}, idempotency_key=uuid4().hex)
    owls.forget()
    with bed.worker():
        async with ToolFleet(settings=bed.settings) as fleet, ToolFleet(settings=bed.settings) as elsewhere:
            first = asyncio.create_task(fleet.call(once, ADA))
            await wait_until(lambda: owls.running, "it runs")
            results = [*await asyncio.gather(*(one.call(once, ADA) for one in (fleet, elsewhere))), await first]
            results.append(await elsewhere.call(once, ADA))

    assert all(result.success for result in results)
    assert len({result.audit.call_id for result in results if result.audit}) == 1
    assert len(owls.requests) == 1


async def test_a_module_that_no_worker_serves_turns_calls_away(bed: TestBed) -> None:
    """Redis knows who consumes which queue of RabbitMQ: a call waits for a worker that comes in time, or in the queue if it says so."""
    settings = bed.settings.model_copy(update={"unserved_seconds": 0.5})
    async with ToolFleet(settings=settings) as fleet, Redis.from_url(bed.redis_url) as redis:
        await redis.delete(settings.keys.consumers, settings.keys.slots("fast"), settings.keys.slots("slow"))
        assert "no worker serves the module 'owls'" in str((await fleet.call(ECHO, ADA, timeout=20)).error)
        waiting = await fleet.submit(ECHO, ADA, timeout=60, waits_for_worker=True)
        with bed.worker():
            assert (await waiting.result(2 * PATIENCE_SECONDS)).success
            assert (await fleet.call(ECHO, ADA, timeout=20)).success
