"""What dies, freezes or is not there: every call still ends in one result, and nothing hangs."""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from support.fleet import TestBed, own_bed
from support.module_server import ModuleServer, holding
from support.pace import note_gaps
from support.waiting import PATIENCE_SECONDS, wait_until
from toolfleet import Caller, FleetUnavailable, ToolCall, ToolFleet
from toolfleet_cli.local.redis_server import held_port, redis_server

NAP = ToolCall(tool_name="owls.nap_once", arguments={"seconds": 0.2})
ECHO = ToolCall(tool_name="owls.echo")


@pytest.fixture
def bed(owls: ModuleServer, tmp_path: Path) -> Iterator[TestBed]:
    """A Redis of this test's own: it is going to be frozen or ended."""
    owls.forget()
    with own_bed(owls, tmp_path) as bed:
        yield bed


async def redis_pid(bed: TestBed) -> int:
    async with Redis.from_url(bed.redis_url) as redis:
        return int((await redis.info("server"))["process_id"])


@contextlib.asynccontextmanager
async def frozen(pid: int) -> AsyncGenerator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_a_frozen_redis_blocks_nobody(bed: TestBed, fleet: ToolFleet, owner: Caller) -> None:
    """While Redis does not answer, calls end by their deadlines and the agent's loop goes on ticking."""
    gaps, gaps_beside, is_over = list[float](), list[float](), threading.Event()

    async def tick_until_over() -> None:
        ticking = asyncio.create_task(note_gaps(gaps_beside))
        await asyncio.to_thread(is_over.wait)
        ticking.cancel()

    async with frozen(await redis_pid(bed)):
        ticking = asyncio.create_task(note_gaps(gaps))
        beside = asyncio.create_task(asyncio.to_thread(asyncio.run, tick_until_over()))
        results = await fleet.call_many([ECHO, NAP], owner, timeout=1)
        ticking.cancel()
        is_over.set()
        await beside

    assert all(not result.success and result.error for result in results)
    assert len(gaps) > 20
    assert max(gaps) - max(gaps_beside) < 0.5, "a pause of the machine's holds up a thread as well"


async def test_without_redis_nothing_is_published(owls: ModuleServer, owner: Caller, tmp_path: Path) -> None:
    """An agent whose Redis has gone is told so, and that nothing has happened."""
    with held_port() as port:
        with redis_server(tmp_path / "redis", port=port) as url:
            bed = TestBed(url, (owls,), tmp_path)
            fleet = await ToolFleet(settings=bed.settings).__aenter__()
        try:
            result = await fleet.call(ECHO, owner, timeout=2)
        finally:
            await fleet.__aexit__()
        with pytest.raises(FleetUnavailable, match=r"127\.0\.0\.1"):
            async with ToolFleet(settings=bed.settings):
                pass

    assert (result.error_code, result.effect_state, result.retryable) == ("fleet_unavailable", "none", True)


async def test_a_redis_restart_loses_no_running_call(owls: ModuleServer, owner: Caller, tmp_path: Path) -> None:
    """A worker with running calls and free slots survives the restart, stores its results, and the agent gets them."""
    logs = tmp_path / "logs"
    logs.mkdir()
    owls.forget()
    with contextlib.ExitStack() as stack:
        first, port = contextlib.ExitStack(), stack.enter_context(held_port())
        url = first.enter_context(redis_server(tmp_path / "redis", port=port))
        bed = TestBed(url, (owls,), logs)
        worker = stack.enter_context(bed.worker())
        async with ToolFleet(settings=bed.settings) as fleet:
            with holding(owls, "nap_once"):
                handles = [await fleet.submit(NAP, owner, timeout=60) for _ in range(5)]
                await wait_until(lambda: owls.running == 5, "the module has the calls")
                await asyncio.to_thread(first.close)
            with redis_server(tmp_path / "redis", port=port):
                results = [await handle.result(3 * PATIENCE_SECONDS) for handle in handles]
                after = await fleet.call(ECHO, owner, timeout=60)
                await asyncio.to_thread(stack.close)

    assert [result.success for result in results] == [True] * 5, worker.said()
    assert after.success


async def test_sigterm_loses_no_running_call(bed: TestBed, fleet: ToolFleet, owner: Caller, owls: ModuleServer) -> None:
    """A worker that is told to stop with 100 calls running ends them first, and leaves nothing in the queues."""
    nap = ToolCall(tool_name="owls.nap_once", arguments={"seconds": 5})  # so that the first still runs with the last
    with bed.worker() as worker:
        handles = [await fleet.submit(nap, owner) for _ in range(100)]
        await wait_until(lambda: owls.running == 100, "the module has the calls")
        worker.send_signal(signal.SIGTERM)
        results = [await handle.result(2 * PATIENCE_SECONDS) for handle in handles]
        assert await asyncio.to_thread(worker.wait) == 0
    async with Redis.from_url(bed.redis_url) as redis:
        left = [await redis.llen("tools.owls"), await redis.hlen("unacked")]

    assert [result.success for result in results] == [True] * 100
    assert len(owls.requests) == 100
    assert left == [0, 0]
