"""What happens to paused queues when processes die, Redis freezes or is started again, and operators cannot decide."""

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from support.fleet import TestBed, own_bed
from support.module_server import ModuleServer
from support.waiting import PATIENCE_SECONDS, wait_until, wait_until_answered
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_cli.local.tcp_ports import held_port

ADA = Caller(user_id="ada", permission="owner", allowed_modules="*")
BOB = Caller(user_id="bob", permission="owner", allowed_modules="*")


@pytest.fixture
def bed(owls: ModuleServer, tmp_path: Path) -> Iterator[TestBed]:
    """A Redis of this test's own, which knows after two seconds that a worker has died."""
    owls.forget()
    with own_bed(owls, tmp_path, visibility_timeout=2) as bed:
        yield bed


@pytest.fixture
async def agent(bed: TestBed) -> AsyncIterator[ToolFleet]:
    """An agent, before there is any worker."""
    async with ToolFleet(settings=bed.settings) as fleet:
        yield fleet


def nap(seconds: float, name: str = "") -> ToolCall:
    return ToolCall(tool_name="owls.nap_once", arguments={"seconds": seconds, "name": name})


async def waiting_in(fleet: ToolFleet) -> int:
    (one,) = [queue for queue in await fleet.queues.list() if queue.module == "owls"]
    assert one.waiting is not None
    return one.waiting


async def until_waiting(fleet: ToolFleet, count: int) -> None:
    async def do_wait() -> bool:
        return await waiting_in(fleet) == count

    await wait_until_answered(do_wait, f"{count} calls wait", seconds=PATIENCE_SECONDS)


@contextlib.asynccontextmanager
async def frozen(bed: TestBed) -> AsyncGenerator[None]:
    async with Redis.from_url(bed.redis_url) as redis:
        pid = int((await redis.info("server"))["process_id"])
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_a_worker_that_is_killed_loses_nothing_that_waits(
    bed: TestBed, agent: ToolFleet, owls: ModuleServer
) -> None:
    """What ran in it is unknown; what waited is run by the next one, once, and only when the queue is resumed."""
    with bed.worker(worker_concurrency=20) as worker:
        running = await agent.submit(nap(60, "running"), ADA, timeout=20)
        await wait_until(lambda: owls.calls("nap_once") != [], "it runs")
        await agent.queues.pause("owls")
        waiting = [await agent.submit(nap(0, f"waits-{i}"), ADA, timeout=90) for i in range(10)]
        worker.send_signal(signal.SIGKILL)
    with bed.worker():
        assert (await running.result(3 * PATIENCE_SECONDS)).effect_state == "unknown"
        assert len(owls.calls("nap_once")) == 1
        await agent.queues.resume("owls")
        results = [await each.result(3 * PATIENCE_SECONDS) for each in waiting]
        assert [each for each in results if not each.success] == []
    assert set(Counter(owls.call_ids("nap_once")).values()) == {1}


async def test_a_frozen_redis_resumes_nothing(bed: TestBed, agent: ToolFleet, owls: ModuleServer) -> None:
    """Workers that run go on with what they know, and one that starts meanwhile takes nothing."""
    with bed.worker():
        await agent.queues.pause("owls")
        waiting = [await agent.submit(nap(0), ADA, timeout=90) for _ in range(5)]
        async with frozen(bed):
            await asyncio.sleep(7)  # longer than a poll of the states waits for its answer
        await until_waiting(agent, 5)
        with bed.worker():
            await until_waiting(agent, 5)
            assert owls.calls("nap_once") == []
            await agent.queues.resume("owls")
            assert [(await each.result(3 * PATIENCE_SECONDS)).success for each in waiting] == [True] * 5
    assert set(Counter(owls.call_ids("nap_once")).values()) == {1}


async def test_a_pause_outlives_a_redis_that_is_started_again(owls: ModuleServer, tmp_path: Path) -> None:
    """On the same data, and so does what waits."""
    (tmp_path / "logs").mkdir()
    owls.forget()
    with held_port() as port, contextlib.ExitStack() as servers:
        url = servers.enter_context(redis_server(tmp_path / "redis", port=port))
        bed = TestBed(url, (owls,), tmp_path / "logs")
        async with ToolFleet(settings=bed.settings) as agent:
            with bed.worker():
                await agent.queues.pause("owls", reason="deploy")
                call = await agent.submit(nap(0), ADA, timeout=120)
                servers.close()
                servers.enter_context(redis_server(tmp_path / "redis", port=port))
                await until_waiting(agent, 1)
                (one,) = [queue for queue in await agent.queues.list() if queue.module == "owls"]
                assert (one.state, one.reason, owls.calls("nap_once")) == ("paused", "deploy", [])
                await agent.queues.resume("owls")
                assert (await call.result(3 * PATIENCE_SECONDS)).success
    assert len(owls.calls("nap_once")) == 1


async def test_callers_have_their_turns_after_a_pause(bed: TestBed, owls: ModuleServer) -> None:
    """Who has called most while it was paused is not before all others: each may have so many in the queue only."""
    fair = bed.settings.model_copy(update={"calls_per_caller": 5})
    async with ToolFleet(settings=fair) as agent:
        await agent.queues.pause("owls")
        with bed.worker(worker_concurrency=1, calls_per_caller=5):
            many = [
                await agent.submit(nap(0, "ada"), ADA, timeout=120, waits_for_turn=True, waits_for_worker=True)
                for _ in range(5)
            ]
            more = [asyncio.create_task(agent.call(nap(0, "ada"), ADA, timeout=120)) for _ in range(20)]
            few = [await agent.submit(nap(0, "bob"), BOB, timeout=120) for _ in range(2)]
            await agent.queues.resume("owls")
            assert [(await each.result(3 * PATIENCE_SECONDS)).success for each in (*many, *few)] == [True] * 7
            assert [(await each).success for each in more] == [True] * 20
    order = [call["arguments"]["name"] for call in owls.calls("nap_once")]
    assert max(index for index, name in enumerate(order) if name == "bob") < 5 + 2 + 5
