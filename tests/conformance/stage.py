"""Starts a fleet with the everything-server as a module: each part a process of its own, on ports of its own."""

import re
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from conformance.key_proxy import key_proxy
from support.fleet import TestBed, program
from support.gateways.gateway_process import gateway_process
from support.waiting import PATIENCE_SECONDS, wait_until_sync
from support.worker_process import TESTS
from toolfleet_cli.local.redis_server import redis_server

MODULE = "everything"

_ONLY_AS_TASK = f"{MODULE}.failing_job"
_HOST_READY = "http://"
_LISTENING = "listening at "
_REVISION = "2026-07-28"
_READY_SECONDS = 60


@contextmanager
def everything_server(folder: Path) -> Generator[str]:
    """Run the everything-server; yields its endpoint."""
    command = [sys.executable, "-m", "conformance.everything", "http"]
    bed = TestBed("redis://127.0.0.1:1/0", (), folder)
    with program(bed, command, MODULE, ready=_LISTENING, env={"PYTHONPATH": str(TESTS)}) as process:
        found = re.search(rf"{_LISTENING}(\S+)", process.said())
        assert found is not None
        yield found[1]


@contextmanager
def gateway_endpoint(folder: Path) -> Generator[str]:
    """Run a fleet with the server as a module; yields the module's endpoint at a gateway, which a proxy gives its key."""
    with ExitStack() as running:
        server = running.enter_context(everything_server(folder))
        redis_url = running.enter_context(redis_server(_made(folder / "redis")))
        bed = TestBed(redis_url, (), folder)
        running.enter_context(_host(bed, server))
        running.enter_context(bed.worker())
        gateway = running.enter_context(gateway_process(bed, env={"TOOLFLEET_MCP_TASK_TOOLS": _ONLY_AS_TASK}))
        url = running.enter_context(key_proxy(gateway.url, gateway.key)) + f"/mcp/{MODULE}"
        wait_until_sync(lambda: _is_served(url), "the gateway serves the module", seconds=_READY_SECONDS)
        yield url


@contextmanager
def _host(bed: TestBed, server: str) -> Generator[None]:
    command = [sys.executable, "-m", "toolfleet_cli", "host", "mcp", MODULE, "--url", server, "--trusted"]
    with program(bed, command, "host", ready=_HOST_READY):
        yield


def _is_served(url: str) -> bool:
    """Whether the module's tools are listed."""
    names = ("protocolVersion", "clientCapabilities")
    meta = dict(zip((f"io.modelcontextprotocol/{name}" for name in names), (_REVISION, {}), strict=True))
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": _REVISION,
        "mcp-method": "tools/list",
    }
    answer = httpx.post(url, json=asked, headers=headers, timeout=PATIENCE_SECONDS, trust_env=False)
    return answer.is_success and '"test_simple_text"' in answer.text


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
