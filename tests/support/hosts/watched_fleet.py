"""A fleet of MCP servers whose resources are watched, with two gateways; and clients that watch."""

import os
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import mcp_types as types
from mcp import Client
from mcp.client.subscriptions import listen

from support.fleet import TestBed, program
from support.gateways.gateway_process import Gateway, gateway_pair
from support.gateways.mcp_clients import Era, mcp_client
from support.hosts.mcp_server import listens
from support.waiting import wait_until, wait_until_sync
from support.worker_process import TESTS
from toolfleet_cli.local.tcp_ports import free_port

SERVER = TESTS / "support" / "hosts" / "watched_server.py"
SECONDS = 30


@dataclass
class Heard:
    """What a client was told of: the addresses of resources, and the names of lists."""

    uris: list[str] = field(default_factory=list)
    lists: list[str] = field(default_factory=list)

    async def __call__(self, message: object) -> None:
        match message:
            case types.ResourceUpdatedNotification():
                self.uris.append(str(message.params.uri))
            case types.PromptListChangedNotification():
                self.lists.append("prompts")
            case types.ResourceListChangedNotification():
                self.lists.append("resources")
            case _:
                pass


@dataclass(frozen=True)
class WatchedFleet:
    """Two gateways with one key, and what each server has noted."""

    one: Gateway
    two: Gateway
    notes: Path
    redis_url: str

    def noted(self, module: str) -> list[str]:
        """The lines of a module's server."""
        file = self.notes / module
        return file.read_text().splitlines() if file.exists() else []


def paths() -> str:
    """Where a program finds what tests share."""
    return os.pathsep.join(path for path in sys.path if path)


@contextmanager
def watched_fleet(modules: Sequence[str], redis_url: str, notes: Path, logs: Path) -> Generator[WatchedFleet]:
    """Serve a server for each name: `old` or `new`, and `stdio` or `http`."""
    bed = TestBed(redis_url, (), logs)
    with ExitStack() as running:
        for module in modules:
            _serve(bed, module, notes / module, running)
        one, two = running.enter_context(gateway_pair(bed))
        for gateway in (one, two):
            headers = {"Authorization": f"Bearer {gateway.key}"}
            with httpx.Client(base_url=gateway.url, headers=headers, trust_env=False) as client:
                for module in modules:
                    wait_until_sync(lambda: f'"{module}.lay"' in client.get("/tools").text, module, seconds=60)  # noqa: B023 - called here
        yield WatchedFleet(one, two, notes, redis_url)


def _serve(bed: TestBed, module: str, notes: Path, running: ExitStack) -> None:
    """Start a server's host, and over HTTP the server."""
    era = ["--old"] if module.startswith("old") else []
    env = {"NOTES": str(notes), "PYTHONPATH": paths()}
    host = [sys.executable, "-m", "toolfleet_cli", "host", "mcp", module]
    if module.endswith("http"):
        port = free_port()
        command = [sys.executable, str(SERVER), "http", "--port", str(port), *era]
        running.enter_context(program(bed, command, module, ready="", env=env))
        wait_until_sync(lambda: listens(port), "the server listens", seconds=60)
        command = [*host, "--url", f"http://127.0.0.1:{port}/mcp"]
    else:
        given = [word for name, text in env.items() for word in ("--env", f"{name}={text}")]
        command = [*host, *given, "--", sys.executable, str(SERVER), "stdio", *era]
    running.enter_context(program(bed, command, f"host-{module}", ready=""))


async def subscribe(client: Client, uri: str) -> None:
    """As older clients do: the SDK's own method warns of its age."""
    request = types.SubscribeRequest(params=types.SubscribeRequestParams(uri=uri))
    await client.session.send_request(request, types.EmptyResult)


async def unsubscribe(client: Client, uri: str) -> None:
    """As above."""
    request = types.UnsubscribeRequest(params=types.UnsubscribeRequestParams(uri=uri))
    await client.session.send_request(request, types.EmptyResult)


@asynccontextmanager
async def watching(gateway: Gateway, module: str, era: Era, *uris: str) -> AsyncGenerator[tuple[Client, Heard]]:
    """A client that watches these resources, and hears."""
    heard = Heard()
    async with mcp_client(gateway, era, path=f"/mcp/{module}", message_handler=heard) as client:
        if era == "legacy":
            await _until_it_hears(client, heard)
            for uri in uris:
                await subscribe(client, uri)
            yield client, heard
        else:
            async with listen(
                client.session, prompts_list_changed=True, resources_list_changed=True, resource_subscriptions=uris
            ) as stream:
                assert stream.honored.resource_subscriptions == (list(uris) or None)
                yield client, heard


async def _until_it_hears(client: Client, heard: Heard) -> None:
    """Wait until a client has its stream: it asks for it when it likes."""
    uri = f"eggs://ready-{id(client)}"
    await subscribe(client, uri)
    await client.call_tool("lay", {"uri": uri})
    await wait_until(lambda: uri in heard.uris, "the stream is there", seconds=SECONDS)
    await unsubscribe(client, uri)
    heard.uris.clear()
