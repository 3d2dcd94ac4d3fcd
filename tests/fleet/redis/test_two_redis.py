"""The broker is one Redis, and results are in another: calls leave over a line of their own."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from support.fleet import TestBed
from support.module_server import ModuleServer
from support.waiting import PATIENCE_SECONDS, wait_until
from support.worker_process import WorkerProcess
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_cli.local.redis_server import redis_server

ECHO = ToolCall(tool_name="owls.echo", arguments={"text": "hu"})
LONG_NAP = ToolCall(tool_name="owls.nap_once", arguments={"seconds": 30})


@pytest.fixture(scope="module")
def bed(owls: ModuleServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    folder = tmp_path_factory.mktemp("two")
    with redis_server(folder / "results") as results, redis_server(folder / "broker") as broker:
        (folder / "logs").mkdir()
        yield TestBed(results, (owls,), folder / "logs", {"broker_url": broker})


@pytest.fixture(scope="module")
def worker(bed: TestBed) -> Iterator[WorkerProcess]:
    with bed.worker() as worker:
        yield worker


@pytest.fixture
async def broker(bed: TestBed) -> AsyncIterator[Redis]:
    async with Redis.from_url(str(bed.settings.broker), decode_responses=True) as redis:
        yield redis


async def test_results_come_back(fleet: ToolFleet, owner: Caller, broker: Redis, bed: TestBed) -> None:
    """Many at once; the queues are in the one, the results in the other, and no announcement is missed."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        results = await fleet.call_many([ECHO] * 200, owner)
    async with Redis.from_url(bed.redis_url, decode_responses=True) as redis:
        ended = await redis.keys("toolfleet:call:*")

    assert all(result.success for result in results)
    assert len(ended) == 200
    assert await broker.keys("toolfleet:call:*") == []


async def test_a_running_call_can_be_cancelled(fleet: ToolFleet, owner: Caller, owls: ModuleServer) -> None:
    """Workers hear of it where they take their calls from."""
    handle = await fleet.submit(LONG_NAP, owner)
    await wait_until(lambda: owls.running, "the module has the call")
    await handle.cancel()

    assert (await handle.result(PATIENCE_SECONDS)).error_code == "cancelled"


async def test_without_its_broker_nothing_is_published(owls: ModuleServer, owner: Caller, tmp_path: Path) -> None:
    """Results could be had, but the call gets nowhere: the agent is told that nothing has happened."""
    with redis_server(tmp_path / "results") as results:
        with redis_server(tmp_path / "broker") as broker:
            fleet = ToolFleet(settings=TestBed(results, (owls,), tmp_path, {"broker_url": broker}).settings)
            await fleet.__aenter__()
        result = await fleet.call(ECHO, owner, timeout=2)
        await fleet.__aexit__()

    assert (result.success, result.effect_state, result.retryable) == (False, "none", True)
