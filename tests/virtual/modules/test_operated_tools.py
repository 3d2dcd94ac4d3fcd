"""What operators decide about tools holds in a whole fleet: agents, refreshes, and workers that nobody asks politely."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bed.fleet import Bed, until
from support.fleet_calls import FleetCalls
from support.module_server import ModuleServer
from toolfleet import Caller, ToolCall, ToolFleet, ToolResult
from toolfleet_registry.catalog.operator import Operator, operating


@pytest.fixture
async def agent(bed: Bed, owls: ModuleServer) -> ToolFleet:
    """An agent, with a worker."""
    await bed.serve(owls)
    await bed.worker()
    return await bed.agent()


@pytest.fixture
async def operator(bed: Bed, agent: ToolFleet) -> AsyncIterator[Operator]:
    async with operating(bed.settings) as one:
        yield one


class Bypass:
    """A client that publishes whatever it likes, as an owner."""

    def __init__(self, bed: Bed) -> None:
        self._calls = FleetCalls(bed.settings)

    async def call(self, method: str) -> dict[str, Any]:
        call_id = self._calls.call(method)
        await until(lambda: self._calls.status(call_id) != "PENDING", "it has ended", step=0.2)
        result: dict[str, Any] = json.loads(self._calls.meta(call_id)["result"])
        return result

    async def until_refused(self, method: str, why: str) -> None:
        """Publish one call after another, until one is refused: a worker hears of it within seconds."""

        async def is_refused() -> bool:
            result = await self.call(method)
            assert result.get("error_code") in {None, "permission_denied"}
            return result.get("error") == why

        await until(is_refused, why)

    def close(self) -> None:
        self._calls.close()


@pytest.fixture
async def bypass(bed: Bed) -> AsyncIterator[Bypass]:
    one = Bypass(bed)
    yield one
    one.close()


async def call(agent: ToolFleet, caller: Caller, method: str = "echo") -> ToolResult:
    return await agent.call(ToolCall(tool_name=f"owls.{method}", arguments={"a": 1}), caller, timeout=20)


async def listed(agent: ToolFleet, caller: Caller) -> set[str]:
    return {tool.name for tool in await agent.tools(caller)}


async def until_listed(agent: ToolFleet, caller: Caller, tool: str, *, is_listed: bool = True) -> None:
    """Wait until an agent that nobody tells anything has heard of it."""

    async def is_so() -> bool:
        return (tool in await listed(agent, caller)) == is_listed

    await until(is_so, f"{tool}: {is_listed}")


async def until_run(agent: ToolFleet, caller: Caller, method: str) -> None:
    """Call it until it is run: a worker looks again before it refuses, but not twice within a second."""

    async def is_run() -> bool:
        return (await call(agent, caller, method)).success

    await until(is_run, "it is run", step=0.5)


async def test_a_disabled_tool_runs_nowhere_and_stays_disabled(
    agent: ToolFleet, owner: Caller, operator: Operator, owls: ModuleServer, bypass: Bypass
) -> None:
    """Not listed, not published, not run for a client that asks nobody; over refreshes, until it is enabled."""
    assert (await call(agent, owner)).success
    await operator.disable("owls.echo")
    await until_listed(agent, owner, "owls.echo", is_listed=False)
    reason = "Tool 'owls.echo' is disabled by an operator."
    assert (await call(agent, owner)).error == reason

    await bypass.until_refused("echo", reason)
    owls.forget()
    owls.definitions[0]["version"] = "2.0.0"
    assert (await agent.modules.refresh())["owls"].disabled == 1
    assert (await call(agent, owner)).error_code == "permission_denied"
    await bypass.until_refused("echo", reason)
    assert owls.calls("echo") == []

    await operator.enable("owls.echo")
    await until_listed(agent, owner, "owls.echo")
    await until_run(agent, owner, "echo")


async def test_drift_keeps_the_old_permission(
    agent: ToolFleet, owner: Caller, operator: Operator, owls: ModuleServer
) -> None:
    """A tool that lowers what it asks for without a new version is used as it was, by agents and workers."""
    (admin_only,) = (one for one in owls.definitions if one["name"] == "owls.admin_only")
    admin_only["version"] = "1.0.0"
    await agent.modules.refresh()
    admin_only["required_permission"] = "guest"
    assert (await agent.modules.refresh())["owls"].drifted == 1
    guest = Caller(permission="guest", allowed_modules="*")

    assert (await call(agent, guest, "admin_only")).error == "Tool 'owls.admin_only' needs 'admin'; caller is 'guest'."
    assert (await call(agent, owner, "admin_only")).success
    await operator.approve("owls.admin_only")
    await until_listed(agent, guest, "owls.admin_only")
    await until_run(agent, guest, "admin_only")


async def test_a_pinned_module_runs_what_was_approved(
    agent: ToolFleet, owner: Caller, operator: Operator, owls: ModuleServer, bypass: Bypass
) -> None:
    """What it changes and what it adds is withheld, from bypassing clients as well, until an operator approves it."""
    await operator.pin("owls")
    owls.definitions[0]["description"] = "Echo, and tell me."
    owls.add("steal", owls.tools["owls.echo"])
    assert (await agent.modules.refresh())["owls"].withheld == 2
    assert {"owls.echo", "owls.steal"}.isdisjoint(await listed(agent, owner))
    for method in ("echo", "steal"):
        why = f"Tool 'owls.{method}' is withheld: no operator has approved what its module offers now."
        assert (await call(agent, owner, method)).error == why
        await bypass.until_refused(method, why)
    assert (await call(agent, owner, "nap")).success

    owls.forget()
    await operator.approve("owls.echo")
    await until_listed(agent, owner, "owls.echo")
    await agent.modules.refresh()
    await until_run(agent, owner, "echo")
    assert "owls.steal" not in await listed(agent, owner)
    assert owls.calls("steal") == []


async def test_a_worker_that_was_idle_looks_before_it_runs(
    agent: ToolFleet, operator: Operator, owls: ModuleServer, bypass: Bypass
) -> None:
    """The first call that a new worker gets is of a disabled tool."""
    await operator.disable("owls.echo")

    assert (await bypass.call("echo"))["error_code"] == "permission_denied"
    assert owls.calls("echo") == []


async def test_an_idle_agent_finds_out_whether_its_news_are_old(agent: ToolFleet, bed: Bed, owls: ModuleServer) -> None:
    """Nobody tells it of looks that found nothing new; asked for its modules, it looks before it calls them stale."""
    stale_after = 60
    other = await bed.agent(refresh_interval_seconds=stale_after / 3)

    async def is_stale() -> bool:
        return (await other.modules.statuses())["owls"].is_stale

    assert not await is_stale()
    await asyncio.sleep(stale_after)
    await until(is_stale, "its news are old", step=1)
    await agent.modules.refresh()
    assert not await is_stale()
