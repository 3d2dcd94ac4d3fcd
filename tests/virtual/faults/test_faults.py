"""What dies, freezes or is not there: every call still ends in one result, and nothing hangs."""

import pytest

from bed import clock
from bed.fleet import Bed, until
from support.module_server import ModuleServer
from support.owls import make_module
from toolfleet import Caller, ToolCall

ECHO = ToolCall(tool_name="owls.echo")


def nap(seconds: float) -> ToolCall:
    return ToolCall(tool_name="owls.nap_once", arguments={"seconds": seconds})


async def test_an_expired_call_is_never_begun(bed: Bed, owls: ModuleServer, owner: Caller) -> None:
    """Without a worker it ends at its deadline, surely not executed; one that comes too late runs what has not expired."""
    await bed.serve(owls)
    fleet = await bed.agent()
    before = clock.monotonic()
    expired = await fleet.call(ECHO, owner, timeout=30)
    took = clock.monotonic() - before
    waiting = await fleet.submit(ECHO, owner, timeout=60)
    assert await waiting.status() == "queued"
    await bed.worker()

    assert (await waiting.result()).success
    assert (expired.error_code, expired.effect_state, expired.retryable) == ("expired", "none", True)
    assert 30 <= took < 32
    assert len(owls.requests) == 1


async def test_a_queued_call_can_be_cancelled(bed: Bed, owls: ModuleServer, owner: Caller) -> None:
    """A call that waits for a slot never begins once it is taken back."""
    await bed.serve(owls)
    await bed.worker(worker_concurrency=1)
    fleet = await bed.agent()
    running = await fleet.submit(nap(20), owner)
    await until(lambda: owls.running, "the only slot is taken")
    queued = await fleet.submit(ECHO, owner)
    await queued.cancel()

    assert (await running.result()).success
    assert (await queued.result()).error_code == "cancelled"
    assert owls.calls("echo") == []


async def test_a_redis_that_freezes_while_waiting_blocks_nobody(bed: Bed, owls: ModuleServer, owner: Caller) -> None:
    """A published call ends by its deadline although nobody can be asked about it: its outcome is unknown."""
    await bed.serve(owls)
    fleet = await bed.agent()
    handle = await fleet.submit(ECHO, owner, timeout=20)
    before = clock.monotonic()
    bed.redis.freeze()
    result = await handle.result()
    status = await handle.status()
    bed.redis.thaw()

    assert clock.monotonic() - before < 20 + 15
    assert (status, result.error_code, result.effect_state) == ("done", "timed_out", "unknown")


async def test_a_killed_worker_leaves_no_caller_waiting_for_ever(bed: Bed, owls: ModuleServer, owner: Caller) -> None:
    """When the worker is killed in the middle, the call ends at its deadline as one that may have been executed."""
    await bed.serve(owls)
    worker = await bed.worker()
    fleet = await bed.agent()
    before = clock.monotonic()
    handle = await fleet.submit(nap(30), owner, timeout=20)
    await until(lambda: owls.running, "the module has the call")
    worker.kill()
    result = await handle.result()

    assert (result.error_code, result.effect_state) == ("timed_out", "unknown")
    assert 20 <= clock.monotonic() - before < 30


async def test_a_slow_module_does_not_delay_a_fast_one(bed: Bed, owls: ModuleServer, owner: Caller) -> None:
    """The slow lane's only slot is taken and more waits in its queue; the fast lane's call returns all the same."""
    bed.given["slow_modules"] = frozenset({"owls"})
    await bed.serve(owls, make_module("cats"))
    await bed.worker(lane="slow", worker_concurrency=1)
    await bed.worker(lane="fast")
    fleet = await bed.agent()
    naps = [await fleet.submit(nap(20), owner) for _ in range(2)]
    await until(lambda: owls.running == 1, "the slow slot is taken")
    fast = await fleet.call(ToolCall(tool_name="cats.echo"), owner)
    waiting = [await each.status() for each in naps]

    assert fast.success
    assert waiting == ["running", "queued"]
    assert all([(await each.result()).success for each in naps])


async def test_lost_data_is_not_taken_for_a_call_that_never_began(bed: Bed, owls: ModuleServer, owner: Caller) -> None:
    """Redis loses all it has while a call runs: at the deadline its outcome is unknown, for a worker had taken it.

    The modules' manifests are back by then, so that nothing seems to be missing.
    """
    await bed.serve(owls)
    await bed.worker()
    fleet = await bed.agent()
    handle = await fleet.submit(nap(30), owner, timeout=20)
    await until(lambda: owls.running, "the module has the call")
    bed.ask("FLUSHALL")
    await fleet.modules.refresh()
    assert bed.ask("EXISTS", bed.settings.keys.module_manifest("owls"))
    result = await handle.result()

    assert (result.error_code, result.effect_state) in {("timed_out", "unknown"), ("outcome_unknown", "unknown")}


async def test_an_agent_keeps_its_tools_when_redis_loses_its_data(bed: Bed, owls: ModuleServer, owner: Caller) -> None:
    """After a reconnect to an empty Redis the modules are asked again, and until they have answered it has the old ones."""
    await bed.serve(owls)
    fleet = await bed.agent()
    before = await fleet.tools(owner)
    bed.ask("FLUSHALL")
    bed.ask("CLIENT", "KILL", "TYPE", "pubsub")

    async def are_asked_again() -> bool:
        assert await fleet.tools(owner) == before
        return bool(bed.ask("EXISTS", bed.settings.keys.module_manifest("owls")))

    await until(are_asked_again, "the manifest is there again", step=0.01)
    assert before
    assert await fleet.tools(owner) == before


@pytest.mark.parametrize("fate", ["cancelled", "killed"])
async def test_a_first_call_without_an_end_shuts_nobody_out(
    bed: Bed, owls: ModuleServer, owner: Caller, fate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that was away is reached again at once, although the first call that was let in never ended."""
    monkeypatch.setattr("toolfleet_tasks.ledger.parameters.BREAKER_FAILURES", 5)
    await bed.serve(owls)
    worker = await bed.worker()
    fleet = await bed.agent()
    late = await fleet.call_many([ToolCall(tool_name="owls.brief_nap")] * 5, owner)
    assert {result.error_code for result in late} == {"timed_out"}
    first = await fleet.submit(nap(25), owner)

    async def is_let_in() -> bool:
        nonlocal first
        if await first.status() == "done":
            first = await fleet.submit(nap(25), owner)
        return await first.status() == "running"

    await until(is_let_in, "the first one is let in")
    if fate == "cancelled":
        await first.cancel()
    else:
        worker.kill()
    ended_at = clock.monotonic()
    await bed.worker()

    async def succeeds() -> bool:
        return (await fleet.call(ECHO, owner)).success

    await until(succeeds, "others are let in")
    assert clock.monotonic() - ended_at < 20
