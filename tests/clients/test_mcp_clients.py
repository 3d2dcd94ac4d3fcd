"""Real MCP clients use the fleet through a gateway: FastMCP's with tasks, and those inside of three agent frameworks."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.fleet import TestBed
from support.gateways.gateway_process import Gateway, gateway_process
from support.module_server import ModuleServer
from support.waiting import wait_until
from support.worker_process import WorkerProcess
from toolfleet_cli.local.tcp_ports import free_port

ROOT = Path(__file__).parents[2]
LOCK = Path(__file__).parent / "mcp" / "requirements.lock"
FOLDER = ROOT / ".cache" / "clients" / "mcp"
CLIENTS = ["fastmcp", "pydantic_ai", "langchain", "openai_agents"]
_INSTALL_SECONDS, _SECONDS = 300, 90
_TAMPERED = "Hash mismatch"

pytestmark = [pytest.mark.clients, pytest.mark.timeout(500)]


@pytest.fixture(scope="module")
def python() -> Path:
    """The interpreter of an environment with the clients, by the lock file's digests."""
    uv = str(Path(sys.executable).with_name("uv"))
    made = [uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(FOLDER)]
    interpreter = FOLDER / "bin" / "python"
    install = [uv, "pip", "install", "--quiet", "--python", str(interpreter), "--require-hashes", "-r", str(LOCK)]
    try:
        for command in (made, install):
            done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False)
            assert _TAMPERED not in done.stderr, done.stderr
            if done.returncode != 0:
                pytest.skip(f"the clients cannot be installed: {done.stderr.strip()[:200]}")
    except subprocess.TimeoutExpired:
        pytest.skip(f"the clients have not come in {_INSTALL_SECONDS} s")
    return interpreter


@pytest.fixture(scope="module")
def gateway(bed: TestBed, worker: WorkerProcess) -> Iterator[Gateway]:
    """A gateway where a call of a second is a long one."""
    with gateway_process(bed, env={"TOOLFLEET_MCP_TASK_SECONDS": "0.3"}) as gateway:
        yield gateway


@asynccontextmanager
async def running(python: Path, client: str, gateway: Gateway, act: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A client's program, ended with the test."""
    command = [str(python), str(LOCK.with_name("run.py")), client, f"{gateway.url}/mcp", gateway.key, act]
    env = {"PATH": os.environ["PATH"], "HOME": str(FOLDER), "NO_PROXY": "*"}
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


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_client_lists_and_calls(python: Path, gateway: Gateway, owls: ModuleServer, client: str) -> None:
    """Tools by their names; a result; and a call that lasts, as a task where the client takes them."""
    owls.forget()
    async with running(python, client, gateway, "call") as process:
        found = await said(process)

    assert "owls.echo" in found["names"]
    assert "hoo" in found["said"][0]
    assert "awake" in found["said"][1]
    assert (len(owls.calls("echo")), len(owls.calls("nap"))) == (1, 1)


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_client_that_is_interrupted_takes_its_call_back(
    python: Path, gateway: Gateway, owls: ModuleServer, client: str
) -> None:
    """Whoever stops the program has the worker hang up on the module; a task goes on, for its client may come again."""
    owls.forget()
    async with running(python, client, gateway, "leave") as process:
        await wait_until(lambda: owls.running == 1, "the call runs", seconds=60)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        if client not in {"fastmcp", "pydantic_ai"}:
            await wait_until(lambda: owls.interrupted, "the module was hung up on")


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_client_survives_a_gateways_restart(
    python: Path, bed: TestBed, owls: ModuleServer, worker: WorkerProcess, client: str
) -> None:
    """It calls on in the same session, at a gateway that has never seen it."""
    owls.forget()
    port = free_port()
    with gateway_process(bed, "--port", str(port)) as first:
        key = first.key
        async with running(python, client, first, "twice") as process:
            assert process.stdout is not None
            async with asyncio.timeout(_SECONDS):
                assert await process.stdout.readline() == b"called\n"
            first.process.send_signal(signal.SIGTERM)
            first.process.wait()
            with gateway_process(bed, "--port", str(port), env={"TOOLFLEET_GATEWAY_KEY": key}):
                found = await said(process, b"go on\n")

    assert "hoo again" in found["said"][1]
    assert len(owls.calls("echo")) == 2
