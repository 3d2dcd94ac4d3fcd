"""Many calls leave nothing behind: not here, not in Redis. `make soak` makes 100,000 of them."""

import asyncio
import gc
import os
import weakref
from collections import Counter
from collections.abc import AsyncIterator

import psutil
import pytest
from redis.asyncio import Redis

from support.fleet import TestBed
from support.module_server import ModuleServer
from support.waiting import PATIENCE_SECONDS, wait_until
from support.worker_process import WorkerProcess
from toolfleet import Caller, ToolCall, ToolFleet, ToolResult
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.system.shared_timers import SharedTimers

CALLS = int(os.environ.get("LEAK_CHECK_CALLS", "1000"))
AT_ONCE = 200
WARM_UP = 1000
SECONDS = 60 + CALLS / 100  # for a busy machine

ECHO = ToolCall(tool_name="owls.echo", arguments={"text": "hu"})
NAP = ToolCall(tool_name="owls.nap", arguments={"seconds": 0.2})
LONG_NAP = ToolCall(tool_name="owls.nap", arguments={"seconds": 5})
UNKNOWN = ToolCall(tool_name="owls.purr")
LARGE = ToolCall(tool_name="owls.echo", arguments={"text": "x" * 300_000})

GROWTH = (20 if CALLS > 3000 else 10) * 2**20  # bytes that the process may grow by: 200 for each of 100,000 calls

KINDS = {
    "Future",
    "Task",
    "TimerHandle",
    "SharedTimer",
    "Follow",
    "Expected",
    "CallHandle",
    "PublishedCall",
    "ToolResult",
}


async def one(fleet: ToolFleet, owner: Caller, module: ModuleServer, number: int) -> str:
    """A call of the kind that is due, and how it ended."""
    match number % 100:
        case 0 | 1:  # its result comes too late
            result = await fleet.call(NAP, owner, timeout=0.1)
        case 2 | 3:
            return await given_up(fleet, owner, module, number)
        case 4 | 5:
            result = await fleet.call(UNKNOWN, owner)
        case 6 | 7:
            handle = await fleet.submit(LONG_NAP, owner)
            await handle.cancel()
            result = await handle.result()
        case 8:
            result = await fleet.call(ToolCall(tool_name="owls.fail_once"), owner)
        case 9 if number % 1000 == 9:
            result = await fleet.call(LARGE, owner)
        case 10 | 11:
            handle = await fleet.submit(ECHO, owner)
            result = await handle.result()
        case _:
            result = await fleet.call(ECHO, owner)
    return result.error_code or "ok"


async def given_up(fleet: ToolFleet, owner: Caller, module: ModuleServer, number: int) -> str:
    """One of two while it runs, the other as soon as it is published."""
    nap = ToolCall(tool_name="owls.nap", arguments={"seconds": 30, "number": number})
    call = asyncio.create_task(fleet.call(nap, owner))
    await asyncio.sleep(0)
    if number % 2:
        await wait_until(lambda: any(it["arguments"] == nap.arguments for it in tuple(module.under_way)), "it runs")
    call.cancel()
    try:
        result: ToolResult = await call
    except asyncio.CancelledError:
        return "given up"
    return result.error_code or "ok"


async def many(fleet: ToolFleet, owner: Caller, calls: int, module: ModuleServer) -> Counter[str]:
    """So many calls, `AT_ONCE` in flight; how often they ended how."""
    numbers, ends = iter(range(calls)), Counter[str]()

    async def agent() -> None:
        for number in numbers:
            ends[await one(fleet, owner, module, number)] += 1
            if number % 1000 == 0:
                for record in (module.requests, module.headers, module.visits, module.interrupted):
                    record.clear()  # it notes every request, and lives in this process, whose memory is measured

    await asyncio.gather(*(agent() for _ in range(AT_ONCE)))
    return ends


def held(bed: TestBed) -> Counter[str]:
    """What this loop holds of the kinds that calls are made of, and this process of descriptors, but for the module's."""
    gc.collect()
    found = Counter(type(thing).__name__ for thing in gc.get_objects() if is_of(thing, asyncio.get_running_loop()))
    process, port = psutil.Process(), bed.modules[0].url.rpartition(":")[2]
    modules = sum(connection.laddr.port == int(port) for connection in process.net_connections() if connection.raddr)
    return Counter({kind: found[kind] for kind in KINDS} | {"descriptors": process.num_fds() - modules})


