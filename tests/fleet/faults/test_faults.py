"""What dies, freezes or is not there: every call still ends in one result, and nothing hangs."""

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from support.fleet import TestBed, own_bed
from support.module_server import ModuleServer, holding, serve
from support.waiting import PATIENCE_SECONDS, wait_until
from toolfleet import Caller, FleetUnavailable, ToolCall, ToolFleet
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_cli.local.tcp_ports import held_port

NAP = ToolCall(tool_name="owls.nap_once", arguments={"seconds": 0.2})
ECHO = ToolCall(tool_name="owls.echo")
LONG_NAP = ToolCall(tool_name="owls.nap_once", arguments={"seconds": 25})


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


@pytest.mark.usual
async def test_a_call_that_nobody_takes_expires(fleet: ToolFleet, owner: Caller, owls: ModuleServer) -> None:
    """Without a worker a call ends at its deadline, as one that surely was not executed; and none executes it later."""
    result = await fleet.call(ECHO, owner, timeout=0.5)

    assert (result.error_code, result.effect_state, result.retryable) == ("expired", "none", True)


async def test_an_expired_call_is_never_begun(
    bed: TestBed, fleet: ToolFleet, owner: Caller, owls: ModuleServer
) -> None:
    """A worker that comes too late drops what has expired, and runs what has not."""
    expired = await fleet.call(ECHO, owner, timeout=0.5)
    waiting = await fleet.submit(ECHO, owner, timeout=60)
    assert await waiting.status() == "queued"
    with bed.worker():
        assert (await waiting.result()).success

    assert expired.error_code == "expired"
    assert len(owls.requests) == 1


async def test_a_queued_call_can_be_cancelled(bed: TestBed, owner: Caller, owls: ModuleServer) -> None:
    """A call that waits for a slot never begins once it is taken back."""
    with bed.worker(worker_concurrency=1):
        async with ToolFleet(settings=bed.settings) as fleet:
            with holding(owls, "nap_once"):
                running = await fleet.submit(NAP, owner)
                await wait_until(lambda: owls.running, "the only slot is taken")
                queued = await fleet.submit(ECHO, owner)
                await queued.cancel()

            assert (await running.result(PATIENCE_SECONDS)).success
            assert (await queued.result(PATIENCE_SECONDS)).error_code == "cancelled"
    assert owls.calls("echo") == []


async def test_a_frozen_redis_blocks_nobody(bed: TestBed, fleet: ToolFleet, owner: Caller) -> None:
    """While Redis does not answer, calls end by their deadlines and the agent's loop goes on ticking."""
    ticks, longest, longest_beside = 0, 0.0, 0.0
    pid, is_over = await redis_pid(bed), threading.Event()

    async def tick() -> None:
        nonlocal ticks, longest
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            longest = max(longest, time.monotonic() - before)
            ticks += 1

    def tick_beside() -> None:
        nonlocal longest_beside
        while not is_over.is_set():
            before = time.monotonic()
            time.sleep(0.01)
            longest_beside = max(longest_beside, time.monotonic() - before)

    async with frozen(pid):
        ticking, beside = asyncio.create_task(tick()), asyncio.create_task(asyncio.to_thread(tick_beside))
        results = await fleet.call_many([ECHO, NAP], owner, timeout=1)
        ticking.cancel()
        is_over.set()
        await beside

    assert all(not result.success and result.error for result in results)
    assert ticks > 20
    assert longest - longest_beside < 0.5, "a pause of the machine's holds up a thread as well"


async def test_a_redis_that_freezes_while_waiting_blocks_nobody(bed: TestBed, fleet: ToolFleet, owner: Caller) -> None:
    """A published call ends by its deadline although nobody can be asked about it: its outcome is unknown."""
    pid = await redis_pid(bed)
    handle = await fleet.submit(ECHO, owner, timeout=1)
    async with frozen(pid):
        result = await asyncio.wait_for(handle.result(), 15)
        assert await asyncio.wait_for(handle.status(), 15) == "done"

    assert (result.error_code, result.effect_state) == ("timed_out", "unknown")


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


@pytest.mark.usual
async def test_a_killed_worker_leaves_no_caller_waiting_for_ever(
    bed: TestBed, fleet: ToolFleet, owner: Caller, owls: ModuleServer
) -> None:
    """When the worker is killed in the middle, the call ends at its deadline as one that may have been executed."""
    with bed.worker() as worker:
        handle = await fleet.submit(ToolCall(tool_name="owls.nap_once", arguments={"seconds": 30}), owner, timeout=5)
        await wait_until(lambda: owls.running, "the module has the call")
        worker.send_signal(signal.SIGKILL)
        result = await handle.result(15)

    assert (result.error_code, result.effect_state) == ("timed_out", "unknown")


