"""`python -m conformance.everything http [--port N] | stdio`: the server as a program; it says `listening` once it does."""

import argparse
import asyncio
import socket
import warnings

import uvicorn
from mcp.server.lowlevel import NotificationOptions
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPDeprecationWarning

from conformance.everything.events import KeptEvents
from conformance.everything.server import everything


class _Announced(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        (server, *_) = self.servers
        port = server.sockets[0].getsockname()[1]
        print(f"listening at http://127.0.0.1:{port}/mcp", flush=True)  # noqa: T201 - whoever started it reads that


async def main() -> None:
    """Serve until the end of the input, or a signal."""
    parser = argparse.ArgumentParser(prog="python -m conformance.everything")
    parser.add_argument("transport", choices=["http", "stdio"])
    parser.add_argument("--port", type=int, default=0, help="of the endpoint; 0 takes a free one")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore", MCPDeprecationWarning)  # logging is of the older eras, which are served too
    server = everything()
    if chosen.transport == "stdio":
        async with stdio_server() as (read, write):
            changes = NotificationOptions(tools_changed=True, prompts_changed=True)
            await server.run(read, write, server.create_initialization_options(changes))
        return
    app = server.streamable_http_app(event_store=KeptEvents(), retry_interval=100)
    # Its other parser keeps the spaces around a header's value.
    config = uvicorn.Config(app, host="127.0.0.1", port=chosen.port, log_level="warning", http="h11")
    await _Announced(config).serve()


if __name__ == "__main__":
    asyncio.run(main())
