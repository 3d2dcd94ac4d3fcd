"""When a fault strikes: at any time, or just after a step of some call's way or some job's, seen in Redis or in a journal."""

import asyncio
import contextlib
import json
import os
import re
import time
from collections.abc import Callable

from chaos.plan import Plan
from chaos.processes.programs import Program
from chaos.records import acts
from chaos.records.journal import JournalTail, Mark
from chaos.stage import Stage

MOMENTS = ("any time", "taken", "claimed", "at the module", "effect done", "reply sent", "stored", "acked")
"""From a message in a worker's hands to its ack: after each of these steps."""

JOB_MOMENTS = ("step noted", "step published", "step ended", "job ended", "wake claimed", "wake received", "acted")
"""From a job that has noted its next call, which is not published yet, to a core that has acted and has not answered."""

IN_REDIS_QUEUES = frozenset({"taken", "acked", "step published"})
"""What is seen only where Redis has the queues."""

_PATIENCE_SECONDS = 4.0  # then the fault strikes without having seen the step
_POLL_SECONDS = 0.001
_MARKS: dict[str, Mark] = {"at the module": "start", "effect done": "effect", "reply sent": "reply"}
_CORE_MARKS: dict[str, acts.Mark] = {"wake received": "received", "acted": "acted"}
# By a script of ours, or by Celery's own backend.
_STORED = rb'"SET(?:EX)?" "celery-task-meta-%s" (?:"\d+" )?"{\\"status\\": \\"SUCCESS'
# What is written in Redis when a step is done; MONITOR shows it at that moment.
_WRITTEN = {
    "taken": re.compile(rb'lua\] "HSET" "unacked"'),
    "claimed": re.compile(rb'lua\] "HSET" "toolfleet:call:[^"]*" "token"'),
    "stored": re.compile(_STORED % rb'[^"]*'),
    "acked": re.compile(rb'lua\] "HDEL" "unacked"'),
    "step noted": re.compile(rb'lua\] "HSET" "toolfleet:job:[^"]*" "at" "{\\"state\\":\\"(starting|polling)'),
    "step published": re.compile(rb'lua\] "LPUSH" "tools\.[^"]*" .*\\"[0-9a-f]{32}\.\d+\\"'),
    "step ended": re.compile(_STORED % rb"[0-9a-f]{32}\.\d+"),
    "job ended": re.compile(rb'lua\] "HDEL" "toolfleet:job:[^"]*" "told"'),
    "wake claimed": re.compile(rb'lua\] "HSET" "toolfleet:wake:[^"]*" "token"'),
}
_SENDER = re.compile(rb"^\+?[0-9.]+ \[\d+ [0-9.]+:(\d+)\]")


def moments_of(plan: Plan) -> tuple[str, ...]:
    """Those that a run can see."""
    moments = (*MOMENTS, *(JOB_MOMENTS if plan.jobs else ()))
    return tuple(moment for moment in moments if not plan.on_rabbitmq or moment not in IN_REDIS_QUEUES)


async def wait_for(moment: str, stage: Stage) -> tuple[bool, Program | None]:
    """Return as soon as the step is seen, with the worker or core that has done it. Whether it was, within four seconds."""
    found: int | None = None
    core: Program | None = None
    with contextlib.suppress(TimeoutError, OSError):
        async with asyncio.timeout(_PATIENCE_SECONDS):
            if moment in _MARKS:
                found = await _in_journal(stage, _MARKS[moment])
            elif moment in _WRITTEN:
                found = await _in_redis(stage, _WRITTEN[moment])
            elif moment in _CORE_MARKS:
                found = await _in_marks(stage, _CORE_MARKS[moment])
                core = stage.core_of(found)
    is_seen = moment == MOMENTS[0] or found is not None
    return is_seen, core or (stage.worker_behind(found) if found and moment not in _CORE_MARKS else None)


async def _in_journal(stage: Stage, mark: Mark) -> int:
    tail = JournalTail(stage.journal, from_start=False)
    try:
        while True:
            for entry in tail.new():
                if entry.mark == mark:
                    return entry.port
            await asyncio.sleep(_POLL_SECONDS)
    finally:
        tail.close()


async def _in_marks(stage: Stage, mark: acts.Mark) -> int:
    """The id of the core's process that has written it."""
    path = acts.marks_of(stage.folder)
    path.touch()
    with path.open("rb") as marks:
        marks.seek(0, os.SEEK_END)
        rest = b""
        while True:
            *lines, rest = (rest + marks.read()).split(b"\n")
            for line in lines:
                if (known := json.loads(line))["mark"] == mark:
                    return int(known["pid"])
            await asyncio.sleep(_POLL_SECONDS)


async def _in_redis(stage: Stage, written: re.Pattern[bytes]) -> int:
    """A script's own writes name no client: it is the one whose command stands before them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.redis_port, limit=2**22)
    try:
        writer.write(b"MONITOR\r\n")
        port = 0
        while line := await reader.readline():
            if sender := _SENDER.match(line):
                port = int(sender[1])
            if written.search(line):
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
