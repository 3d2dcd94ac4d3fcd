"""An MCP server of an older version asks in the middle of a call of the fleet's, and whoever called answers."""

import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.fleet import TestBed
from support.hosts.mcp_server import NEST, listens
from support.module_server import ModuleServer
from support.modules.listed_modules import until_listed
from support.programs.fork_server import start
from support.up import leave_nothing
from support.waiting import wait_until
from toolfleet import Caller, PendingInput, ToolCall, ToolFleet
from toolfleet_cli.local.tcp_ports import free_port

ADA = Caller(user_id="ada", permission="user", allowed_modules="*")
ASK = ToolCall(tool_name="nest.ask", arguments={"text": "2"}, takes_input=True)
SECONDS = 60


@pytest.fixture
async def fleet(redis_url: str, tmp_path: Path) -> AsyncIterator[ToolFleet]:
    """With the nest behind a host that lets it ask."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "toolfleet_cli", "host", "mcp", "nest", "--asks", "--no-announce", "--env"]
    command += [f"NOTES={tmp_path / 'notes'}", "--port", str(port), "--", sys.executable, str(NEST), "stdio", "--old"]
    env = {**os.environ, "TOOLFLEET_REDIS_URL": redis_url}
    with (tmp_path / "host.txt").open("wb") as output:
        host = start(command, cwd=tmp_path, env=env, output=output)
    try:
        await wait_until(lambda: listens(port), "the host is up")
        bed = TestBed(redis_url, (ModuleServer("nest", url=url),), tmp_path)
        with bed.worker():
            async with ToolFleet(settings=bed.settings) as fleet:
                await until_listed(fleet, ADA, "nest")
                yield fleet
    finally:
        leave_nothing(host)


async def test_whoever_called_answers_what_the_server_asks(fleet: ToolFleet, tmp_path: Path) -> None:
    """Each of its questions comes in turn; the server is called once, and the call is one attempt."""
    names = iter(("Ada", "Bob"))

    async def answer(asked: PendingInput) -> Mapping[str, Any]:
        return {key: {"action": "accept", "content": {"name": next(names)}} for key in asked.requests}

    result = await fleet.call(ASK, ADA, timeout=SECONDS, on_input=answer)

    assert (result.success, result.result, result.audit.attempts) == (True, "Hello Bob", 1), result
    noted = (tmp_path / "notes").read_text().splitlines()
    assert [line for line in noted if line.startswith(("ask", "answered"))] == [
        "ask 2",
        "answered accept Ada",
        "answered accept Bob",
    ]
