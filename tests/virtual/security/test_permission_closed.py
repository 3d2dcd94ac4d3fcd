"""A worker runs no call of which it does not know who may make it: whatever it has to ask, and whoever does not answer."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest

from bed.fleet import Bed, until
from support.fleet_calls import FleetCalls
from support.module_server import ModuleServer
from support.owls import echo
from toolfleet import Caller, ToolCall, ToolResult
from toolfleet_registry.catalog.operator import operating
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.control.fleet_tasks import refresh_manifests

GUEST = Caller(permission="guest", allowed_modules="*")
OWNER = Caller(permission="owner", allowed_modules="*")
WORKERS = 2
CALLS = 12


def module(name: str, *, is_mute: bool = False) -> ModuleServer:
    served = ModuleServer(name, is_mute=is_mute)
    served.add("guarded", echo, effect="once", required_permission="owner")
    served.add("open", echo, effect="once")
    served.add("disabled", echo, effect="once")
    return served


@dataclass(frozen=True)
class Stage:
    """A fleet whose manifests have all expired, and workers that were started after that.

    The registry keeps what `kept` and `gone` offered; of these `gone` does not answer any more. Of `fresh` and `mute`
    nobody has heard, as where an earlier release has written the registry, and `mute` does not say what it offers.
    """

    bed: Bed
    calls: FleetCalls
    modules: dict[str, ModuleServer]

    async def end_of(self, tool_name: str, caller: Caller = OWNER, **fields: Any) -> ToolResult:
        """How a call ends that nobody but a worker has judged."""
        return await end_of(self.bed, self.calls.publish(tool_name, caller=caller, effect="once", **fields))

    def ran(self, tool_name: str) -> int:
        name, _, method = tool_name.partition(".")
        return len(self.modules[name].calls(method))


async def end_of(bed: Bed, call_id: str) -> ToolResult:
    key = Keys().result(call_id)
    await until(lambda: bed.ask("EXISTS", key), "the call has ended")
    return ToolResult.model_validate_json(json.loads(bed.ask("GET", key))["result"])


async def take_in_and_disable(bed: Bed, modules: Iterable[ModuleServer]) -> None:
    """As a fleet does it for months; then beat is away for hours."""
    assert await refresh_manifests(bed.settings)
    async with operating(bed.settings) as operator:
        for name in ("kept", "gone"):
            await operator.disable(f"{name}.disabled")
    assert bed.ask("DEL", *(Keys().module_manifest(served.name) for served in modules)) == 2
    bed.ask("HDEL", Keys().registry.manifests, "fresh")


@pytest.fixture
async def stage(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    names = ("kept", "gone", "fresh", "mute")
    served = {name: module(name, is_mute=name in {"mute", "fresh"}) for name in names}
    monkeypatch.setattr("toolfleet_tasks.ledger.parameters.BREAKER_FAILURES", 1000)
    await bed.serve(*served.values())
    await take_in_and_disable(bed, served.values())
    served["gone"].is_mute, served["fresh"].is_mute = True, False
    for _ in range(WORKERS):
        await bed.worker()
    for each in served.values():
        each.looks = 0
    with closing(FleetCalls(bed.settings)) as calls:
        yield Stage(bed, calls, served)


async def test_what_is_disabled_stays_disabled_without_a_manifest(stage: Stage) -> None:
    """For a worker that has never seen one: the registry says so, and lasts."""
    for tool_name in ("kept.disabled", "gone.disabled"):
        result = await stage.end_of(tool_name)

        assert result.error == f"Tool {tool_name!r} is disabled by an operator."
        assert (result.error_code, result.effect_state) == ("permission_denied", "none")
        assert stage.ran(tool_name) == 0


async def test_what_operators_say_later_holds_as_well(stage: Stage) -> None:
    """Workers that go by what the registry keeps hear of it, without a manifest."""
    assert (await stage.end_of("gone.guarded")).success
    async with operating(stage.bed.settings) as operator:
        await operator.disable("gone.guarded")

        async def is_refused() -> bool:
            return (await stage.end_of("gone.guarded")).error_code == "permission_denied"

        await until(is_refused, "workers have heard of it")
        await operator.enable("gone.guarded")


async def test_an_expired_manifest_refuses_nobody_whom_it_allowed(stage: Stage) -> None:
    """And lets nobody in: what the registry keeps of it holds, and no module is asked."""
    before = stage.modules["gone"].looks
    assert (await stage.end_of("gone.open", GUEST)).success
    assert (await stage.end_of("gone.guarded", GUEST)).error_code == "permission_denied"
    assert stage.modules["gone"].looks == before


async def test_a_module_that_nobody_knows_is_asked_once(stage: Stage) -> None:
    """By one worker for all: its calls wait for that, and then the rule decides."""
    callers = [GUEST, OWNER] * (CALLS // 2)
    results = await asyncio.gather(*(stage.end_of("fresh.guarded", caller) for caller in callers))

    assert [result.success for result in results] == [False, True] * (CALLS // 2)
    assert {result.error_code for result in results} == {"permission_denied", None}
    assert stage.ran("fresh.guarded") == CALLS // 2
    assert stage.modules["fresh"].looks == 1


async def test_a_tool_that_its_module_does_not_offer_is_not_run(stage: Stage) -> None:
    """The worker asks the module, and knows then."""
    result = await stage.end_of("fresh.secret")

    assert (result.error_code, result.effect_state, result.retryable) == ("unknown_tool", "none", False)
    assert stage.ran("fresh.secret") == 0


async def test_a_call_ends_as_busy_if_nobody_can_say_who_may_make_it(stage: Stage) -> None:
    """Within its deadline; the module is not asked once a call, and executes nothing."""
    deadline = time.time() + 5
    results = await asyncio.gather(*(stage.end_of("mute.open", deadline_at=deadline) for _ in range(CALLS)))

    for result in results:
        assert (result.error_code, result.effect_state, result.retryable) == ("busy", "none", True)
        assert result.retry_after_seconds
        assert result.audit.attempts == 0
    assert stage.ran("mute.open") == 0
    assert 1 <= stage.modules["mute"].looks <= 4


async def test_an_agent_goes_by_it_too(stage: Stage) -> None:
    """It lists the tools as stale, and calls them."""
    agent = await stage.bed.agent()
    called = await agent.call(ToolCall(tool_name="gone.open"), GUEST)
    statuses = await agent.modules.statuses()

    assert called.success
    assert (statuses["gone"].is_stale, statuses["gone"].tools, statuses["gone"].disabled) == (True, 3, 1)
    assert "gone.disabled" not in {tool.name for tool in await agent.tools(OWNER)}


async def test_a_fresh_worker_with_a_slow_redis_runs_nothing_unjudged(bed: Bed) -> None:
    """Its first call is a guest's, of an owner's tool, and waits in the queue already."""
    owls = module("owls")
    await bed.serve(owls)
    await refresh_manifests(bed.settings)
    with closing(FleetCalls(bed.settings)) as calls:
        ids = [calls.publish("owls.guarded", caller=caller) for caller in (GUEST, OWNER)]
    link = await bed.link(bed.redis.port)
    link.late_seconds = 0.6
    await bed.worker(redis_url=link.redis_url, broker_url=bed.redis.url)
    guests, owners = [await end_of(bed, call_id) for call_id in ids]

    assert guests.error_code == "permission_denied"
    assert owners.success
    assert len(owls.calls("guarded")) == 1
