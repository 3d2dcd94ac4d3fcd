"""Modules come to a running fleet and leave it, and an agent needs the URL of Redis and nothing else."""

import asyncio
from collections.abc import Iterator

import pytest
import structlog

from support.fleet import TestBed
from support.fleet_calls import FleetCalls
from support.module_server import ModuleServer, serve
from support.modules.listed_modules import until_listed
from support.owls import make_module
from support.waiting import PATIENCE_SECONDS, wait_until_answered
from support.worker_process import WorkerProcess
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.directory.directory import ModuleDirectory
from toolfleet_registry.directory.entries import ModuleEntry
from toolfleet_registry.errors import OperationRefused
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.settings import Settings
from toolfleet_tasks.operations.changes import ModuleChanges
from toolfleet_tasks.resources.audit import AuditReader

ADA = Caller(user_id="ada", permission="owner", allowed_modules="*")


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    """A fleet whose settings name no module."""
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield TestBed(url, (), tmp_path_factory.mktemp("logs"))


@pytest.fixture(scope="module")
def bare(empty: TestBed) -> Iterator[WorkerProcess]:
    with empty.worker() as worker:
        yield worker


@pytest.fixture
def larks() -> Iterator[ModuleServer]:
    with serve(make_module("larks")) as module:
        yield module


@pytest.fixture
def wrens() -> Iterator[ModuleServer]:
    with serve(make_module("wrens")) as module:
        yield module


def agent(bed: TestBed) -> ToolFleet:
    return ToolFleet(settings=Settings(redis_url=bed.redis_url))


async def change(bed: TestBed, module: ModuleServer | None = None, *, remove: str = "", drain: float = 0) -> None:
    async with ModuleChanges.of(Settings(redis_url=bed.redis_url)) as changes:
        if module is not None:
            await changes.add(ModuleEntry(module=module.name, url=module.url))
        else:
            await changes.remove(remove, drain_seconds=drain)


async def until_fed(bed: TestBed, module: str) -> None:
    """Wait until a worker has said that its settings name the module: one of the same settings that has just ended took that back."""
    async with async_client(bed.redis_url) as redis:
        directory = ModuleDirectory(redis, bed.settings)

        async def is_fed() -> bool:
            return module in await directory.fed()

        await wait_until_answered(is_fed, "a worker says it again")


async def test_a_module_comes_and_goes_while_everything_runs(
    empty: TestBed, bare: WorkerProcess, larks: ModuleServer
) -> None:
    """An agent that knows where Redis is lists its tools and calls one; after its removal it is unknown."""
    async with agent(empty) as fleet:
        await until_listed(fleet, ADA)
        await change(empty, larks)
        await until_listed(fleet, ADA, "larks")
        result = await fleet.call(ToolCall(tool_name="larks.echo", arguments={"a": 1}), ADA, timeout=10)
        assert (result.success, result.result) == (True, {"a": 1})

        await change(empty, remove="larks")
        await until_listed(fleet, ADA)
        result = await fleet.call(ToolCall(tool_name="larks.echo"), ADA)
        assert (result.error_code, result.effect_state) == ("unknown_module", "none")


async def test_an_agent_needs_the_url_of_redis_and_nothing_else(bed: TestBed, worker: WorkerProcess) -> None:
    """It lists and calls what the settings of workers name, with their lanes and limits."""
    async with agent(bed) as fleet:
        await until_listed(fleet, ADA, "owls")
        result = await fleet.call(ToolCall(tool_name="owls.echo", arguments={"a": 1}), ADA, timeout=10)
        statuses = await fleet.modules.refresh()

    assert (result.success, result.result) == (True, {"a": 1})
    assert statuses["owls"].ok


async def test_an_agent_that_finds_no_fleet_looks_itself_and_says_so(redis_url: str, larks: ModuleServer) -> None:
    """Nobody else would; where workers are, it never does."""
    settings = Settings(redis_url=redis_url, module_services={"larks": larks.url})
    with structlog.testing.capture_logs() as logs:
        async with ToolFleet(settings=settings) as fleet:
            await until_listed(fleet, ADA, "larks")

    assert [line["modules"] for line in logs if line["event"] == "agent_looks_itself"] == [1]


