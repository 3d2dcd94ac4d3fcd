"""What the gateway costs beside a Python agent: `python -m benchmarks.features.gateway`. Fails if a target is missed.

Calls over REST, over MCP and W1 (a module that answers at once, 200 in flight) take turns on one fleet of one worker, and with servers of FastMCP and
of the MCP SDK that call the same module directly; so do calls one at a time. Before that 1,000 streams of events are opened.
Redis, worker, gateway, module, peers and whoever calls share this machine.
"""

import argparse
import asyncio
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.environments import install, python_of
from benchmarks.features.gateway_figures import AGENT, FASTMCP, IN_FLIGHT, MCP, REST, SDK, STREAMS, GatewayFigures
from benchmarks.features.rest_client import RestClient
from benchmarks.machine import wait_for_quiet
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_cli.local.child_processes import spawn, stop
from toolfleet_cli.local.commands import worker_command
from toolfleet_cli.local.environment import environment_of
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_cli.local.tcp_ports import free_port
from toolfleet_registry.settings import Settings

_ROUNDS, _SECONDS, _WARM_SECONDS = 7, 4.0, 2.0
_STREAMED_CALLS = 20
_QUIET_SECONDS, _START_SECONDS = 30, 60.0
_OK = 200
_REVISION, _PREFIX = "2026-07-28", "io.modelcontextprotocol/"
_ANYBODY = Caller(user_id="operator", permission="owner", allowed_modules="*")
_ARGUMENTS = {"title": "note", "text": "x" * 160, "tags": ["a", "b"], "number": 3, "nested": {"a": 1}}
_TOOL, _LONG_TOOL = "instant.echo", "wait60000.echo"

Work = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class _Gateway:
    url: httpx.URL
    key: str
    pid: int

    @property
    def megabytes(self) -> float:
        return psutil.Process(self.pid).memory_info().rss / 2**20


def main() -> None:
    """Measure, print, and fail if a target is missed."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=_ROUNDS)
    options.add_argument("--seconds", type=float, default=_SECONDS)
    options.add_argument("--streams", type=int, default=STREAMS)
    chosen = options.parse_args()
    for name in [name for name in os.environ if name.startswith("TOOLFLEET_")]:
        del os.environ[name]
    install("fastmcp")
    with tempfile.TemporaryDirectory() as folder, _fleet(Path(folder)) as (settings, gateway, peers):
        found = asyncio.run(_measure(settings, gateway, peers, chosen))
    how = f"one worker, one gateway; medians of {chosen.rounds} rounds of {chosen.seconds:g} s, in turns"
    text = "\n".join([f"The gateway beside a Python agent (`make bench-gateway`): {how}:\n", *found.lines()])
    print(text)
    if (chosen.rounds, chosen.seconds, chosen.streams) == (_ROUNDS, _SECONDS, STREAMS):
        (Path(__file__).parents[1] / "results" / "gateway.md").write_text(text + "\n")
    sys.exit(found.is_missed)


async def _measure(
    settings: Settings, gateway: _Gateway, peers: dict[str, int], chosen: argparse.Namespace
) -> GatewayFigures:
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(ToolFleet(settings=settings))
        await fleet.modules.refresh()

        def client_of(port: int, key: str = "") -> RestClient:
            stack.callback((client := RestClient("127.0.0.1", port, key)).close)
            return client

        own, own_mcp = client_of(gateway.url.port or 0, gateway.key), client_of(gateway.url.port or 0, gateway.key)
        ways = {AGENT: _by_agent(fleet), REST: _over_rest(own), MCP: _over_mcp(own_mcp, _TOOL)}
        ways |= {name: _over_mcp(client_of(port), "echo") for name, port in peers.items()}
        with_streams = await _with_streams(own, gateway, chosen.streams)  # before MCP's code is loaded
        for way in ways.values():
            await _times(way, IN_FLIGHT, _WARM_SECONDS)
        rates, latencies, cpu_ms = ({name: list[float]() for name in ways} for _ in range(3))
        for _ in range(chosen.rounds):
            for name, way in ways.items():
                before = _cpu_seconds()
                calls = len(await _times(way, IN_FLIGHT, chosen.seconds))
                rates[name].append(calls / chosen.seconds)
                cpu_ms[name].append((_cpu_seconds() - before) / calls * 1000)
            for name, way in ways.items():
                latencies[name].append(statistics.median(await _times(way, 1, chosen.seconds / 2)) * 1000)
        return GatewayFigures(rates, latencies, cpu_ms, with_streams)


def _cpu_seconds() -> float:
    """Of this process and all that it has started."""
    own = psutil.Process()
    times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    return sum(each.user + each.system for each in times)


async def _times(work: Work, in_flight: int, seconds: float) -> list[float]:
    """How long each took that ended within the time, so many at once."""
    began_at, times = time.perf_counter(), list[float]()

    async def go_on() -> None:
        while (asked_at := time.perf_counter()) - began_at < seconds:
            await work()
            times.append(time.perf_counter() - asked_at)

    await asyncio.gather(*(go_on() for _ in range(in_flight)))
    return times


def _by_agent(fleet: ToolFleet) -> Work:
    async def call() -> None:
        result = await fleet.call(ToolCall(tool_name=_TOOL, arguments=_ARGUMENTS), _ANYBODY)
        if not result.success:
            sys.exit(f"A call has failed: {result}")

    return call


def _over_rest(client: RestClient) -> Work:
    async def call() -> None:
        status, answer = await client.post("/calls", {"tool_name": _TOOL, "arguments": _ARGUMENTS})
        if status != _OK or not answer["success"]:
            sys.exit(f"A call has failed: {status} {answer}")

    return call


def _over_mcp(client: RestClient, tool: str) -> Work:
    meta: dict[str, Any] = {f"{_PREFIX}clientCapabilities": {}, f"{_PREFIX}protocolVersion": _REVISION}
    params = {"name": tool, "arguments": _ARGUMENTS, "_meta": meta}
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = (
        "Accept: application/json, text/event-stream\r\n"
        f"MCP-Protocol-Version: {_REVISION}\r\nMcp-Method: tools/call\r\nMcp-Name: {tool}\r\n"
    )

    async def call() -> None:
        status, answer = await client.post("/mcp", asked, headers)
        if status != _OK or "structuredContent" not in answer.get("result", {}):
            sys.exit(f"A call has failed: {status} {answer}")

    return call


async def _with_streams(client: RestClient, gateway: _Gateway, count: int) -> tuple[float, float]:
    """The gateway's megabytes before the streams are open, and with them."""
    before, call = gateway.megabytes, {"tool_name": _LONG_TOOL, "arguments": _ARGUMENTS}
    begun = [await client.post("/calls", call, "Prefer: respond-async\r\n") for _ in range(_STREAMED_CALLS)]
    ids = [answer["call_id"] for _, answer in begun]
    opened = [await _open_stream(gateway, ids[number % len(ids)]) for number in range(count)]
    with_streams = gateway.megabytes
    for writer in opened:
        writer.close()
    return before, with_streams


