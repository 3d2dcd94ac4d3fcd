"""A call that workers die with is not tried for ever: after the second one it is a dead letter."""

import asyncio
from typing import Any

import pytest

from bed.fleet import Bed, until
from support.module_server import ModuleServer, Request
from toolfleet import Caller, ToolCall

SAID = "two workers have died with the call in their hands"
QUEUE = "tools.owls"
HANG = ToolCall(tool_name="owls.hang")


@pytest.fixture
def owls() -> ModuleServer:
    """Its calls hang."""

    async def hang(_: Request) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    module = ModuleServer("owls")
    module.add("hang", hang, effect="read", timeout_seconds=1200)
    return module


async def test_a_call_that_was_only_reserved_has_done_nothing(bed: Bed, owls: ModuleServer, owner: Caller) -> None:
    """Two workers had its message when they died: a third one ends it, and does not try it."""
    await bed.serve(owls)
    fleet = await bed.agent()
    handle = await fleet.submit(HANG, owner, timeout=60)
    item = bed.ask("RPOP", QUEUE)
    held = '[{"redelivered":true,"died":"ada0",' + item[1:] + f',"","{QUEUE}"]'
    bed.ask("HSET", "unacked", "wb0b-0-0", held)
    bed.ask("ZADD", "unacked_index", 1, "wb0b-0-0")
    await bed.worker()
    result = await handle.result()
    (letter,) = await fleet.dead_letters.list()

    assert (result.error_code, result.effect_state, result.retryable) == ("internal", "none", False)
    assert owls.requests == []
    assert SAID in letter.reason


@pytest.mark.parametrize(
    ("end", "has_died"),
    [("killed", True), ("told to end, then killed", False), ("paused", False)],
)
async def test_two_lost_workers_are_enough(
    bed: Bed, owls: ModuleServer, owner: Caller, end: str, has_died: bool
) -> None:
    """Each is lost while the module has the call, whose repeat would do no harm: it is not sent a third time.

    One that an orchestrator kills as it has no more patience has not died of the call, nor has one that is paused.
    """
    await bed.serve(owls)
    fleet = await bed.agent()
    handle = await fleet.submit(HANG, owner, timeout=1100)
    for number in (1, 2):
        worker = await bed.worker()
        await until(lambda: len(owls.requests) == number, "the module has it")  # noqa: B023 - awaited
        if end == "paused":
            worker.site.pause()
            continue
        if end != "killed":
            await worker.tell_to_end()
            await until(lambda: len(bed.ask("KEYS", "toolfleet:left:*")) == number, "it has said so")  # noqa: B023
        worker.kill()
    await bed.worker()
    result = await handle.result()
    (letter,) = await fleet.dead_letters.list()

    assert (result.error_code, result.effect_state) == ("outcome_unknown", "unknown")
    assert (SAID in letter.reason) == has_died
    assert len(owls.requests) == 2
