"""`toolfleet mcp`: the fleet's tools for a client that starts programs."""

import os
import sys
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.subscriptions import listen
from mcp.shared.subscriptions import ResourceUpdated

from support.fleet import TestBed
from support.gateways.mcp_clients import ERAS, Era
from support.hosts.hosted_program import hosted, paths
from support.hosts.watched_server import SERVER
from support.waiting import wait_until_answered
from support.worker_process import WorkerProcess
from toolfleet_cli.local.redis_server import redis_server

EGG = "eggs://one"


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


async def test_a_program_tells_its_client(tmp_path: Path) -> None:
    """Of the newer era, and of what changes at a server that is a program as well."""
    server = [sys.executable, str(SERVER), "stdio", "--old"]
    with redis_server(tmp_path / "redis") as url:
        fleet = TestBed(url, (), tmp_path)
        with hosted(fleet, "nest", server, {"PYTHONPATH": paths()}), fleet.worker():
            async with Client(server_of(fleet)) as client:

                async def is_there() -> bool:
                    return "nest.lay" in {tool.name for tool in (await client.list_tools()).tools}

                await wait_until_answered(is_there, "the module is known")
            async with (
                Client(server_of(fleet, "--module", "nest")) as client,
                listen(client.session, resource_subscriptions=[EGG]) as stream,
            ):
                await client.call_tool("lay", {"uri": EGG})
                assert await anext(stream) == ResourceUpdated(EGG)
