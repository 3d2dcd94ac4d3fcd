"""What all adapters do with a call: it is found again, taken back, and bounded, whatever its framework."""

import asyncio
from pathlib import Path

import pytest

from support.local_tools.talkers import Talker
from support.module_server import ModuleServer
from support.waiting import wait_until
from toolfleet import Caller, ToolDefinition, ToolFleet
from toolfleet_cli.local.redis_server import held_port, redis_server
from toolfleet_registry.contracts import Effect
from toolfleet_tasks.adapters.calling import AdapterCalls, FrameworkCall, StillRunning


def asked(
    caller: Caller, method: str, arguments: object, call_id: str | None, *, seconds: float | None = None
) -> FrameworkCall:
    effect: Effect = "once" if method in {"nap_once", "talk"} else "read"
    tool = ToolDefinition(name=f"owls.{method}", effect=effect)
    return FrameworkCall(tool, f"owls__{method}", arguments, caller, "run", call_id, seconds=seconds)


async def test_a_call_that_may_be_deferred_is_taken_back_with_its_run(
    fleet: ToolFleet, ada: Caller, owls: ModuleServer
) -> None:
    """While its run waits it is as any other call."""
    calls = AdapterCalls(fleet, defer_after=60)
    waiting = asyncio.create_task(calls.call(asked(ada, "nap", {"seconds": 60}, "d1")))
    await wait_until(lambda: owls.running == 1, "the call runs")

    waiting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await waiting
    await wait_until(lambda: owls.interrupted, "the module was hung up on")


async def test_a_repeat_of_a_deferred_call_that_is_cancelled_leaves_the_call_alone(
    fleet: ToolFleet, ada: Caller, owls: ModuleServer, talker: Talker
) -> None:
    """It only waits no more; whoever asks once more has the one result."""
    talker.forget()
    calls, call = AdapterCalls(fleet, defer_after=0.1), asked(ada, "talk", {}, "d2")
    with pytest.raises(StillRunning) as first:
        await calls.call(call)
    patient = AdapterCalls(fleet, defer_after=60)
    repeat = asyncio.create_task(patient.call(call))
    with pytest.raises(StillRunning) as second:
        await calls.call(call)

    repeat.cancel()
    with pytest.raises(asyncio.CancelledError):
        await repeat
    talker.go_on(3)

    assert (await patient.call(call)).result == "done"
    assert first.value.step == second.value.step
    assert owls.interrupted == []
    assert len(owls.calls("talk")) == 1


async def test_a_call_that_could_not_be_found_again_is_waited_for(fleet: ToolFleet, ada: Caller) -> None:
    """Its framework has given it no id."""
    result = await AdapterCalls(fleet, defer_after=0.01).call(asked(ada, "nap", {"seconds": 0.3}, None))

    assert result.result == "awake"


@pytest.mark.parametrize(("own", "seconds"), [(0.2, None), (None, 0.2), (60.0, 0.2), (0.2, 60.0), (None, -1.0)])
async def test_the_sooner_deadline_holds(
    fleet: ToolFleet, ada: Caller, own: float | None, seconds: float | None
) -> None:
    """Of the adapter's and the run's."""
    call = asked(ada, "nap", {"seconds": 60}, f"t{own}{seconds}", seconds=seconds)

    result = await AdapterCalls(fleet, timeout=own).call(call)

    assert result.error_code in {"timed_out", "expired"}


@pytest.mark.parametrize("defer_after", [None, 5.0])
async def test_without_redis_a_call_ends_as_a_result(
    ada: Caller, tmp_path: Path, owls: ModuleServer, defer_after: float | None
) -> None:
    """No exception ends the run: the model reads that nothing has happened."""
    with held_port() as port:
        with redis_server(tmp_path, port=port) as url:
            fleet = ToolFleet(url)
            await fleet.open()
        try:
            calls = AdapterCalls(fleet, defer_after=defer_after, timeout=2)
            result = await calls.call(asked(ada, "echo", {}, "r1"))
        finally:
            await fleet.close()

    assert not result.success
    assert result.effect_state == "none"
    assert result.error_code in {"fleet_unavailable", "unknown_module"}
