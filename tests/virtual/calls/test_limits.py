"""Limits and a worker that is killed: a call that it had begun counts once."""

import pytest

from bed.fleet import Bed, until
from support.module_server import ModuleServer
from support.owls import nap
from toolfleet import Caller, ToolCall


@pytest.mark.parametrize(("effect", "ended"), [("read", None), ("once", "outcome_unknown")])
async def test_a_worker_that_is_killed_neither_frees_nor_doubles(
    bed: Bed, owner: Caller, effect: str, ended: str | None
) -> None:
    """Whether the call is begun again or its end is unknown."""
    module = ModuleServer("owls")
    module.add("rare", nap, daily_limit=2, effect=effect)
    await bed.serve(module)
    worker, fleet = await bed.worker(), await bed.agent()
    rare = ToolCall(tool_name="owls.rare", arguments={"seconds": 20})
    handle = await fleet.submit(rare, owner, timeout=600)
    await until(lambda: module.requests, "it runs")
    worker.kill()
    await bed.worker()
    result = await handle.result()

    assert result.error_code == ended
    assert (await fleet.remaining(owner)).tools["owls.rare"].used == 1
