"""MCP servers ask in the middle of a call of the fleet's, in a session of an older version or in a task, and whoever called answers."""

import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.fleet import TestBed
from support.hosts.mcp_server import NEST, listens
from support.module_server import ModuleServer
from support.modules.listed_modules import until_listed
from support.programs.fork_server import start
from support.up import leave_nothing
from support.waiting import wait_until
from toolfleet import Caller, PendingInput, ToolCall, ToolFleet
from toolfleet_cli.local.tcp_ports import held_port

ADA = Caller(user_id="ada", permission="user", allowed_modules="*")
ASK = ToolCall(tool_name="nest.ask", arguments={"text": "2"}, takes_input=True)
TEND = ToolCall(tool_name="nest.tend", arguments={"text": "2"}, takes_input=True)
SECONDS = 60


@asynccontextmanager
async def nest_behind(
    redis_url: str, folder: Path, *options: str, words: Sequence[str] = ()
) -> AsyncGenerator[ToolFleet]:
    """A fleet with the nest behind a host, which has these options."""
    with held_port() as port:
        command = [sys.executable, "-m", "toolfleet_cli", "host", "mcp", "nest", *options, "--no-announce", "--env"]
        command += [f"NOTES={folder / 'notes'}", "--port", str(port), "--", sys.executable, str(NEST), "stdio", *words]
        env = {**os.environ, "TOOLFLEET_REDIS_URL": redis_url}
        with (folder / "host.txt").open("wb") as output:
            host = start(command, cwd=folder, env=env, output=output)
        try:
            await wait_until(lambda: listens(port), "the host is up", seconds=SECONDS)
            bed = TestBed(redis_url, (ModuleServer("nest", url=f"http://127.0.0.1:{port}"),), folder)
            with bed.worker():
                async with ToolFleet(settings=bed.settings) as fleet:
                    await until_listed(fleet, ADA, "nest")
                    yield fleet
        finally:
            leave_nothing(host)


def noted(folder: Path, *beginnings: str) -> list[str]:
    """What the nest has noted that begins so."""
    return [line for line in (folder / "notes").read_text().splitlines() if line.startswith(beginnings)]


async def test_whoever_called_answers_what_the_server_asks(redis_url: str, tmp_path: Path) -> None:
    """Each question of an older one comes in turn; the server is called once, and the call is one attempt."""
    async with nest_behind(redis_url, tmp_path, "--asks", words=["--old"]) as fleet:
        result = await fleet.call(ASK, ADA, timeout=SECONDS, on_input=answering("Ada", "Bob"))

    assert (result.success, result.result, result.audit.attempts) == (True, "Hello Bob", 1), result
    assert noted(tmp_path, "ask", "answered") == ["ask 2", "answered accept Ada", "answered accept Bob"]


async def test_whoever_called_answers_what_a_task_asks(redis_url: str, tmp_path: Path) -> None:
    """It gets each answer once, and its tool is called once; one that nobody wants any more is cancelled while it asks."""
    async with nest_behind(redis_url, tmp_path) as fleet:
        result = await fleet.call(TEND, ADA, timeout=SECONDS, on_input=answering("Ada", "Bob"))
        left = await fleet.submit(TEND, ADA, timeout=SECONDS)
        assert isinstance(await left.next_stop(SECONDS), PendingInput)
        await left.cancel()
        await wait_until(lambda: noted(tmp_path, "cancel"), "the task is cancelled", seconds=SECONDS)

    assert (result.success, result.result, result.audit.attempts) == (True, "Hello Ada and Bob", 1), result
    assert noted(tmp_path, "tend", "update", "cancel") == [
        "tend 2",
        "update task-0 who-1 Ada",
        "update task-0 who-2 Bob",
        "tend 2",
        "cancel task-1",
    ]


def answering(*names: str) -> Callable[[PendingInput], Awaitable[Mapping[str, Any]]]:
    """Answers each question with the next name."""
    left = iter(names)

    async def answer(asked: PendingInput) -> Mapping[str, Any]:
        name = next(left)
        return {key: {"action": "accept", "content": {"name": name}} for key in asked.requests}

    return answer
