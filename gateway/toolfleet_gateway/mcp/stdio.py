"""Serves one MCP client over the standard streams of this process."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from mcp.server.stdio import stdio_server

from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.http.streams import End
from toolfleet_gateway.mcp.methods import McpMethods
from toolfleet_gateway.mcp.view import McpView
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.settings import Settings
from toolfleet_tasks.aio.closing import Closing
from toolfleet_tasks.client.fleet import ToolFleet

_REDIS_SECONDS = 2.0
_LAST_SECONDS = 2.0  # for the cancellation of unwanted calls


async def serve_stdio(settings: Settings, view: McpView) -> None:
    """Serve until the client closes its end. Raises as `ToolFleet` does when it is entered."""
    url = str(settings.redis_url)
    async with (
        ToolFleet(settings=settings) as fleet,
        async_client(url, master=settings.sentinel_master, timeout_seconds=_REDIS_SECONDS) as redis,
    ):
        methods = McpMethods.of(fleet, settings, redis, Closing(), _place, lambda _: view)
        server = methods.server(await methods.modules.kinds(view))
        async with stdio_server() as (reads, writes):
            await server.run(reads, writes, server.create_initialization_options(extensions={}))
        await methods.abandoned.settle(_LAST_SECONDS)


@asynccontextmanager
async def _place(_: Identity) -> AsyncGenerator["asyncio.Future[End]"]:
    """Return a place without a limit for a stream of changes, which lasts as long as the process."""
    yield asyncio.get_running_loop().create_future()
