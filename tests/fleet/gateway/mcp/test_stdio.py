"""`toolfleet mcp`: the fleet's tools for a client that starts programs. What else it does is in `tests/virtual/gateway/mcp`."""

import os
import sys

from mcp import Client, StdioServerParameters

from support.fleet import TestBed
from support.worker_process import WorkerProcess


async def test_a_program_serves_one_module(bed: TestBed, worker: WorkerProcess) -> None:
    """With `--module`, under bare names; they are called with the permission that the command names."""
    words = ["-m", "toolfleet_cli", "mcp", "--module", "owls", "--permission", "user"]
    env = {"PATH": os.environ["PATH"], "TOOLFLEET_REDIS_URL": bed.redis_url}
    async with Client(StdioServerParameters(command=sys.executable, args=words, env=env)) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        result = await client.call_tool("echo", {"text": "hoo"})

    assert "echo" in names
    assert "admin_only" not in names
    assert result.structured_content == {"text": "hoo"}