async def test_sigterm_loses_no_running_call(bed: TestBed, fleet: ToolFleet, owner: Caller, owls: ModuleServer) -> None:
    """A worker that is told to stop with 100 calls running ends them first, and leaves nothing in the queues."""
    nap = ToolCall(tool_name="owls.nap_once", arguments={"seconds": 5})  # so that the first still runs with the last
    with bed.worker() as worker:
        handles = [await fleet.submit(nap, owner) for _ in range(100)]
        await wait_until(lambda: owls.running == 100, "the module has the calls")
        worker.send_signal(signal.SIGTERM)
        results = [await handle.result(30) for handle in handles]
        assert await asyncio.to_thread(worker.wait) == 0
    async with Redis.from_url(bed.redis_url) as redis:
        left = [await redis.llen("tools.owls"), await redis.hlen("unacked")]

    assert [result.success for result in results] == [True] * 100
    assert len(owls.requests) == 100
    assert left == [0, 0]


async def test_a_slow_module_does_not_delay_a_fast_one(bed: TestBed, owner: Caller, owls: ModuleServer) -> None:
    """The slow lane's only slot is taken and more waits in its queue; the fast lane's call returns all the same."""
    cats = ModuleServer("cats")
    cats.add("echo", owls.tools["owls.echo"])
    with serve(cats):
        two = TestBed(bed.redis_url, (owls, cats), bed.folder, {"slow_modules": frozenset({"owls"})})
        with two.worker(lane="slow", worker_concurrency=1) as slow, two.worker(lane="fast"):
            async with ToolFleet(settings=two.settings) as fleet:
                with holding(owls, "nap_once"):
                    naps = [await fleet.submit(NAP, owner) for _ in range(2)]
                    await wait_until(lambda: owls.running == 1, "the slow slot is taken")
                    fast = await fleet.call(ToolCall(tool_name="cats.echo"), owner)
                    waiting = [await nap.status() for nap in naps]
                results = [await nap.result(PATIENCE_SECONDS) for nap in naps]

    assert fast.success
    assert waiting == ["running", "queued"]
    assert all(result.success for result in results)
    assert "lane=slow" in slow.said()


async def test_lost_data_is_not_taken_for_a_call_that_never_began(
    bed: TestBed, fleet: ToolFleet, owner: Caller, owls: ModuleServer
) -> None:
    """Redis loses all it has while a call runs: at the deadline its outcome is unknown, for a worker had taken it.

    The modules' manifests are back by then, so that nothing seems to be missing.
    """
    with bed.worker():
        handle = await fleet.submit(ToolCall(tool_name="owls.nap_once", arguments={"seconds": 30}), owner, timeout=5)
        await wait_until(lambda: owls.running, "the module has the call")
        async with Redis.from_url(bed.redis_url) as redis:
            await redis.flushall()
            await fleet.modules.refresh()
            assert await redis.exists(bed.settings.keys.module_manifest("owls"))
        result = await handle.result(15)

    assert (result.error_code, result.effect_state) in {("timed_out", "unknown"), ("outcome_unknown", "unknown")}


async def test_an_agent_keeps_its_tools_when_redis_loses_its_data(
    bed: TestBed, fleet: ToolFleet, owner: Caller
) -> None:
    """After a reconnect to an empty Redis the modules are asked again, and until they have answered it has the old ones."""
    before = await fleet.tools(owner)
    async with Redis.from_url(bed.redis_url) as redis:
        await redis.flushall()
        await redis.client_kill_filter(_type="pubsub")
        stored = 0
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not stored:
                stored = await redis.exists("module_manifest:owls")
                assert await fleet.tools(owner) == before

    assert await fleet.tools(owner) == before


@pytest.mark.parametrize("fate", ["cancelled", "killed"])
async def test_a_first_call_without_an_end_shuts_nobody_out(
    fast_mode: None, bed: TestBed, owner: Caller, owls: ModuleServer, fate: str
) -> None:
    """A module that was away is reached again at once, although the first call that was let in never ended."""
    breaking = {"breaker_failures": 5, "breaker_seconds": 1, "visibility_timeout": 2}
    two = TestBed(bed.redis_url, (owls,), bed.folder, breaking)
    with two.worker() as worker:
        async with ToolFleet(settings=two.settings) as fleet:
            late = await fleet.call_many([ToolCall(tool_name="owls.brief_nap")] * 5, owner)
            assert {result.error_code for result in late} == {"timed_out"}
            first = await fleet.submit(LONG_NAP, owner)
            async with asyncio.timeout(PATIENCE_SECONDS):
                while await first.status() != "running":
                    if await first.status() == "done":
                        first = await fleet.submit(LONG_NAP, owner)
                    await asyncio.sleep(0.02)
            if fate == "cancelled":
                await first.cancel()
            else:
                worker.send_signal(signal.SIGKILL)
            with two.worker():
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while not (await fleet.call(ECHO, owner)).success:  # noqa: ASYNC110 - nothing says when
                        await asyncio.sleep(0.1)
