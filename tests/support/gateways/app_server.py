"""The gateway's server with any app, on the test's own loop."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from starlette.types import ASGIApp

from toolfleet_gateway.http.server import GatewayServer, make_server
from toolfleet_registry.settings import Settings


@asynccontextmanager
async def serving(app: ASGIApp, **settings: Any) -> AsyncGenerator[GatewayServer]:
    """A server of the app; at the end nobody is waited for."""
    ready, own = asyncio.Event(), Settings(redis_url="redis://127.0.0.1:1/0", **settings)
    server = make_server(app, own, listening=ready.set, leaving=lambda: None)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = asyncio.create_task(server.serve(sockets=[listener]))
        await ready.wait()
        try:
            yield server
        finally:
            server.should_exit = server.force_exit = True
            await running
