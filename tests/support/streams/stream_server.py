"""Serves streams on loopback byte for byte, and leaves no connection open at its end: what is collected later fails another test."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Serves one connection, which is closed when it returns."""


@asynccontextmanager
async def stream_server(
    answer: Answer,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    tls: ssl.SSLContext | None = None,
    backlog: int = 100,
) -> AsyncGenerator[int]:
    """Run `answer` for each connection; yields the port. A client that goes ends its `answer`; at the end all are cut."""
    connections = Connections(answer)
    server = await asyncio.start_server(connections.accept, host, port, ssl=tls, backlog=backlog)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await connections.cut()


class Connections:
    """The connections that a server of the running loop has taken."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Begin to answer. No coroutine: one that is cancelled before its first step closes nothing."""
        self._open[asyncio.create_task(self._serve(reader, writer))] = writer

    async def cut(self) -> None:
        """End whatever is still open, and return when it has ended."""
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        for writer in self._open.values():
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for writer in self._open.values()), return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has gone
        finally:
            writer.close()
