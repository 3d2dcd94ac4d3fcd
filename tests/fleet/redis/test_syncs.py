"""How often a call waits for the disk of a Redis that writes its file before it answers."""

import platform
import sys

import pytest
from redis.asyncio import Redis

from support.fleet import TestBed
from support.programs.sync_watch import Event, watch_syncs
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_tasks.scripts import FILES

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in {"x86_64", "aarch64"}, reason="no tracing of system calls here"
)

TAKEN = ("ledger/claim", "ledger/finish")
CLAIMED = ("ledger/finish",)
CALLS = 8


def waited_for(events: list[Event], call_id: str) -> list[str]:
    """What was written before each sync between a call's publishing and its result: `publish`, or the script."""
    own, found, read = call_id.encode(), list[str](), b""
    for kind, data in events:
        if kind == "write" and own in data and b"message\r\n" in data and data.startswith(b">"):
            return found
        if kind == "read" and (read or found or own in data):
            read += data
        if kind == "sync" and read:
            found.append(step_of(read, is_first=not found))
            read = b"\r\n"
    raise AssertionError("the agent was told of no result")


def step_of(read: bytes, *, is_first: bool) -> str:
    if is_first:
        return "publish"
    for name in (*TAKEN, "queues/reserve"):  # the next one is read with others, and waits
        script = FILES.script(name)
        if script.digest.encode() in read or script.text.encode() in read:
            return name
    return "another"


@pytest.mark.parametrize(("tool", "steps"), [("owls.echo", CLAIMED), ("owls.nap_once", TAKEN)])
async def test_a_call_alone_waits_for_few_syncs(
    tool: str, steps: tuple[str, ...], bed: TestBed, fleet: ToolFleet, owner: Caller
) -> None:
    """Redis syncs its file once for each step, one after the other: publishing, claiming and ending the call.

    With its publishing a worker takes it that waits: that is no step of its own.
    A call of which a repeat does no harm is claimed as it is taken. Its message is forgotten with its end.
    """
    async with Redis.from_url(bed.redis_url, decode_responses=True) as redis:
        assert await redis.config_get("appendfsync") == {"appendfsync": "always"}
        pid = (await redis.info("server"))["process_id"]
    call_ids = []
    for _ in range(2):  # Redis knows the scripts from now on, and the worker how it claims
        await fleet.call(ToolCall(tool_name=tool, arguments={"seconds": 0}), owner)
    with watch_syncs(pid) as watch:
        for _ in range(CALLS):
            result = await fleet.call(ToolCall(tool_name=tool, arguments={"seconds": 0}), owner)
            assert result.success
            call_ids.append(result.audit.call_id)

    # Workers and agents write notes of their own now and then, and a worker looks into its queues once a second: a call that comes
    # just then is taken by itself. The look for the next call, which nobody waits for, may be read apart from this one's claim.
    found = [[step for step in waited_for(watch.events, call_id) if step != "another"] for call_id in call_ids]
    assert sum(each == ["publish", *steps] for each in found) > CALLS / 2, found
    own = [[step for step in dict.fromkeys(each) if step != "queues/reserve"] for each in found]
    assert own == [["publish", *steps]] * CALLS, found
