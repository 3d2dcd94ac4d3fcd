"""Adds a gateway's key to each request: the suite has no option for headers. All else passes as it is, byte by byte."""

import asyncio
import contextlib
import threading
from collections.abc import Generator
from contextlib import contextmanager
from urllib.parse import urlsplit

_LONGEST_HEAD = 2**16
_START_SECONDS = 10
_PIECE = 2**16


@contextmanager
def key_proxy(url: str, key: str) -> Generator[str]:
    """Stand before the server at `url`, on a port of its own, in a thread; yields the URL of that, without a path."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="key-proxy")
    thread.start()
    proxy = _KeyProxy(urlsplit(url).port or 80, key)
    try:
        port = asyncio.run_coroutine_threadsafe(proxy.open(), loop).result(_START_SECONDS)
        yield f"http://127.0.0.1:{port}"
    finally:
        asyncio.run_coroutine_threadsafe(proxy.aclose(), loop).result(_START_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_START_SECONDS)
        loop.close()


class _KeyProxy:
    def __init__(self, port: int, key: str) -> None:
        self._port = port
        # One request a connection: the end of one needs no search in the bytes.
        self._added = f"Authorization: Bearer {key}\r\nConnection: close\r\n".encode()
        self._server: asyncio.Server | None = None
        self._open = set[asyncio.Task[None]]()

    async def open(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_LONGEST_HEAD)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def aclose(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            # Cancelled at the end: asyncio would complain of a connection whose task was.
            with contextlib.suppress(
                OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError
            ):
                await self._passed(reader, writer)
        finally:
            self._open.discard(task)
            writer.close()

    async def _passed(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.readuntil(b"\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        kept = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
        upstream, downstream = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            downstream.write(first + self._added + b"\r\n".join(kept))
            ways = [
                asyncio.ensure_future(_copied(reader, downstream)),
                asyncio.ensure_future(_copied(upstream, writer)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        finally:
            downstream.close()


async def _copied(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Copy until the source has ended: a client that closes its connection closes that to the server."""
    while piece := await source.read(_PIECE):
        target.write(piece)
        await target.drain()
