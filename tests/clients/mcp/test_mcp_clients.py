"""Real MCP clients use the fleet through a gateway: the official SDK's, FastMCP's with tasks, and those inside of three agent frameworks."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.fleet import TestBed
from support.gateways.framework_clients import CLIENTS
from support.gateways.gateway_process import Gateway, gateway_process
from support.local_tools.talkers import Talker
from support.module_server import ModuleServer
from support.waiting import PATIENCE_SECONDS, wait_until
from support.worker_process import TESTS, WorkerProcess
from toolfleet_cli.local.redis_server import free_port

PROGRAM = Path(__file__).with_name("run_mcp_client.py")
TELLING = ["sdk", "pydantic_ai", "fastmcp"]
"""The clients that tell their user of progress: OpenAI's does not, nor LangChain's, whose calls can be interrupted."""
_SECONDS = 90

pytestmark = [pytest.mark.clients, pytest.mark.timeout(500)]


@asynccontextmanager
async def running(client: str, gateway: Gateway, act: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A client's program, ended with the test."""
    command = [sys.executable, str(PROGRAM), client, f"{gateway.url}/mcp", gateway.key, act]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(TESTS), "NO_PROXY": "*"}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, env=env, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def said(process: asyncio.subprocess.Process, text: bytes = b"") -> dict[str, Any]:
    async with asyncio.timeout(_SECONDS):
        printed, errors = await process.communicate(text)
    assert process.returncode == 0, errors.decode()[-3000:]
    found: dict[str, Any] = json.loads(printed.decode().splitlines()[-1])
    return found


async def heard(process: asyncio.subprocess.Process, line: bytes) -> None:
    """The next line that it prints."""
    assert process.stdout is not None
    assert process.stderr is not None
    async with asyncio.timeout(_SECONDS):
        next_line = await process.stdout.readline()
        assert next_line == line, (next_line, await process.stderr.read())


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_client_lists_and_calls(gateway: Gateway, owls: ModuleServer, client: str) -> None:
    """Tools by their names; a result; and a call that lasts, as a task where the client takes them."""
    owls.forget()
    async with running(client, gateway, "call") as process:
        found = await said(process)

    assert "owls.echo" in found["names"]
    assert "hoo" in found["said"][0]
    assert "awake" in found["said"][1]
    assert (len(owls.calls("echo")), len(owls.calls("nap"))) == (1, 1)


@pytest.mark.parametrize("client", TELLING)
async def test_a_client_hears_of_progress(gateway: Gateway, owls: ModuleServer, talker: Talker, client: str) -> None:
    """Of each step of a call while it runs, and the result."""
    talker.forget()
    async with running(client, gateway, "talk") as process:
        for step in (b"reading\n", b"writing\n"):
            await heard(process, step)
            talker.go_on()
        found = await said(process)

    assert "done" in found["said"][0]


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_client_takes_its_call_back(gateway: Gateway, owls: ModuleServer, client: str) -> None:
    """Whoever cancels a call has the worker hang up on the module, and calls on in the same session."""
    owls.forget()
    async with running(client, gateway, "cancel") as process:
        await wait_until(lambda: owls.calls("nap"), "the call runs", seconds=3 * PATIENCE_SECONDS)
        found = await said(process, b"take it back\n")
        await wait_until(lambda: owls.interrupted, "the module was hung up on")

    assert "hoo" in found["said"][0]


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_client_that_is_killed_takes_its_call_back(gateway: Gateway, owls: ModuleServer, client: str) -> None:
    """Whoever stops the program has the worker hang up on the module; a task goes on, for its client may come again."""
    owls.forget()
    async with running(client, gateway, "leave") as process:
        await wait_until(lambda: owls.calls("nap"), "the call runs", seconds=3 * PATIENCE_SECONDS)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        if client not in {"fastmcp", "pydantic_ai"}:
            await wait_until(lambda: owls.interrupted, "the module was hung up on")


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_client_survives_a_gateways_restart(
    bed: TestBed, owls: ModuleServer, worker: WorkerProcess, client: str
) -> None:
    """It calls on in the same session, at a gateway that has never seen it."""
    owls.forget()
    port = free_port()
    with gateway_process(bed, "--port", str(port)) as first:
        key = first.key
        async with running(client, first, "twice") as process:
            await heard(process, b"called\n")
            first.process.send_signal(signal.SIGTERM)
            first.process.wait()
            with gateway_process(bed, "--port", str(port), env={"TOOLFLEET_GATEWAY_KEY": key}):
                found = await said(process, b"go on\n")

    assert "hoo again" in found["said"][1]
    assert len(owls.calls("echo")) == 2
