"""A command's call that is interrupted after it has waited for its turn."""

import asyncio

import pytest

from bed.fleet import Bed, until
from support.module_server import ModuleServer
from toolfleet import Caller, ToolCall
from toolfleet_cli.commands.call import result_of


async def test_a_call_that_has_waited_for_its_turn_is_named(
    bed: Bed, owls: ModuleServer, owner: Caller, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said what becomes of it, as of any other that runs."""
    await bed.serve(owls)
    await bed.worker()
    fleet = await bed.agent(calls_per_caller=1)
    before = await fleet.submit(ToolCall(tool_name="owls.nap", arguments={"seconds": 60}), owner)
    asked = ToolCall(tool_name="owls.nap_once", arguments={"seconds": 60})
    waiting = asyncio.create_task(result_of(fleet, asked, owner, None, shows=False))
    await until(lambda: owls.call_ids("nap"), "the first one runs")
    await asyncio.sleep(1)
    assert owls.call_ids("nap_once") == []
    await before.cancel()
    await until(lambda: owls.call_ids("nap_once"), "the module has it")
    await asyncio.sleep(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    (call_id,) = owls.call_ids("nap_once")
    assert f"Call {call_id} is cancelled. It had started" in capsys.readouterr().err
