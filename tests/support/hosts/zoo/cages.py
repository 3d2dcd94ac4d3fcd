"""The zoo's servers, each served as a module of its own, and a look at what is left of them."""

import asyncio
import contextlib
import os
import random
import signal
import sys
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from support.waiting import wait_until
from toolfleet_modules.hosts.mcp.mcp_host import McpHost, McpOptions
from toolfleet_modules.hosts.mcp.stdio_transport import StdioServer
from toolfleet_modules.sdk.client import ModuleClient, ModuleResult

ANIMAL = Path(__file__).parent / "animal.py"
_CALL_SECONDS = 3.0
_PATIENCE_SECONDS = 90.0


@dataclass(frozen=True)
class Cage:
    """One server as the module `zoo`; all that it starts has `mark` in its environment."""

    species: str
    mark: str
    host: McpHost
    client: ModuleClient

    async def call(self, tool: str, *, seconds: float = _CALL_SECONDS) -> ModuleResult:
        """What a call comes to, which must have an end soon after its time."""
        async with asyncio.timeout(seconds + 20):
            return await self.client.send(f"zoo.{tool}", {}, user_id="ada", seconds=seconds)

    async def recovers(self) -> None:
        """Return once the tool that does no harm works: again, or still."""
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while not (result := await self.call("good", seconds=10)).success:
                assert result.status == 503 or result.effect_state in {"none", "unknown"}, (self.species, result)
                await asyncio.sleep(0.1)

    async def harm(self, chance: random.Random) -> int:
        """Kill or stop about half of its processes, at any moment of what it is at; returns how many."""
        await asyncio.sleep(chance.random() / 20)
        met = [pid for pid in self.pids() if chance.random() < 0.5]
        for pid in met:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP]))
        return len(met)

    def pids(self) -> list[int]:
        return marked(self.mark)


@asynccontextmanager
async def caged(species: str) -> AsyncGenerator[Cage]:
    """Serve it; in the end nothing of it is left."""
    mark = uuid.uuid4().hex
    server = StdioServer((sys.executable, "-I", "-S", str(ANIMAL), species), environment={"ZOO": mark})
    host = McpHost(McpOptions("zoo", server, handshake_seconds=3, stuck_seconds=1, idle_seconds=5))
    async with ModuleClient(host, user_id="ada", permission="user") as client:
        yield Cage(species, mark, host, client)
    await wait_until(lambda: not marked(mark), f"nothing is left of {species!r}")


def marked(mark: str) -> list[int]:
    """The processes with this mark in their environment, whoever their parent is."""
    found = list[int]()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("ZOO") == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found
