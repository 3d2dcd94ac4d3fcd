"""Calls whose modules ask, where they wait in RabbitMQ; `tests/virtual/inputs` has the rest."""

from pathlib import Path

from support.fleet import TestBed
from support.hosts.nursery import make_nursery
from support.module_server import serve
from support.servers.asker import ADA, make_asker
from support.servers.rabbitmq import RabbitMq
from toolfleet import Caller, PendingInput, ToolCall, ToolFleet

SECONDS = 30


async def test_answers_bring_a_call_back_through_rabbitmq(
    broker: RabbitMq, redis_url: str, owner: Caller, tmp_path: Path
) -> None:
    """The call is published again once its answer is taken; the same answer publishes it once more, to no harm.

    So it does for a call that its module has accepted: it comes too early then.
    """
    desk, nursery = make_asker(), make_nursery()
    with serve(desk.server), serve(nursery.server):
        bed = TestBed(redis_url, (desk.server, nursery.server), tmp_path, {"broker_url": broker.url})
        with bed.worker():
            async with ToolFleet(settings=bed.settings) as fleet:
                for tool in ("desk.greet", "nursery.tend"):
                    desk.held, nursery.is_held = {1}, True
                    call = ToolCall(tool_name=tool, takes_input=True)
                    handle = await fleet.submit(call, owner, timeout=SECONDS)
                    assert isinstance(await handle.next_stop(SECONDS), PendingInput)
                    assert await handle.answer(ADA, number=1)
                    assert not await handle.answer(ADA, number=1)
                    desk.held, nursery.is_held = set(), False
                    result = await handle.result(SECONDS)
                    assert (result.success, result.audit.attempts) == (True, 1), result

    assert desk.done == nursery.taken == [ADA]
    assert len(nursery.begun) == 1