async def test_agents_that_want_a_look_at_once_share_one(
    empty: TestBed, bare: WorkerProcess, larks: ModuleServer
) -> None:
    """The worker asks each module once for all of them, and none of the agents asks it."""
    await change(empty, larks)
    async with agent(empty) as one, agent(empty) as other:
        await until_listed(one, ADA, "larks")
        larks.looks = 0
        found = await asyncio.gather(*(fleet.modules.refresh() for fleet in (one, other, one, other)))
        await change(empty, remove="larks")

    assert all(statuses["larks"].ok for statuses in found)
    assert 1 <= larks.looks <= 2


async def test_what_waits_for_a_removed_module_is_run_or_ended(
    empty: TestBed, bare: WorkerProcess, wrens: ModuleServer
) -> None:
    """Until it is drained it runs; afterwards it ends with a result that says so, and nothing of it is executed."""
    calls = FleetCalls(empty.settings)
    await change(empty, wrens)
    async with agent(empty) as fleet:
        await until_listed(fleet, ADA, "wrens")
        await change(empty, remove="wrens", drain=600)
        await until_listed(fleet, ADA)
    (drained,) = await asyncio.to_thread(calls.results, calls.publish("wrens.echo", effect="read"))
    await change(empty, wrens)
    await change(empty, remove="wrens")
    ended, executed = drained, 0
    async with asyncio.timeout(2 * PATIENCE_SECONDS):
        while ended["success"]:  # within a look of the worker's
            executed = len(wrens.requests)
            (ended,) = await asyncio.to_thread(calls.results, calls.publish("wrens.echo", effect="once"))
    calls.close()

    assert drained["success"]
    assert (ended["error_code"], ended["effect_state"]) == ("unknown_module", "none")
    assert ended["error"] == "Module 'wrens' was removed before this call began."
    assert len(wrens.requests) == executed


async def test_adding_and_removing_are_in_the_audit(empty: TestBed, larks: ModuleServer) -> None:
    """With who did it, where the module is, and in which lane."""
    async with AuditReader.of(empty.settings) as reader:
        await change(empty, larks)
        await change(empty, remove="larks")
        lines = [line for line in (await reader.page(100)).lines if "change" in line][1::-1]

    assert [(line["change"], line["tool"], line["url"]) for line in lines] == [
        ("module_added", "larks", larks.url),
        ("module_removed", "larks", larks.url),
    ]


async def test_what_may_not_be_added_is_refused(
    empty: TestBed, larks: ModuleServer, bed: TestBed, worker: WorkerProcess
) -> None:
    """A metadata address, another address of a module that is there, a name of the settings of workers, and the fleet's own."""
    await until_fed(bed, "owls")
    await change(empty, larks)
    refused = {
        "169.254.169.254": (empty, ModuleEntry(module="meta", url="http://169.254.169.254/latest")),
        "is at": (empty, ModuleEntry(module="larks", url="http://127.0.0.1:1")),
        "in the settings of workers": (bed, ModuleEntry(module="owls", url="http://127.0.0.1:1")),
        "the fleet's own": (empty, ModuleEntry(module="local", url="http://127.0.0.1:1")),
    }
    for reason, (where, entry) in refused.items():
        async with ModuleChanges.of(Settings(redis_url=where.redis_url)) as changes:
            with pytest.raises(OperationRefused, match=reason):
                await changes.add(entry)
    await change(empty, remove="larks")


@pytest.mark.slow
async def test_a_worker_of_an_empty_lane_waits_for_modules(empty: TestBed, larks: ModuleServer) -> None:
    """It serves the first one that is added for its lane."""
    settings = empty.settings.model_copy(update={"key_prefix": "slow:"})
    with empty.worker(lane="slow", key_prefix="slow:"):
        async with ModuleChanges.of(settings) as changes, ToolFleet(settings=settings) as fleet:
            await changes.add(ModuleEntry(module="larks", url=larks.url, slow=True, timeout_seconds=50))
            await until_listed(fleet, ADA, "larks")
            handle = await fleet.submit(ToolCall(tool_name="larks.echo", arguments={"a": 1}), ADA)
            result = await handle.result()

    assert (result.success, result.result) == (True, {"a": 1})
