"""MCP servers that are served in this process, without sockets for the module; the servers are processes of their own."""

import asyncio
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from support.waiting import wait_until
from toolfleet_cli.local.tcp_ports import free_port
from toolfleet_modules.hosts.mcp.mcp_host import McpHost
from toolfleet_modules.hosts.mcp.options import HttpServer, McpOptions, StdioServer
from toolfleet_modules.hosts.mcp.watches.watch_port import WatchPort
from toolfleet_modules.sdk.client import ModuleClient, ModuleResult

NEST = Path(__file__).parent / "nest_server.py"


@dataclass
class HostedServer:
    """A server that is the module `nest`; `notes` has what it noted."""

    host: McpHost
    client: ModuleClient
    notes: Path
    changes: list[set[str]] = field(default_factory=list)

    async def call(self, tool: str, **arguments: Any) -> ModuleResult:
        return await self.client.call(tool, **arguments)

    def noted(self) -> list[str]:
        return self.notes.read_text().splitlines() if self.notes.exists() else []

    def pids(self) -> list[int]:
        """Of the servers that were started, in order."""
        return [int(line.split()[1]) for line in self.noted() if line.startswith("started ")]

    def faults(self) -> dict[str, str]:
        """What is wrong, by what it is wrong with."""
        return {each.file: each.message for each in self.host.manifest.load_errors or ()}

    async def settled(self, tool: str, **arguments: Any) -> ModuleResult:
        """A call's result, once the module takes it."""
        async with asyncio.timeout(60):
            while True:
                if (result := await self.call(tool, **arguments)).status != 503:
                    return result
                await asyncio.sleep(0.05)


def stdio(notes: Path, *words: str, **environment: str) -> StdioServer:
    """The nest over its standard streams."""
    return StdioServer((sys.executable, str(NEST), "stdio", *words), environment={"NOTES": str(notes), **environment})


@asynccontextmanager
async def hosted_server(
    server: StdioServer | HttpServer, notes: Path, *, watches: WatchPort | None = None, **options: Any
) -> AsyncGenerator[HostedServer]:
    """Serve a server. Afterwards nothing that it has started is left."""
    before = children()

    async def changed() -> None:
        hosted.changes.append(set(host.tools))

    host = McpHost(McpOptions("nest", server, **options), listener=changed, watches=watches)
    client = ModuleClient(host, user_id="ada", permission="user")
    hosted = HostedServer(host, client, notes)
    async with client:
        yield hosted
    await wait_until(lambda: children() <= before, "nothing is left")


@asynccontextmanager
async def http_nest(
    notes: Path, *words: str, port: int | None = None, **environment: str
) -> AsyncGenerator[tuple[HttpServer, asyncio.subprocess.Process]]:
    """The nest over HTTP, once it answers."""
    port = port or free_port()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(NEST), "http", "--port", str(port), *words),
        env={"NOTES": str(notes), **environment},
    )
    try:
        await wait_until(lambda: listens(port), "the server listens", seconds=60)
        yield HttpServer(f"http://127.0.0.1:{port}/mcp"), process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def children() -> set[int]:
    """The processes that this one has started, at any remove."""
    return {child.pid for child in psutil.Process().children(recursive=True)}
