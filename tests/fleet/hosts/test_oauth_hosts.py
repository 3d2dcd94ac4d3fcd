"""Hosts of a server that wants OAuth, as processes: one login serves all of them, whichever dies."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.oauth.locked_server import LockedServer, locked_server
from support.up import COMMAND
from support.waiting import wait_until, wait_until_answered
from toolfleet_cli.local.redis_server import free_port

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

LOGIN = "toolfleet host mcp nest --login"
PIPE = asyncio.subprocess.PIPE


class HostProcess:
    """One host, and what it answers."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process, self._url = process, f"http://127.0.0.1:{port}"

    async def has_tools(self) -> bool:
        try:
            async with httpx.AsyncClient(trust_env=False) as client:
                return bool((await client.get(f"{self._url}/manifest", timeout=None)).json()["tools"])
        except httpx.HTTPError:
            return False

    async def call(self, tool: str) -> dict[str, Any]:
        body = {"tool_name": f"nest.{tool}", "arguments": {}}
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.post(f"{self._url}/execute", json=body, timeout=None)
        found: dict[str, Any] = answer.json()
        return found


@asynccontextmanager
async def host(folder: Path) -> AsyncGenerator[HostProcess]:
    port = free_port()
    words = ("host", "run", "nest", "--no-announce", "--port", str(port))
    with (folder / f"host-{port}.txt").open("wb") as output:
        process = await asyncio.create_subprocess_exec(*COMMAND, *words, cwd=folder, stdout=output, stderr=output)
    try:
        served = HostProcess(process, port)
        await wait_until_answered(served.has_tools, "the host serves its tools")
        yield served
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def log_in(folder: Path) -> str:
    """Log in by the command, and return what it says at its end."""
    process = await asyncio.create_subprocess_exec(*COMMAND, *LOGIN.split()[1:], cwd=folder, stdout=PIPE, stderr=PIPE)
    assert process.stdout is not None
    while not (line := (await process.stdout.readline()).decode()).startswith("http"):
        assert line, await process.communicate()
    async with httpx.AsyncClient(trust_env=False, follow_redirects=True) as client:
        assert (await client.get(line.strip())).status_code == 200
    out, err = await process.communicate()
    assert (process.returncode, err) == (0, b"")
    return out.decode().strip()


@asynccontextmanager
async def two_hosts(folder: Path) -> AsyncGenerator[tuple[LockedServer, HostProcess, HostProcess]]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(locked_server(folder))
        (folder / "toolfleet.toml").write_text(f'[hosts.nest]\nurl = "{server.url}"\n[hosts.nest.oauth]\n')
        assert (await log_in(folder)).startswith("nest is logged in: it has 4 tools.")
        one, other = [await stack.enter_async_context(host(folder)) for _ in range(2)]
        yield server, one, other
    for written in folder.glob("host-*.txt"):
        assert "planted" not in written.read_text()


async def test_one_login_serves_all_hosts_of_a_module(tmp_path: Path) -> None:
    """Each refresh token is used by one of them. One that is killed while it renews holds nothing: the others say that they need a login, and have the next."""
    async with two_hosts(tmp_path) as (server, one, other):
        for _ in range(5):
            server.authorization.forget_tokens()
            answers = await asyncio.gather(*(each.call("read") for each in (one, other) * 4))
            assert [answer["result"] for answer in answers] == ["read done"] * 8
        assert server.authorization.asked.count("refresh_token") == 5
        assert not server.authorization.is_reused

        server.authorization.forget_tokens()
        server.authorization.open.clear()
        lost = asyncio.ensure_future(one.call("read"))
        await wait_until(lambda: server.authorization.asked.count("refresh_token") == 6, "one is renewing")
        one.process.kill()
        await asyncio.gather(lost, return_exceptions=True)
        server.authorization.open.set()  # the refresh token is used, and nobody has what came for it
        refused = await other.call("read")
        assert (refused["success"], refused["effect_state"]) == (False, "none")
        assert LOGIN in refused["error"]

        await log_in(tmp_path)
        await wait_until_answered(lambda: _succeeds(other), "the other has the next login")


async def _succeeds(served: HostProcess) -> bool:
    return bool((await served.call("read")).get("success"))