async def _open_stream(gateway: _Gateway, call_id: str) -> asyncio.StreamWriter:
    reader, writer = await asyncio.open_connection(gateway.url.host, gateway.url.port)
    host = f"Host: {gateway.url.host}\r\nAuthorization: Bearer {gateway.key}\r\n\r\n"
    writer.write(f"GET /calls/{call_id}/events HTTP/1.1\r\n{host}".encode())
    head = await reader.readuntil(b"retry: ")
    if not head.startswith(b"HTTP/1.1 200"):
        sys.exit(f"A stream was not opened: {head!r}")
    return writer


@contextmanager
def _fleet(folder: Path) -> Generator[tuple[Settings, _Gateway, dict[str, int]]]:
    """Redis, a module, a worker and a gateway; and peers that call the module directly, by their names."""
    port, ports = free_port(), {FASTMCP: free_port(), SDK: free_port()}
    (folder / "redis").mkdir()
    base = f"http://127.0.0.1:{port}"
    module = [sys.executable, "-m", "benchmarks.module.app", str(port)]
    gateway = [sys.executable, "-m", "toolfleet_cli", "gateway", "--port", "0"]
    said = [f"{base}/instant"]
    fastmcp = [str(python_of("fastmcp")), "-m", "benchmarks.peers.fastmcp.server", str(ports[FASTMCP]), *said]
    sdk = [sys.executable, "-m", "benchmarks.features.sdk_server", str(ports[SDK]), *said]
    with (
        redis_server(folder / "redis") as url,
        _running(folder, "module", module, {}),
        _running(folder, "fastmcp", fastmcp, {}),
        _running(folder, "sdk", sdk, {}),
    ):
        services: dict[str, Any] = {name: f"{base}/{name}" for name in ("instant", "wait60000")}
        limits: dict[str, float] = {"wait60000": 300}
        settings = Settings(redis_url=url, module_services=services, module_timeouts=limits, log_level="WARNING")
        env = {**environment_of(settings), "PYTHONUNBUFFERED": "1"}
        with (
            _running(folder, "worker", worker_command("all"), env),
            _running(folder, "gateway", gateway, env) as process,
        ):
            for peer in ports.values():
                _wait_for(peer)
            yield settings, _ready(folder, process), ports


@contextmanager
def _running(folder: Path, name: str, command: list[str], env: dict[str, str]) -> Generator[subprocess.Popen[bytes]]:
    with (folder / f"{name}.log").open("wb") as log:
        process = spawn(command, env=env, cwd=Path(__file__).parents[2], output=log)
    try:
        yield process
    finally:
        stop(process, patience_seconds=5)


def _wait_for(port: int) -> None:
    """Until a peer listens."""
    give_up_at = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if time.monotonic() > give_up_at:
                sys.exit(f"Nobody listens at port {port}.")
            time.sleep(0.2)
        else:
            return


def _ready(folder: Path, process: subprocess.Popen[bytes]) -> _Gateway:
    give_up_at = time.monotonic() + _START_SECONDS
    while True:
        said = (folder / "gateway.log").read_text()
        key, url = re.search(r"key: (\S+)", said), re.search(r"ready url=(\S+)", said)
        if key and url and "worker ready" in (folder / "worker.log").read_text():
            wait_for_quiet(_QUIET_SECONDS)
            return _Gateway(httpx.URL(url[1]), key[1], process.pid)
        if time.monotonic() > give_up_at:
            sys.exit(f"The fleet does not start: {said}")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
