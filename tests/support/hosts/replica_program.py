"""A process of the module `owls`, one of several: `uvicorn support.hosts.replica_program:app`. Each effect is a line in a file.

`REPLICA_ID` is by which id the fleet knows it, `REPLICA_JOURNAL` the file, to which all of them write. What it remembers of calls
is its own, and sure: where it knows nothing of one, it says that it has not executed it, and never will.
"""

import asyncio
import itertools
import os
import random
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from support.programs.fork_server import Process, end, start
from support.waiting import PATIENCE_SECONDS
from toolfleet.sdk import Context, Module, SQLiteReplies
from toolfleet_cli.local.redis_server import held_port
from toolfleet_registry.directory.entries import Replica

TESTS = Path(__file__).parents[2]
LONGEST_SECONDS = 0.3
"""A process that is older than this and does not remember a call says that it was not executed: as if calls were long over."""

_ID = os.environ.get("REPLICA_ID", "")
module = Module("owls", longest_call_seconds=LONGEST_SECONDS, replies=SQLiteReplies(f"{_ID}.db") if _ID else None)
module.replica_id = _ID


async def act(context: Context) -> str:
    """Write the call's id down, some time after it has come and some time before it is answered."""
    await asyncio.sleep(random.uniform(0, 0.03))
    journal = os.open(os.environ["REPLICA_JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(journal, f"{context.call_id}\n".encode())
    finally:
        os.close(journal)
    await asyncio.sleep(random.uniform(0, 0.03))
    return "hu"


module.add(act, name="once", effect="once")
module.add(act, name="read", effect="read")
app = module.app


@dataclass(eq=False)
class ReplicaProcess:
    """One of them, always on the same port, with another id after each start."""

    name: str
    port: int
    folder: Path
    id: str = ""
    process: Process | None = None
    starts: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    @property
    def replica(self) -> Replica:
        return Replica(self.id, f"http://127.0.0.1:{self.port}")

    @property
    def journal(self) -> Path:
        return self.folder / "journal"

    def start(self) -> None:
        """Begin to serve, in a moment."""
        self.id = f"{self.name}{next(self.starts)}"
        command = [sys.executable, "-m", "uvicorn", "support.hosts.replica_program:app", "--host", "127.0.0.1"]
        own = {"PYTHONPATH": str(TESTS), "REPLICA_ID": self.id, "REPLICA_JOURNAL": str(self.journal)}
        with (self.folder / f"{self.id}.log").open("wb") as output:
            self.process = start(
                [*command, "--port", str(self.port), "--no-access-log"], env=own, cwd=self.folder, output=output
            )

    def kill(self) -> None:
        """End it at once, whatever it is at."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE_SECONDS)

    def stop(self) -> None:
        """Have it end in good order."""
        assert self.process is not None
        self.process.terminate()

    async def is_up(self) -> bool:
        async with httpx.AsyncClient(trust_env=False) as client:
            try:
                return (await client.get(f"http://127.0.0.1:{self.port}/health")).is_success
            except httpx.HTTPError:
                return False

    async def denies(self, call_id: str) -> bool:
        """Whether it says of a call that it does not remember that it was not executed, and never will be."""
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.post(f"http://127.0.0.1:{self.port}/reconcile", json={"call_id": call_id})
        return bool(answer.json()["state"] == "none")

    def effects(self) -> list[str]:
        """The ids of calls that were executed, by any of them."""
        return self.journal.read_text().split() if self.journal.exists() else []


@contextmanager
def replica_processes(folder: Path, names: str = "abc") -> Generator[list[ReplicaProcess]]:
    """One for each letter, on ports that nobody else is given while they are away."""
    with ExitStack() as ports:
        made = [ReplicaProcess(name, ports.enter_context(held_port()), folder) for name in names]
        try:
            for one in made:
                one.start()
            yield made
        finally:
            for one in made:
                if one.process is not None:
                    end(one.process, patience_seconds=5)
