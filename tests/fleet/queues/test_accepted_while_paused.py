"""Calls that their module goes on with by itself are asked about while their queue is paused: what runs goes on."""

from collections.abc import Iterator

import pytest

from support.fleet import TestBed
from support.module_server import serve
from support.servers.hatchery import Hatchery, make_hatchery
from support.waiting import wait_until
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_cli.local.redis_server import redis_server

OWNER = Caller(user_id="ada", permission="owner", allowed_modules="*")


@pytest.fixture(scope="module")
def nest() -> Iterator[Hatchery]:
    hatchery = make_hatchery()
    with serve(hatchery.server):
        hatchery.start_anew()
        yield hatchery


@pytest.fixture(scope="module")
def bed(nest: Hatchery, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield TestBed(url, (nest.server,), tmp_path_factory.mktemp("logs"), {"fast_transport": True})


async def test_an_accepted_call_ends_while_its_queue_is_paused(bed: TestBed, nest: Hatchery) -> None:
    """Its worker goes on asking; nothing that waits is begun, and nothing is left behind."""
    nest.ends = 6.0
    async with ToolFleet(settings=bed.settings) as fleet:
        with bed.worker():
            call = await fleet.submit(ToolCall(tool_name="nest.hatch"), OWNER, timeout=60)
            await wait_until(lambda: nest.begun != [], "the module has it")
            await fleet.queues.pause("nest")
            waiting = await fleet.submit(ToolCall(tool_name="nest.hatch"), OWNER, timeout=60)
            result = await call.result(30)
            (one,) = await fleet.queues.list()
            assert (result.success, one.state, len(nest.begun)) == (True, "paused", 1)
            assert one.waiting
            await fleet.queues.resume("nest")
            assert (await waiting.result(30)).success
            (drained,) = await fleet.queues.drain("nest", wait_seconds=20)
            assert drained.is_empty
    assert len(nest.begun) == 2
