"""What operators decide about tools holds in a whole fleet: agents, refreshes, and workers that nobody asks politely."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from support.fleet import TestBed
from support.fleet_calls import FleetCalls
from support.module_server import ModuleServer, serve
from support.owls import make_module
from support.waiting import PATIENCE_SECONDS
from support.worker_process import WorkerProcess
from toolfleet import Caller, ToolCall, ToolFleet, ToolResult
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.catalog.operator import Operator, operating


@pytest.fixture
def module() -> Iterator[ModuleServer]:
    with serve(make_module()) as served:
        yield served


@pytest.fixture
def own_bed(module: ModuleServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield TestBed(url, (module,), tmp_path_factory.mktemp("logs"))


@pytest.fixture
def own_worker(own_bed: TestBed) -> Iterator[WorkerProcess]:
    with own_bed.worker() as worker:
        yield worker


@pytest.fixture
async def agent(own_bed: TestBed, own_worker: WorkerProcess) -> AsyncIterator[ToolFleet]:
    async with ToolFleet(settings=own_bed.settings) as fleet:
        yield fleet


@pytest.fixture
async def operator(own_bed: TestBed, agent: ToolFleet) -> AsyncIterator[Operator]:
    async with operating(own_bed.settings) as one:
        yield one


@pytest.fixture
def bypass(own_bed: TestBed) -> Iterator[FleetCalls]:
    """A client that publishes whatever it likes, as an owner."""
    calls = FleetCalls(own_bed.settings)
    yield calls
    calls.close()


async def call(agent: ToolFleet, owner: Caller, method: str = "echo") -> ToolResult:
    return await agent.call(ToolCall(tool_name=f"owls.{method}", arguments={"a": 1}), owner, timeout=20)


async def listed(agent: ToolFleet, owner: Caller) -> set[str]:
    return {tool.name for tool in await agent.tools(owner)}


async def until_listed(agent: ToolFleet, owner: Caller, *, without: str = "", also: str = "") -> None:
    """Wait until an agent that nobody tells anything has heard of it."""
    names = {without}
    async with asyncio.timeout(PATIENCE_SECONDS):
        while without in names or (also and also not in names):
            names = await listed(agent, owner)
            await asyncio.sleep(0)


async def until_refused(bypass: FleetCalls, method: str, why: str) -> None:
    """Publish one call after another, until one is refused: a worker hears of it within seconds."""
    result: dict[str, Any] = {}
    async with asyncio.timeout(30):
        while result.get("error_code") != "permission_denied":
            (result,) = await asyncio.to_thread(lambda: bypass.results(bypass.call(method)))
    assert result["error"] == why


async def until_run(agent: ToolFleet, caller: Caller, method: str) -> None:
    """Call it until it is run: a worker looks again before it refuses, but not twice within a second."""
    result: ToolResult | None = None
    async with asyncio.timeout(30):
        while result is None or not result.success:
            result = await call(agent, caller, method)


async def test_a_disabled_tool_runs_nowhere_and_stays_disabled(
    agent: ToolFleet, owner: Caller, operator: Operator, module: ModuleServer, bypass: FleetCalls
) -> None:
    """Not listed, not published, not run for a client that asks nobody; over refreshes, until it is enabled."""
    assert (await call(agent, owner)).success
    await operator.disable("owls.echo")
    await until_listed(agent, owner, without="owls.echo")
    reason = "Tool 'owls.echo' is disabled by an operator."
    assert (await call(agent, owner)).error == reason

    await until_refused(bypass, "echo", reason)
    module.forget()
    module.definitions[0]["version"] = "2.0.0"
    statuses = await agent.modules.refresh()
    assert statuses["owls"].disabled == 1
    assert (await call(agent, owner)).error_code == "permission_denied"
    await until_refused(bypass, "echo", reason)
    assert module.calls("echo") == []

    await operator.enable("owls.echo")
    await until_listed(agent, owner, also="owls.echo")
    await until_run(agent, owner, "echo")


async def test_drift_keeps_the_old_permission(
    agent: ToolFleet, owner: Caller, operator: Operator, module: ModuleServer, bypass: FleetCalls
) -> None:
    """A tool that lowers what it asks for without a new version is used as it was, by agents and workers."""
    (admin_only,) = (one for one in module.definitions if one["name"] == "owls.admin_only")
    admin_only["version"] = "1.0.0"
    await agent.modules.refresh()
    admin_only["required_permission"] = "guest"
    assert (await agent.modules.refresh())["owls"].drifted == 1
    guest = Caller(permission="guest", allowed_modules="*")

    assert (await call(agent, guest, "admin_only")).error == "Tool 'owls.admin_only' needs 'admin'; caller is 'guest'."
    assert (await call(agent, owner, "admin_only")).success
    await operator.approve("owls.admin_only")
    await until_listed(agent, guest, also="owls.admin_only")
    await until_run(agent, guest, "admin_only")


async def test_a_pinned_module_runs_what_was_approved(
    agent: ToolFleet, owner: Caller, operator: Operator, module: ModuleServer, bypass: FleetCalls
) -> None:
    """What it changes and what it adds is withheld, from bypassing clients as well, until an operator approves it."""
    await operator.pin("owls")
    module.definitions[0]["description"] = "Echo, and tell me."
    module.add("steal", module.tools["owls.echo"])
    assert (await agent.modules.refresh())["owls"].withheld == 2
    assert {"owls.echo", "owls.steal"}.isdisjoint(await listed(agent, owner))
    for method in ("echo", "steal"):
        why = f"Tool 'owls.{method}' is withheld: no operator has approved what its module offers now."
        assert (await call(agent, owner, method)).error == why
        await until_refused(bypass, method, why)
    assert (await call(agent, owner, "nap")).success

    module.forget()
    await operator.approve("owls.echo")
    await until_listed(agent, owner, also="owls.echo")
    await agent.modules.refresh()
    await until_run(agent, owner, "echo")
    assert "owls.steal" not in await listed(agent, owner)
    assert module.calls("steal") == []


async def test_a_worker_that_was_idle_looks_before_it_runs(
    agent: ToolFleet, own_bed: TestBed, operator: Operator, module: ModuleServer
) -> None:
    """The first call that a new worker gets is of a disabled tool."""
    await operator.disable("owls.echo")
    bypass = FleetCalls(own_bed.settings)
    try:
        (result,) = await asyncio.to_thread(lambda: bypass.results(bypass.call("echo")))
    finally:
        bypass.close()

    assert result["error_code"] == "permission_denied"
    assert module.calls("echo") == []


async def test_an_idle_agent_finds_out_whether_its_news_are_old(
    agent: ToolFleet, own_bed: TestBed, module: ModuleServer, owner: Caller
) -> None:
    """Nobody tells it of looks that found nothing new; asked for its modules, it looks before it calls them stale."""
    short = own_bed.settings.model_copy(update={"manifest_stale_seconds": 4})
    async with ToolFleet(settings=short) as other:
        is_stale = False
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not is_stale:
                is_stale = (await other.modules.statuses())["owls"].is_stale
                await asyncio.sleep(0)
        await agent.modules.refresh()
        assert not (await other.modules.statuses())["owls"].is_stale
