"""How long an idempotency key stands for a call."""

import asyncio

from bed.fleet import Bed
from support.module_server import ModuleServer
from toolfleet import Caller, ToolCall, ToolFleet

ECHO = ToolCall(tool_name="owls.echo", arguments={"a": 1}, idempotency_key="k")


async def test_a_key_is_remembered_as_long_as_its_result(bed: Bed, owls: ModuleServer, owner: Caller) -> None:
    """Six hours: a repeat within them brings the first call's result, also when all were down meanwhile; a later one is a new call."""
    await bed.serve(owls)
    kept, ids = bed.settings.result_ttl_seconds, []
    for rest in (0, kept - 60, 120):
        await asyncio.sleep(rest)
        await bed.worker()
        async with ToolFleet(settings=bed.settings) as fleet:
            result = await fleet.call(ECHO, owner)
        bed.kill_members()
        assert result.success
        ids.append(result.audit.call_id)

    assert ids[0] == ids[1] != ids[2]
    assert owls.call_ids("echo") == [ids[0], ids[2]]
