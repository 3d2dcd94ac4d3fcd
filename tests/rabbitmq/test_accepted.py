"""Calls that their module goes on with by itself, where calls wait in RabbitMQ: it holds their message until they are asked for."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest

from support.fleet import TestBed
from support.module_server import serve
from support.servers.hatchery import HATCHED, Hatchery, make_hatchery
from support.servers.rabbitmq import RabbitMq
from support.waiting import wait_until
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_cli.local.redis_server import redis_server

HATCH = ToolCall(tool_name="nest.hatch")
QUICK = ToolCall(tool_name="nest.quick")
SECONDS = 40


@pytest.fixture
def nest() -> Iterator[Hatchery]:
    hatchery = make_hatchery()
    with serve(hatchery.server):
        yield hatchery


@pytest.fixture
def nests(broker: RabbitMq, nest: Hatchery, tmp_path: Path) -> Iterator[TestBed]:
    """The fleet of that module, at the same broker. Its Redis is its own: another fleet's agents would find its modules there."""
    (tmp_path / "redis").mkdir()
    with redis_server(tmp_path / "redis") as url:
        yield TestBed(url, (nest.server,), tmp_path, {"broker_url": broker.url, "calls_per_caller": 1000})


@pytest.fixture
async def agent(nests: TestBed) -> AsyncIterator[ToolFleet]:
    async with ToolFleet(settings=nests.settings) as fleet:
        yield fleet


async def test_they_hold_no_slot_and_end_once(
    nests: TestBed, agent: ToolFleet, nest: Hatchery, owner: Caller, broker: RabbitMq
) -> None:
    """Six of them leave both slots of a worker to others; each is begun once, and RabbitMQ keeps nothing of it."""
    with nests.worker(worker_concurrency=2):
        handles = [await agent.submit(HATCH, owner, timeout=120) for _ in range(6)]
        await wait_until(partial(nest.has_begun, 6), "all have begun", seconds=SECONDS)
        assert (await agent.call(QUICK, owner, timeout=SECONDS)).success
        nest.answer = HATCHED
        results = await asyncio.gather(*(handle.result(SECONDS) for handle in handles))
        await wait_until(lambda: broker.waiting("tools.nest") == 0, "nothing is left", seconds=SECONDS)

    assert [(result.result, result.audit.attempts) for result in results] == [("an owl", 1)] * 6
    assert len(nest.begun) == 6


async def test_a_worker_that_dies_between_two_questions_loses_nothing(
    nests: TestBed, agent: ToolFleet, nest: Hatchery, owner: Caller
) -> None:
    """RabbitMQ gives the message to another one, which asks on; nothing is begun again."""
    with nests.worker() as doomed:
        handle = await agent.submit(HATCH, owner, timeout=120)
        await wait_until(lambda: len(nest.asked) >= 2, "it is asked for", seconds=SECONDS)
        doomed.send_signal(signal.SIGKILL)
        doomed.wait()
    count = len(nest.asked)
    with nests.worker():
        await wait_until(lambda: len(nest.asked) > count, "another one asks", seconds=SECONDS)
        nest.answer = HATCHED
        result = await handle.result(SECONDS)

    assert (result.success, result.audit.attempts, len(nest.begun)) == (True, 1, 1)


async def test_nobody_wants_one_that_was_taken_back(
    nests: TestBed, agent: ToolFleet, nest: Hatchery, owner: Caller
) -> None:
    """Its module is told, once, though its message lies in RabbitMQ."""
    with nests.worker():
        handle = await agent.submit(HATCH, owner, timeout=120)
        await wait_until(lambda: nest.asked, "it goes on", seconds=SECONDS)
        await handle.cancel()
        result = await handle.result(SECONDS)
        await wait_until(lambda: nest.cancelled, "the module is told", seconds=SECONDS)

    assert (result.error_code, result.effect_state) == ("cancelled", "unknown")
    assert [question["handle"] for question in nest.cancelled] == nest.begun
