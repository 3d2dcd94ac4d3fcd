"""Hosts announce modules to a running fleet, and die: calls go on, and agents know what there is."""

import asyncio

import pytest

from bed.fleet import Bed, until
from support.hosts.announced_host import announced
from support.modules.listed_modules import until_listed
from support.owls import make_module
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_registry.directory.entries import ModuleEntry
from toolfleet_registry.errors import OperationRefused
from toolfleet_registry.settings import Settings
from toolfleet_tasks.operations.changes import ModuleChanges

ADA = Caller(user_id="ada", permission="owner", allowed_modules="*")


@pytest.fixture
async def fleet(bed: Bed) -> ToolFleet:
    """An agent of a fleet whose settings name no module."""
    await bed.worker()
    return await bed.agent()


async def host(bed: Bed, name: str) -> str:
    """Serve a module that the settings do not name. Returns its URL."""
    module = make_module(name)
    await bed.serve(module)
    return module.url


async def test_an_announced_module_is_called_as_any_other(bed: Bed, fleet: ToolFleet) -> None:
    """Agents that run already see it within a moment; nobody can add or remove it meanwhile."""
    await until_listed(fleet, ADA)
    async with announced(bed.redis.url, "a", module="larks", url=await host(bed, "larks")):
        await until_listed(fleet, ADA, "larks")
        result = await fleet.call(ToolCall(tool_name="larks.echo", arguments={"a": 1}), ADA)
        async with ModuleChanges.of(Settings(redis_url=bed.redis.url)) as changes:
            for change in (changes.add(ModuleEntry(module="larks", url="http://x.test")), changes.remove("larks")):
                with pytest.raises(OperationRefused, match="announced by its hosts"):
                    await change

    assert (result.success, result.result) == (True, {"a": 1})


async def test_a_call_waits_for_a_lone_host_that_starts_anew(bed: Bed, fleet: ToolFleet) -> None:
    """While it is away its tools are listed, and the call ends at the host that came back, at another address."""
    echo = ToolCall(tool_name="wrens.echo", arguments={"a": 2})

    async def is_called() -> bool:
        return (await fleet.call(echo, ADA)).success

    async with announced(bed.redis.url, "a", module="wrens", url=await host(bed, "wrens")):
        await until(is_called, "it is called")
    await fleet.modules.refresh()
    assert "wrens.echo" in {tool.name for tool in await fleet.tools(ADA)}
    waiting = asyncio.create_task(fleet.call(echo, ADA))
    await asyncio.sleep(5)
    async with announced(bed.redis.url, "b", module="wrens", url=await host(bed, "wrens")):
        result = await waiting

    assert (result.success, result.result) == (True, {"a": 2})


async def test_a_module_that_is_added_again_is_called_at_once(bed: Bed, fleet: ToolFleet) -> None:
    """A worker that still ends the calls of a removed module reads the directory again before it refuses one."""
    echo = ToolCall(tool_name="larks.echo", arguments={"a": 1})
    larks = ModuleEntry(module="larks", url=await host(bed, "larks"))
    async with ModuleChanges.of(Settings(redis_url=bed.redis.url)) as changes:
        await changes.add(larks)
        await until_listed(fleet, ADA, "larks")
        await changes.remove("larks", drain_seconds=0)
        await until_listed(fleet, ADA)
        await asyncio.sleep(2)  # the worker consumes its queue, to end what comes
        await changes.add(larks)
        await until_listed(fleet, ADA, "larks")
        result = await fleet.call(echo, ADA, waits_for_worker=True)

    assert (result.success, result.result) == (True, {"a": 1}), result.error
