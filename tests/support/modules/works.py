"""A module that does long work: `begin` starts a piece and names it, `state` says where it is; a test ends it."""

import asyncio
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.fleet import TestBed, program
from support.module_server import ModuleServer, Request, serve
from toolfleet import Caller, Conversation, Job, Poll, ToolCall, ToolFleet
from toolfleet_cli.local.environment import beat_command
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.contracts.jobs import ENDED

HERE = Conversation(conversation_id="c-1", platform="chat")
BEGIN = ToolCall(tool_name="works.begin")
STATE = Poll(tool_name="works.state", arguments={"id": {"$from": "task.id"}}, interval_seconds=0.1)
SLOWLY = STATE.model_copy(update={"interval_seconds": 10})

QUICK = {
    "jobs_interval_seconds": 0.1,
    "wake_give_up_seconds": 86_400.5,  # a time in Redis, too, which takes whole seconds there
    "refresh_interval_seconds": 299.5,
}


@dataclass
class Works:
    """`pieces` maps a piece's id to its state; `ends_after`: it is completed after so many looks (0: the test ends it)."""

    server: ModuleServer
    ends_after: int = 0
    pieces: dict[str, str] = field(default_factory=dict)
    looks: dict[str, int] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)

    def forget(self, *, ends_after: int = 0) -> None:
        """What it was asked, and its pieces, which are numbered anew."""
        self.server.forget()
        self.pieces.clear()
        self.looks.clear()
        self.ends_after = ends_after

    async def begin(self, request: Request) -> dict[str, Any]:
        piece = f"piece-{len(self.pieces) + 1}"
        self.pieces[piece] = "running"
        return {"success": True, "result": {"task": {"id": piece}, "path": f"/work/{piece}"}}

    async def state(self, request: Request) -> dict[str, Any]:
        piece = request["arguments"]["id"]
        self.looks[piece] = self.looks.get(piece, 0) + 1
        if self.ends_after and self.looks[piece] >= self.ends_after:
            self.pieces[piece] = "completed"
        return {"success": True, "result": {"id": piece, "status": self.pieces.get(piece, "running")}}


async def _ship(request: Request) -> dict[str, Any]:
    return {"success": True, "result": {"shipped": request["arguments"].get("path")}}


async def _refuse(request: Request) -> dict[str, Any]:
    return {"success": False, "error": "I cannot."}


def make_works(name: str = "works", *, ends_after: int = 0) -> Works:
    """The module, to be served with `module_server.serve(works.server)`."""
    works = Works(ModuleServer(name), ends_after)
    identified = [{"name": "id", "type": "string", "required": True}]
    works.server.add("begin", works.begin, effect="once")
    works.server.add("state", works.state, effect="read", parameters=identified)
    works.server.add("state_rarely", works.state, effect="read", parameters=identified, daily_limit=3)
    works.server.add("ship", _ship, effect="once")
    works.server.add("refuse", _refuse, effect="read")
    works.server.add("guarded", _ship, effect="once", requires_gate=True)
    works.server.add("admins_state", works.state, effect="read", parameters=identified, required_permission="admin")
    return works


@contextmanager
def running(folder: Path, works: Works, **settings: object) -> Generator[TestBed]:
    """A fleet with the module, beat and one worker, which looks after jobs at once."""
    logs = folder / "logs"
    logs.mkdir()
    with serve(works.server), redis_server(folder / "redis") as url:
        bed = TestBed(url, (works.server,), logs, {**QUICK, **settings})
        with bed.worker(), program(bed, beat_command(), "beat", ready="beat: Starting"):
            yield bed


async def job_ended(fleet: ToolFleet, job: Job, caller: Caller, *, seconds: float = 20) -> Job:
    """The job, once it has ended."""
    return await job_once(fleet, job, caller, lambda found: found.state in ENDED, seconds=seconds)


async def job_once(
    fleet: ToolFleet, job: Job, caller: Caller, fits: Callable[[Job], bool], *, seconds: float = 20
) -> Job:
    """The job, once it is as it should be."""
    give_up_at = time.monotonic() + seconds
    while True:
        found = await fleet.jobs.get(job.job_id, caller)
        assert found is not None
        if fits(found):
            return found
        assert time.monotonic() < give_up_at, found
        await asyncio.sleep(seconds / 1000)
