"""`toolfleet mcp`: the fleet's tools for a client that starts programs."""

import os
import sys

import pytest
from mcp import Client, StdioServerParameters

from support.fleet import TestBed
from support.gateways.mcp_clients import ERAS, Era
from support.worker_process import WorkerProcess


def server_of(bed: TestBed, *options: str) -> StdioServerParameters:
    env = {"PATH": os.environ["PATH"], "TOOLFLEET_REDIS_URL": bed.redis_url}
    return StdioServerParameters(command=sys.executable, args=["-m", "toolfleet_cli", "mcp", *options], env=env)


@pytest.mark.parametrize("era", ERAS)
async def test_a_program_serves_the_fleet(bed: TestBed, worker: WorkerProcess, era: Era) -> None:
    """Its tools are those of the gateway's endpoint, called with the permission that the command names."""
    async with Client(server_of(bed, "--permission", "user"), mode=era) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        result = await client.call_tool("owls.echo", {"text": "hoo"})

    assert "owls.echo" in names
    assert "owls.admin_only" not in names
    assert result.structured_content == {"text": "hoo"}


async def test_a_program_serves_one_module(bed: TestBed, worker: WorkerProcess) -> None:
    """With `--module`, under bare names."""
    async with Client(server_of(bed, "--module", "owls")) as client:
        assert "echo" in {tool.name for tool in (await client.list_tools()).tools}
