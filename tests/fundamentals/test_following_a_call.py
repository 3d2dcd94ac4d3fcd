"""A call that takes its time: follow it, ask for it later, take it back."""

import pytest

from support.module_server import ModuleServer
from support.waiting import wait_until
from toolfleet import Caller, ToolCall, ToolFleet


async def test_a_handle_knows_its_call(fleet: ToolFleet, owner: Caller) -> None:
    """`submit` returns at once; the result can be awaited whenever it suits."""
    handle = await fleet.submit(ToolCall(tool_name="owls.nap", arguments={"seconds": 2}), owner)
    with pytest.raises(TimeoutError):
        await handle.result(0.01)

    assert (await handle.result()).success
    assert await handle.status() == "done"


async def test_a_call_can_be_taken_back(fleet: ToolFleet, owner: Caller, owls: ModuleServer) -> None:
    """`cancel` reaches the module, wherever the call is."""
    handle = await fleet.submit(ToolCall(tool_name="owls.nap_once", arguments={"seconds": 30}), owner)
    await wait_until(lambda: owls.running, "the module is at it")
    await handle.cancel()

    assert (await handle.result()).error_code == "cancelled"
    await wait_until(lambda: owls.interrupted, "the module knows")
