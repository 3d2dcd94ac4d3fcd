"""MCP servers that are hosted in this process, without sockets for the module; over HTTP the servers are here, too."""

import socket
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from support.hosts.nest_server import Nest, http_app, server_of
from support.oauth.loopback_app import served
from support.waiting import wait_until, wait_until_answered
from toolfleet_modules.hosts.mcp.http_transport import HttpServer
from toolfleet_modules.hosts.mcp.mcp_host import McpHost, McpOptions
from toolfleet_modules.hosts.mcp.server_watch import WatchPort
from toolfleet_modules.hosts.mcp.stdio_transport import StdioServer
from toolfleet_modules.sdk.client import ModuleClient, ModuleResult

NEST = Path(__file__).parent / "nest_server.py"
KINDS = ("stdio", "stdio --old", "http", "http --old")
"""Of the nest: what it speaks, and which era."""


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
        results = list[ModuleResult]()

        async def is_taken() -> bool:
            results.append(await self.call(tool, **arguments))
            return results[-1].status != 503

        await wait_until_answered(is_taken, "the module takes the call")
        return results[-1]


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
    notes: Path, *words: str, port: int = 0, environment: Mapping[str, str] = MappingProxyType({})
) -> AsyncGenerator[HttpServer]:
    """The nest over HTTP, on this port or a free one."""
    nest = Nest({"NOTES": str(notes), **environment})
    app = http_app(server_of(nest, is_old="--old" in words), nest.environment)
    async with served(app, port=port) as url:
        yield HttpServer(f"{url}/mcp")


@asynccontextmanager
async def hosted_nest(
    kind: str, folder: Path, environment: Mapping[str, str] = MappingProxyType({}), **options: Any
) -> AsyncGenerator[HostedServer]:
    """The nest of this kind as the module `nest`; over its standard streams it is a process."""
    transport, *words = kind.split()
    notes = folder / "notes"
    async with AsyncExitStack() as stack:
        server: StdioServer | HttpServer
        if transport == "stdio":
            server = stdio(notes, *words, **environment)
        else:
            server = await stack.enter_async_context(http_nest(notes, *words, environment=environment))
        yield await stack.enter_async_context(hosted_server(server, notes, **options))


def listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def children() -> set[int]:
    """The processes that this one has started, at any remove."""
    return {child.pid for child in psutil.Process().children(recursive=True)}
