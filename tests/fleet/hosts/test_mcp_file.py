"""A file of MCP servers as other programs have it: `toolfleet up` serves it where it lies, `toolfleet host mcp --config` any other."""

import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from support.hosts.mcp_server import NEST
from support.processes import is_gone
from support.up import COMMAND, call, leave_nothing, up
from support.waiting import wait_until_sync
from toolfleet_cli.local.redis_server import free_port

pytestmark = pytest.mark.slow


def write(folder: Path, *names: str) -> Path:
    """A file of real servers, and of one that is switched off."""
    servers: dict[str, Any] = {
        name: {"command": sys.executable, "args": [str(NEST), "stdio"], "env": {"NOTES": str(folder / f"{name}.notes")}}
        for name in names
    }
    file = folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": servers | {"off": {"command": "nobody", "disabled": True}}}))
    return file


def manifest(port: int) -> dict[str, Any]:
    """What is served there; nothing yet is `{}`."""
    try:
        found: dict[str, Any] = httpx.get(f"http://127.0.0.1:{port}/manifest", trust_env=False).json()
    except httpx.HTTPError:
        return {}
    return found if found.get("tools") else {}


def executed(port: int, tool: str, **arguments: Any) -> dict[str, Any]:
    """One call, as the fleet sends it."""
    body = {"tool_name": tool, "arguments": arguments}
    found: dict[str, Any] = httpx.post(f"http://127.0.0.1:{port}/execute", json=body).json()
    return found


@contextmanager
def serving(file: Path, port: int) -> Generator[subprocess.Popen[bytes]]:
    words = ["host", "mcp", "--config", str(file), "--port", str(port), "--no-announce"]
    with (file.parent / "host.txt").open("wb") as output:
        process = subprocess.Popen([*COMMAND, *words], cwd=file.parent, stdout=output, stderr=output)
    try:
        yield process
    finally:
        leave_nothing(process)


def two_free_ports() -> int:
    """The first of two that follow each other."""
    import socket  # for this one function

    while True:
        port = free_port()
        with socket.socket() as next_one:
            try:
                next_one.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


def test_each_server_of_a_file_is_a_module_with_a_process_of_its_own(tmp_path: Path) -> None:
    """Real calls are answered by both. A host that is killed is started anew; when the command ends, nothing is left."""
    port = two_free_ports()
    with serving(write(tmp_path, "barn", "nest"), port) as process:
        wait_until_sync(lambda: manifest(port) and manifest(port + 1), "both serve")
        assert (manifest(port)["module_name"], manifest(port + 1)["module_name"]) == ("barn", "nest")
        assert executed(port, "barn.echo", text="hoot")["success"]
        assert executed(port + 1, "nest.echo", text="hoot")["success"]

        everything = psutil.Process(process.pid).children(recursive=True)
        (doomed,) = [each for each in everything if " ".join(each.cmdline()).count(" mcp barn ") == 1]
        doomed.kill()
        wait_until_sync(lambda: not manifest(port), "it is gone")
        assert executed(port + 1, "nest.echo", text="hoot")["success"]
        wait_until_sync(lambda: manifest(port), "another one serves in its place")
        assert executed(port, "barn.echo", text="hoot")["success"]

        everything = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        assert process.wait() == 0
        wait_until_sync(lambda: all(is_gone(each.pid) for each in everything), "nothing is left")


@pytest.mark.timeout(300)
def test_up_serves_the_file_that_lies_there(tmp_path: Path) -> None:
    """One line says so, and its servers are modules as any others."""
    file = write(tmp_path, "nest")
    with up(tmp_path, None, "--no-gateway") as fleet:
        said = " ".join(fleet.said().split())
        assert f"The MCP servers of {file} are modules: nest" in said
        assert call("nest.echo", "text=hoot", cwd=tmp_path)["success"]
