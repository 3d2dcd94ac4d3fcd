"""Hosts announce modules to a running fleet, and die: calls go on, and agents know what there is."""

import asyncio
from collections.abc import Iterator

import pytest

from support.fleet import TestBed
from support.hosts.announced_host import announced
from support.module_server import ModuleServer, serve
from support.modules.listed_modules import until_listed
from support.owls import make_module
from support.waiting import wait_until_answered
from support.worker_process import WorkerProcess
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.directory.entries import ModuleEntry
from toolfleet_registry.errors import OperationRefused
from toolfleet_registry.settings import Settings
from toolfleet_tasks.operations.module_changes import ModuleChanges

ADA = Caller(user_id="ada", permission="owner", allowed_modules="*")


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    """A fleet whose settings name no module."""
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield TestBed(url, (), tmp_path_factory.mktemp("logs"))


@pytest.fixture(scope="module")
def worker(bed: TestBed) -> Iterator[WorkerProcess]:
    with bed.worker() as running:
        yield running


@pytest.fixture
def larks() -> Iterator[ModuleServer]:
    with serve(make_module("larks")) as module:
        yield module


def agent(bed: TestBed) -> ToolFleet:
    return ToolFleet(settings=Settings(redis_url=bed.redis_url))


async def until_called(fleet: ToolFleet, name: str) -> None:
    async def is_called() -> bool:
        return (await fleet.call(ToolCall(tool_name=name), ADA, timeout=10)).success

    await wait_until_answered(is_called, f"{name} is called")


async def test_an_announced_module_is_called_as_any_other(
    bed: TestBed, worker: WorkerProcess, larks: ModuleServer
) -> None:
    """Agents that run already see it within a moment; nobody can add or remove it meanwhile."""
    async with agent(bed) as fleet:
        await until_listed(fleet, ADA)
        async with announced(bed.redis_url, "a", module="larks", url=larks.url):
            await until_listed(fleet, ADA, "larks")
            result = await fleet.call(ToolCall(tool_name="larks.echo", arguments={"a": 1}), ADA, timeout=10)
            async with ModuleChanges.of(bed.settings) as changes:
                for change in (changes.add(ModuleEntry(module="larks", url="http://x.test")), changes.remove("larks")):
                    with pytest.raises(OperationRefused, match="announced by its hosts"):
                        await change

    assert (result.success, result.result) == (True, {"a": 1})


async def test_a_call_waits_for_a_lone_host_that_starts_anew(bed: TestBed, worker: WorkerProcess) -> None:
    """While it is away its tools are listed, and the call ends at the host that came back, at another address."""
    async with agent(bed) as fleet:
        with serve(make_module("wrens")) as first:
            async with announced(bed.redis_url, "a", module="wrens", url=first.url):
                await until_called(fleet, "wrens.echo")
        await fleet.modules.refresh()
        assert "wrens.echo" in {tool.name for tool in await fleet.tools(ADA)}
        call = ToolCall(tool_name="wrens.echo", arguments={"a": 2})
        waiting = asyncio.create_task(fleet.call(call, ADA, timeout=20))
        with serve(make_module("wrens")) as second:
            async with announced(bed.redis_url, "b", module="wrens", url=second.url):
                result = await waiting

    assert (result.success, result.result) == (True, {"a": 2})
