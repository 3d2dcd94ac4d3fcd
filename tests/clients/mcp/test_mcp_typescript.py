"""The TypeScript SDK's clients, of both generations and both eras, and the inspector's command line use the fleet through a gateway."""

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from conformance.packages import SuiteMissing, installed_clients
from support.documents import programs
from support.fleet import TestBed
from support.gateways.gateway_process import Gateway, gateway_process
from support.gateways.node_clients import REVISIONS, inspector, node, printed, sdk_client
from support.local_tools.talkers import Talker
from support.module_server import ModuleServer
from support.waiting import PATIENCE_SECONDS, wait_until
from support.worker_process import WorkerProcess
from toolfleet_cli.local.redis_server import free_port

ERAS = ["legacy", "modern"]
_INSTALL_SECONDS, _SECONDS = 180, 90

pytestmark = [pytest.mark.clients, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def installed() -> Path:
    """Where the clients are, by the lock file's digests."""
    try:
        folder = installed_clients(seconds=_INSTALL_SECONDS)
    except SuiteMissing as exc:
        pytest.skip(f"The clients cannot be had: {exc}")
    (folder / "guide.ts").write_text(programs("docs/guides/mcp-clients.md")["mcp-typescript"])
    return folder


async def said(process: asyncio.subprocess.Process, text: bytes = b"") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((await printed(process, text)).splitlines()[-1])
    return found


async def heard(process: asyncio.subprocess.Process, line: bytes) -> None:
    """The next line that it prints."""
    assert process.stdout is not None
    assert process.stderr is not None
    async with asyncio.timeout(_SECONDS):
        next_line = await process.stdout.readline()
        assert next_line == line, (next_line, await process.stderr.read())


def napping(tool: str, *, seconds: int) -> Sequence[str]:
    return ("--method", "tools/call", "--tool-name", tool, "--tool-args-json", json.dumps({"seconds": seconds}))


async def test_the_guides_program_runs(installed: Path, gateway: Gateway) -> None:
    """It counts the tools, and prints what the owl says."""
    async with node(installed, "guide.ts", URL=gateway.url, KEY=gateway.key) as process:
        lines = (await printed(process)).splitlines()

    assert lines[0].endswith(" tools")
    assert "hello" in lines[1]


@pytest.mark.parametrize("name", REVISIONS)
async def test_a_client_lists_calls_and_hears_of_progress(
    installed: Path, gateway: Gateway, owls: ModuleServer, talker: Talker, name: str
) -> None:
    """In its revision, with each step of a call while it runs, and the result of one that lasts."""
    owls.forget()
    talker.forget()
    async with node(installed, *sdk_client(name, gateway, "call")) as process:
        for step in (b"reading\n", b"writing\n"):
            await heard(process, step)
            talker.go_on()
        found = await said(process)

    assert found["revision"] == REVISIONS[name]
    assert "owls.echo" in found["names"]
    assert "done" in found["said"][0]
    assert "awake" in found["said"][1]
    assert len(owls.calls("nap")) == 1


@pytest.mark.parametrize("name", REVISIONS)
async def test_a_client_takes_its_call_back(installed: Path, gateway: Gateway, owls: ModuleServer, name: str) -> None:
    """Whoever aborts a call has the worker hang up on the module, and calls on in the same session."""
    owls.forget()
    async with node(installed, *sdk_client(name, gateway, "cancel")) as process:
        await heard(process, b"called\n")
        await wait_until(lambda: owls.running == 1, "the call runs", seconds=3 * PATIENCE_SECONDS)
        found = await said(process, b"take it back\n")
        await wait_until(lambda: owls.interrupted, "the module was hung up on")

    assert found["how"] != "done"
    assert "hoo" in found["said"][0]


@pytest.mark.parametrize("name", REVISIONS)
async def test_a_client_survives_a_gateways_restart(
    installed: Path, bed: TestBed, owls: ModuleServer, worker: WorkerProcess, name: str
) -> None:
    """It calls on in the same session, at a gateway that has never seen it."""
    owls.forget()
    port = free_port()
    with gateway_process(bed, "--port", str(port)) as first:
        async with node(installed, *sdk_client(name, first, "twice")) as process:
            await heard(process, b"called\n")
            first.process.send_signal(signal.SIGTERM)
            first.process.wait()
            with gateway_process(bed, "--port", str(port), env={"TOOLFLEET_GATEWAY_KEY": first.key}):
                found = await said(process, b"go on\n")

    assert "hoo again" in found["said"][1]
    assert len(owls.calls("echo")) == 2


async def test_a_client_follows_a_task_and_takes_it_back(installed: Path, gateway: Gateway, owls: ModuleServer) -> None:
    """The SDK's package of tasks polls one to its result, and has the worker hang up on the module for another."""
    owls.forget()
    async with node(installed, *sdk_client("modern", gateway, "tasks")) as process:
        await heard(process, b"called\n")
        await wait_until(lambda: owls.running == 1, "the task runs", seconds=3 * PATIENCE_SECONDS)
        found = await said(process, b"take it back\n")
        await wait_until(lambda: owls.interrupted, "the module was hung up on")

    assert found["how"] == "cancelled"
    assert "awake" in found["said"][0]
    assert len(owls.calls("nap_once")) == 2


@pytest.mark.parametrize("era", ERAS)
async def test_the_inspector_lists_and_calls(installed: Path, gateway: Gateway, owls: ModuleServer, era: str) -> None:
    """One command lists the tools, another one calls one that lasts."""
    owls.forget()
    async with node(installed, *inspector(era, gateway, "--method", "tools/list")) as process:
        listed = json.loads(await printed(process))
    async with node(installed, *inspector(era, gateway, *napping("owls.nap", seconds=2))) as process:
        called = await printed(process)

    assert "owls.echo" in {tool["name"] for tool in listed["result"]["tools"]}
    assert "awake" in called
    assert len(owls.calls("nap")) == 1


async def test_the_inspector_follows_a_task_in_the_modern_era(
    installed: Path, gateway: Gateway, owls: ModuleServer
) -> None:
    """A tool that is only for clients that take tasks is called there, and nowhere else."""
    owls.forget()
    nap = napping("owls.nap_once", seconds=2)
    async with node(installed, *inspector("legacy", gateway, *nap)) as process, asyncio.timeout(_SECONDS):
        _, errors = await process.communicate()
    assert b"Declare the extension io.modelcontextprotocol/tasks" in errors
    assert not owls.calls("nap_once")
    async with node(installed, *inspector("modern", gateway, *nap)) as process:
        assert "awake" in await printed(process)

    assert len(owls.calls("nap_once")) == 1


async def test_an_inspector_that_is_interrupted_takes_its_call_back(
    installed: Path, gateway: Gateway, owls: ModuleServer
) -> None:
    """Whoever ends the command has the worker hang up on the module."""
    owls.forget()
    nap = napping("owls.nap", seconds=60)
    async with node(installed, *inspector("legacy", gateway, *nap)) as process:
        await wait_until(lambda: owls.running == 1, "the call runs", seconds=3 * PATIENCE_SECONDS)
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        await wait_until(lambda: owls.interrupted, "the module was hung up on")
