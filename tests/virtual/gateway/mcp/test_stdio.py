"""What `toolfleet mcp` serves, with streams in memory; as a program with its own: `tests/fleet/gateway/mcp/test_stdio.py`."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import Client
from mcp.client.subscriptions import listen
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.subscriptions import ResourceUpdated

from bed.fleet import Bed
from support.gateways.mcp_clients import ERAS
from support.hosts.watched_server import Watched, server_of
from support.module_server import ModuleServer
from support.modules.listed_modules import until_listed
from toolfleet import Caller
from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.mcp import server
from toolfleet_gateway.mcp.view import McpView

EGG = "eggs://one"
USER = Caller(user_id="ada", permission="user", allowed_modules="*")


@asynccontextmanager
async def program(bed: Bed, view: McpView, patch: pytest.MonkeyPatch, **options: Any) -> AsyncGenerator[Client]:
    """A client of the program."""

    @asynccontextmanager
    async def carried(streams: Any) -> AsyncGenerator[Any]:
        yield streams

    async with create_client_server_memory_streams() as (ours, its):
        patch.setattr(server, "stdio_server", lambda: carried(its))
        bed.site("program").start(server.serve_stdio(bed.settings, view))
        async with Client(carried(ours), **options) as client:
            yield client


async def test_a_program_serves_the_fleet(bed: Bed, owls: ModuleServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tools are those of the gateway's endpoint, called with the permission that the command names."""
    await bed.serve(owls)
    await bed.worker()
    for era in ERAS:
        async with program(bed, McpView(Identity(USER), None), monkeypatch, mode=era) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            result = await client.call_tool("owls.echo", {"text": "hoo"})

        assert "owls.echo" in names
        assert "owls.admin_only" not in names
        assert result.structured_content == {"text": "hoo"}


async def test_a_program_tells_its_client(bed: Bed, owner: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the newer era, and of what changes at a server of the older one."""
    await bed.host_mcp("nest", server_of(Watched(), is_old=True).streamable_http_app())
    await bed.worker()
    await until_listed(await bed.agent(), owner, "nest")
    async with (
        program(bed, McpView(Identity(owner), "nest"), monkeypatch) as client,
        listen(client.session, resource_subscriptions=[EGG]) as stream,
    ):
        await client.call_tool("lay", {"uri": EGG})
        assert await anext(stream) == ResourceUpdated(EGG)
