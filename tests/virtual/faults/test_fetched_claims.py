"""A worker that dies with a call that was claimed as its message was taken: the call is run all the same, and once."""

import pytest

from bed.fleet import Bed, until
from support.module_server import ModuleServer
from toolfleet import Caller, ToolCall
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.transport.scripts import ACK, RESERVE

KEYS, QUEUE = Keys(), "tools.owls"


@pytest.mark.parametrize(("method", "attempts"), [("echo", 2), ("nap_once", 1)])
async def test_a_call_that_was_taken_and_not_begun_is_run(
    bed: Bed, owls: ModuleServer, owner: Caller, method: str, attempts: int
) -> None:
    """Of one that was claimed with its message nobody knows whether it was begun; of one that must not be repeated it is known."""
    await bed.serve(owls)
    fleet = await bed.agent()
    handle = await fleet.submit(ToolCall(tool_name=f"owls.{method}"), owner, timeout=60)
    assert _taken_by_the_dead(bed) == (attempts == 2)
    await bed.worker()
    result = await handle.result()

    assert (result.success, result.audit.attempts, len(owls.requests)) == (True, attempts, 1)
    await until(lambda: not bed.ask("HLEN", "unacked"), "it was acked")


async def test_the_end_of_a_call_is_its_acknowledgement(bed: Bed, owls: ModuleServer, owner: Caller) -> None:
    """One step of Redis's: no script of its own forgets the message."""
    await bed.serve(owls)
    await bed.worker()
    fleet = await bed.agent()
    assert (await fleet.call(ToolCall(tool_name="owls.echo"), owner)).success  # the worker is up
    bed.ask("SCRIPT", "FLUSH")
    for method in ("echo", "nap_once"):  # the second is claimed by itself
        assert (await fleet.call(ToolCall(tool_name=f"owls.{method}"), owner)).success
        assert bed.ask("EXISTS", "unacked", "unacked_index") == 0

    assert bed.ask("SCRIPT", "EXISTS", ACK.digest) == [0]


def _taken_by_the_dead(bed: Bed) -> bool:
    """Take the message as a worker does that dies then, and say whether its call was claimed."""
    command = RESERVE.command(
        unacked="unacked",
        unacked_index="unacked_index",
        queues=[KEYS.queue(QUEUE)],
        wanted=1,
        tag="wb0b-0-",
        base=KEYS.begin,
        reserve_ms=1000,
        lease_ms=500,
        worker="dead",
        record_seconds=600,
    )
    _, _, tag, _, _, call_id = bed.ask(*command)
    bed.ask("ZADD", "unacked_index", 1, tag)
    return bool(call_id)
