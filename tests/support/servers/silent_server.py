"""An HTTP server that takes requests and never answers, and counts who waits and who has gone."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass
class SilentServer:
    url: str = ""
    waiting: int = 0
    gone: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.waiting += 1
        await reader.read()  # ends when the client hangs up
        self.waiting -= 1
        self.gone += 1
        writer.close()


@asynccontextmanager
async def silent_server() -> AsyncGenerator[SilentServer]:
    silent = SilentServer()
    server = await asyncio.start_server(silent.serve, "127.0.0.1", 0)
    silent.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with server:
        yield silent
