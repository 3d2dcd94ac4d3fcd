"""Starts a fleet with a gateway, and the servers that a gateway is compared with, each a process of its own."""

import re
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
from redis import Redis

from benchmarks.environments import python_of
from benchmarks.features.contextforge import contextforge
from benchmarks.features.gateway_figures import CONTEXTFORGE, FASTMCP, MCP, SDK
from benchmarks.features.mcp_peer import Peer
from benchmarks.machine import wait_for_quiet
from toolfleet_cli.local.environment import environment_of, worker_command
from toolfleet_cli.local.redis_server import free_port, redis_server
from toolfleet_modules.hosts.child_process import spawn, stop
from toolfleet_registry.settings import Settings

TOOL, LONG_TOOL = "instant.echo", "wait60000.echo"

_QUIET_SECONDS, _START_SECONDS = 30, 60.0


@dataclass(frozen=True)
class Gateway:
    """Where it is, its key, and its process."""

    url: httpx.URL
    key: str
    pid: int

    @property
    def megabytes(self) -> float:
        """Resident memory now."""
        return psutil.Process(self.pid).memory_info().rss / 2**20

    @property
    def as_peer(self) -> Peer:
        """How it is asked over MCP."""
        return Peer(MCP, self.pid, self.url.port or 0, tool=TOOL, key=self.key)


@dataclass(frozen=True)
class Fleet:
    """What was started; `pids` are those that do a call of the fleet, `module_pid` does everybody's."""

    settings: Settings
    gateway: Gateway
    peers: tuple[Peer, ...]
    pids: tuple[int, ...]
    module_pid: int


@contextmanager
def gateway_fleet(folder: Path) -> Generator[Fleet]:
    """Redis, a module, a worker and a gateway, and peers that call the module directly, for as long as they are needed."""
    (folder / "redis").mkdir()
    port = free_port()
    base, module_command = f"http://127.0.0.1:{port}", [sys.executable, "-m", "benchmarks.module.app", str(port)]
    with ExitStack() as stack:
        redis_url = stack.enter_context(redis_server(folder / "redis"))
        module = stack.enter_context(_running(folder, "module", module_command, {}))
        peers = tuple(stack.enter_context(_peer(folder, name, f"{base}/instant")) for name in (FASTMCP, SDK))
        peers += (stack.enter_context(contextforge(folder, CONTEXTFORGE, f"{base}/instant")),)
        services: dict[str, Any] = {name: f"{base}/{name}" for name in ("instant", "wait60000")}
        limits: dict[str, float] = {"wait60000": 300}
        settings = Settings(redis_url=redis_url, module_services=services, module_timeouts=limits, log_level="WARNING")
        env = {**environment_of(settings), "PYTHONUNBUFFERED": "1"}
        worker = stack.enter_context(_running(folder, "worker", worker_command("all"), env))
        command = [sys.executable, "-m", "toolfleet_cli", "gateway", "--port", "0"]
        gateway = stack.enter_context(_running(folder, "gateway", command, env))
        ready = _ready(folder, gateway)
        with Redis.from_url(redis_url) as client:
            redis_pid = int(client.info("server")["process_id"])
        wait_for_quiet(_QUIET_SECONDS)
        yield Fleet(settings, ready, peers, (redis_pid, worker.pid, gateway.pid), module.pid)


@contextmanager
def _peer(folder: Path, name: str, module: str) -> Generator[Peer]:
    port = free_port()
    servers = {
        FASTMCP: [str(python_of("fastmcp")), "-m", "benchmarks.peers.fastmcp.server"],
        SDK: [sys.executable, "-m", "benchmarks.features.sdk_server"],
    }
    with _running(folder, f"peer-{port}", [*servers[name], str(port), module], {}) as process:
        _wait_for(port, name)
        yield Peer(name, process.pid, port)


@contextmanager
def _running(folder: Path, name: str, command: list[str], env: dict[str, str]) -> Generator[subprocess.Popen[bytes]]:
    with (folder / f"{name}.log").open("wb") as log:
        process = spawn(command, env=env, cwd=Path(__file__).parents[2], output=log)
    try:
        yield process
    finally:
        stop(process, patience_seconds=5)


def _wait_for(port: int, name: str) -> None:
    """Until a peer listens."""
    give_up_at = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if time.monotonic() > give_up_at:
                sys.exit(f"{name} does not start.")
            time.sleep(0.2)
        else:
            return


def _ready(folder: Path, process: subprocess.Popen[bytes]) -> Gateway:
    give_up_at = time.monotonic() + _START_SECONDS
    while True:
        said = (folder / "gateway.log").read_text()
        key, url = re.search(r"key: (\S+)", said), re.search(r"ready url=(\S+)", said)
        if key and url and "worker ready" in (folder / "worker.log").read_text():
            return Gateway(httpx.URL(url[1]), key[1], process.pid)
        if time.monotonic() > give_up_at:
            sys.exit(f"The fleet does not start: {said}")
        time.sleep(0.1)
