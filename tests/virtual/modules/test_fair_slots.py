"""A module whose calls hang, and the others that are served by the same worker."""

import asyncio
from typing import Any

import pytest

from bed.fleet import Bed, until
from support.module_server import ModuleServer, Request
from support.owls import echo
from toolfleet import Caller, ToolCall

SLOTS, HALF, BEYOND = 8, 4, 2
CALLS = 12


class Gate:
    """Calls that come in wait until it lets them go, the first ones first."""

    def __init__(self) -> None:
        self.came = self.passing = 0
        self._moved = asyncio.Condition()

    async def hold(self, _: Request) -> dict[str, Any]:
        number, self.came = self.came, self.came + 1
        async with self._moved:
            await self._moved.wait_for(lambda: number < self.passing)
        return {"success": True}

    async def open_for(self, passing: int) -> None:
        """Let the first so many go."""
        async with self._moved:
            self.passing = passing
            self._moved.notify_all()


def gated(name: str) -> tuple[ModuleServer, Gate]:
    module, gate = ModuleServer(name), Gate()
    module.add("hold", gate.hold, effect="once")
    module.add("echo", echo, effect="read")
    return module, gate


async def test_a_module_that_hangs_keeps_no_other_waiting(bed: Bed, owner: Caller) -> None:
    """Others' calls begin beyond its slots; it gets none until it is below half, and all again when it is alone."""
    (owls, owl_gate), (cats, cat_gate) = gated("owls"), gated("cats")
    bed.given.update(worker_concurrency=SLOTS, calls_per_caller=100)
    await bed.serve(owls, cats)
    await bed.worker()
    fleet = await bed.agent()
    hoots = [await fleet.submit(ToolCall(tool_name="owls.hold"), owner) for _ in range(CALLS)]
    await until(lambda: owls.running == SLOTS, "alone, it has all slots")
    for _ in range(3):
        assert (await fleet.call(ToolCall(tool_name="cats.echo"), owner, timeout=20)).success
    assert (owls.running, owl_gate.came) == (SLOTS, SLOTS)

    purrs = [await fleet.submit(ToolCall(tool_name="cats.hold"), owner) for _ in range(3)]
    await until(lambda: cats.running == BEYOND, "a quarter more may run")
    await owl_gate.open_for(1)
    await until(lambda: cats.running == BEYOND + 1, "what is free is another one's")
    await owl_gate.open_for(SLOTS - HALF)
    await until(lambda: owls.running == HALF, "half are left")
    assert (await fleet.call(ToolCall(tool_name="cats.echo"), owner, timeout=20)).success
    assert owl_gate.came == SLOTS, "it has got no slot since"

    await owl_gate.open_for(SLOTS - HALF + 1)
    await until(lambda: owls.running == SLOTS - 3, "below half, it may take what is free")
    await cat_gate.open_for(3)
    await until(lambda: owls.running == CALLS - owl_gate.passing, "alone, all of them")
    await owl_gate.open_for(CALLS)
    results = [await each.result() for each in [*hoots, *purrs]]

    assert all(result.success for result in results)
    assert owls.most_running == SLOTS


@pytest.mark.parametrize("part", ["consumer", "remote control"])
async def test_a_full_worker_of_which_a_part_begins_again_goes_on(bed: Bed, owner: Caller, part: str) -> None:
    """Celery has lost a connection of its own, or opens another channel for remote control.

    Calls run on, and their ends make room for the next ones.
    """
    owls, gate = gated("owls")
    bed.given.update(worker_concurrency=BEYOND, calls_per_caller=100)
    await bed.serve(owls)
    worker = await bed.worker()
    fleet = await bed.agent()
    handles = [await fleet.submit(ToolCall(tool_name="owls.hold"), owner) for _ in range(SLOTS)]
    await until(lambda: owls.running == BEYOND, "its slots are full")
    before = worker.restarts
    if part == "consumer":
        await worker.lose_connection()
        await until(lambda: worker.restarts > before, "its consumer has begun again")
    else:
        await worker.reset_remote_control()
    await gate.open_for(SLOTS)

    assert all([(await each.result()).success for each in handles])
    assert (gate.came, owls.most_running) == (SLOTS, BEYOND), "each has run once"
