"""When a fault strikes: at any time, or just after a step of some call's way, seen in Redis or in the journal."""

import asyncio
import contextlib
import re
import time
from collections.abc import Callable

from chaos.journal import JournalTail, Mark
from chaos.programs import Program
from chaos.stage import Stage

MOMENTS = ("any time", "taken", "claimed", "at the module", "effect done", "reply sent", "stored", "acked")
"""From a message in a worker's hands to its ack: after each of these steps."""

_PATIENCE_SECONDS = 4.0  # then the fault strikes without having seen the step
_LOOK_SECONDS = 0.001
_MARKS: dict[str, Mark] = {"at the module": "start", "effect done": "effect", "reply sent": "reply"}
# What scripts write in Redis when a step is done; MONITOR shows it at that moment.
_WRITTEN = {
    "taken": re.compile(rb'lua\] "HSET" "unacked"'),
    "claimed": re.compile(rb'lua\] "HSET" "toolfleet:call:[^"]*" "token"'),
    "stored": re.compile(rb'lua\] "SET" "celery-task-meta-[^"]*" "{\\"status\\": \\"SUCCESS'),
    "acked": re.compile(rb'lua\] "HDEL" "unacked"'),
}
_SENDER = re.compile(rb"^\+?[0-9.]+ \[\d+ [0-9.]+:(\d+)\]")


async def wait_for(moment: str, stage: Stage) -> tuple[bool, Program | None]:
    """Return as soon as the step is seen, with the worker that has done it. Whether it was, within four seconds."""
    found: int | None = None
    with contextlib.suppress(TimeoutError, OSError):
        async with asyncio.timeout(_PATIENCE_SECONDS):
            if moment in _MARKS:
                found = await _in_journal(stage, _MARKS[moment])
            elif moment in _WRITTEN:
                found = await _in_redis(stage, _WRITTEN[moment])
    return moment not in MOMENTS[1:] or found is not None, stage.worker_behind(found) if found else None


async def _in_journal(stage: Stage, mark: Mark) -> int:
    tail = JournalTail(stage.journal, from_start=False)
    try:
        while True:
            for entry in tail.new():
                if entry.mark == mark:
                    return entry.port
            await asyncio.sleep(_LOOK_SECONDS)
    finally:
        tail.close()


async def _in_redis(stage: Stage, written: re.Pattern[bytes]) -> int:
    """A script's own writes name no client: it is the one whose command stands before them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.redis_port, limit=2**22)
    try:
        writer.write(b"MONITOR\r\n")
        port = 0
        while line := await reader.readline():
            if sender := _SENDER.match(line):
                port = int(sender[1])
            elif written.search(line):
                return port
        raise ConnectionError("Redis has gone")
    finally:
        writer.transport.abort()


async def until(condition: Callable[[], object], *, seconds: float) -> bool:
    """Whether the condition came true in that time."""
    give_up_at = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up_at:
            return False
        await asyncio.sleep(0.05)
    return True
