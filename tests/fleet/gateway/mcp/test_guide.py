"""The guide's program for MCP clients does what it says, letter for letter."""

import asyncio
import os
import sys

from support.documents import programs
from support.gateways.gateway_process import Gateway
from support.waiting import PATIENCE_SECONDS

GUIDE = programs("docs/guides/mcp-clients.md")


async def test_the_client_lists_and_calls(one: Gateway) -> None:
    """It prints how many tools there are, and what the call has returned."""
    env = {**os.environ, "URL": one.url, "KEY": one.key, "no_proxy": "*"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", GUIDE["mcp-client"], env=env, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(3 * PATIENCE_SECONDS):
        printed, _ = await process.communicate()

    tools, result = printed.decode().splitlines()
    assert tools.endswith("tools")
    assert result == "{'text': 'hello'}"
