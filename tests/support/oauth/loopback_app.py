"""An ASGI app over real HTTP on the loopback interface, in the test's own loop."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from support.waiting import wait_until


@asynccontextmanager
async def served(app: Any, *, port: int = 0) -> AsyncGenerator[str]:
    """Its address, once it answers, on this port or a free one."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        serving = asyncio.ensure_future(server.serve([listening]))
        try:
            await wait_until(lambda: server.started or serving.done(), "the app answers")
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving
