"""An HTTP server that takes requests and never answers, and counts who waits and who has gone."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from support.streams.stream_server import stream_server


@dataclass
class SilentServer:
    url: str = ""
    waiting: int = 0
    gone: int = 0

    async def serve(self, reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.waiting += 1
        await reader.read()  # ends when the client hangs up
        self.waiting -= 1
        self.gone += 1


@asynccontextmanager
async def silent_server() -> AsyncGenerator[SilentServer]:
    silent = SilentServer()
    async with stream_server(silent.serve) as port:
        silent.url = f"http://127.0.0.1:{port}/"
        yield silent