def is_of(thing: object, loop: asyncio.AbstractEventLoop) -> bool:
    """Whether it is no future and no timer of another loop (the module has one), nor one that the loop drops later.

    Nor the timer of a second in which shared timers were to fall due: there is one for each second that the calls took.
    """
    if isinstance(thing, asyncio.TimerHandle):
        begins = getattr(getattr(thing, "_callback", None), "__func__", None) is SharedTimers._begin
        if begins or thing.cancelled():
            return False
    return not isinstance(thing, asyncio.Future | asyncio.TimerHandle) or getattr(thing, "_loop", loop) is loop


@pytest.fixture
async def redis(bed: TestBed) -> AsyncIterator[Redis]:
    async with Redis.from_url(bed.redis_url, decode_responses=True) as redis:
        yield redis


async def settled(fleet: ToolFleet, redis: Redis) -> None:
    """Wait until late results have come and subscriptions have gone."""
    session = fleet._sessions.here()
    assert session is not None
    await wait_until(lambda: not session._last_words and len(session._background) == 1, "revocations are sent")
    left: list[object] = [1]
    async with asyncio.timeout(3 * PATIENCE_SECONDS):
        while any(left):
            left = [await redis.pubsub_channels("celery-task-meta-*"), await redis.llen("tools.owls")]
            left.append(await redis.hlen("unacked"))


@pytest.mark.timeout(SECONDS + 60)
async def test_calls_leave_nothing_behind(
    bed: TestBed, worker: WorkerProcess, owner: Caller, redis: Redis, fleet: ToolFleet, owls: ModuleServer
) -> None:
    """Neither a call that ends well nor one that fails, is refused, given up, cancelled or answered too late."""
    await many(fleet, owner, WARM_UP, owls)
    await settled(fleet, redis)
    before, memory = held(bed), psutil.Process().memory_info().rss
    async with asyncio.timeout(SECONDS):
        ends = await many(fleet, owner, CALLS, owls)
    await settled(fleet, redis)
    after, grown = held(bed), psutil.Process().memory_info().rss - memory

    session = fleet._sessions.here()
    assert session is not None
    assert not session._listener._expected
    assert ends["ok"] >= 0.88 * CALLS
    assert ends["given up"] == ends["unknown_tool"] == 0.02 * CALLS
    assert ends["timed_out"] + ends["expired"] >= 0.019 * CALLS, ends
    assert ends["cancelled"] >= 0.019 * CALLS, ends
    assert {kind: after[kind] for kind in KINDS if after[kind] > before[kind] + 5} == {}
    assert after["descriptors"] <= before["descriptors"] + 2
    assert grown < GROWTH
    assert await lasting_keys(redis) == set()


async def test_a_call_that_has_ended_goes_without_the_collector(
    fleet: ToolFleet, worker: WorkerProcess, owner: Caller
) -> None:
    """With its result: an agent that makes thousands would spend a quarter of its time on collecting them."""
    await fleet.call(ECHO, owner)
    gc.collect()
    gc.disable()
    try:
        handle = await fleet.submit(ECHO, owner)
        follow = weakref.ref(handle._follow) if handle._follow is not None else None
        result = await handle.result()
        del handle
        await asyncio.sleep(0)  # the loop's own last reference
        assert follow is not None
        assert follow() is None
    finally:
        gc.enable()
    assert result.success


async def test_a_call_whose_end_was_awaited_goes_without_the_collector(
    fleet: ToolFleet, worker: WorkerProcess, owner: Caller
) -> None:
    """Also what told its publisher's answer meanwhile."""
    await fleet.call(ECHO, owner)
    session = fleet._sessions.here()
    assert session is not None
    gc.collect()
    gc.disable()
    try:
        calling = asyncio.create_task(fleet.call(ECHO, owner))
        await asyncio.sleep(0)  # it is published
        (follow,) = map(weakref.ref, session._listener.waiters())
        result = await calling
        del calling
        await asyncio.sleep(0)  # the loop's own last reference
        assert follow() is None
    finally:
        gc.enable()
    assert result.success


async def lasting_keys(redis: Redis) -> set[str]:
    """Keys of calls that have no time to live."""
    found: set[str] = set()
    async for keys in pages(redis):
        async with redis.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.ttl(key)
            found |= {key for key, seconds in zip(keys, await pipeline.execute(), strict=True) if seconds == -1}
    return {key for key in found if (rule := Keys().rule_of(key)) is None or not rule.lasting}


async def pages(redis: Redis) -> AsyncIterator[list[str]]:
    """All keys, some at a time."""
    cursor = -1
    while cursor:
        cursor, keys = await redis.scan(max(cursor, 0), count=1000)
        yield [str(key) for key in keys]
