"""The port of a deployment: it stays the same while the releases behind it change."""

import asyncio
import contextlib
from asyncio import StreamReader, StreamWriter
from dataclasses import dataclass
from typing import Protocol

from modules.gate import LOOPBACK

_CONNECT_SECONDS = 5.0
_CHUNK_BYTES = 65_536
_NOBODY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"


class Upstream(Protocol):
    """What a front passes connections on to."""

    async def connect(self) -> tuple[StreamReader, StreamWriter]:
        """A connection of its own. Raises `OSError`, `TimeoutError` among them."""
        ...


class Front:
    """Passes connections on to `backend`, byte by byte, so that it carries whatever HTTP does.

    A connection stays with the backend that it began with. Where there is none, or no room, the answer is 503. One on
    which nobody says anything is ended: at its beginning after `first_byte_seconds`, then after `idle_seconds`.
    """

    def __init__(self, *, connections: int, first_byte_seconds: float, idle_seconds: float) -> None:
        self.backend: Upstream | None = None
        self._most = connections
        self._first_byte_seconds = first_byte_seconds
        self._idle_seconds = idle_seconds
        self._open: dict[asyncio.Task[None], Upstream | None] = {}
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int | None:
        """Where it listens, `None` if it does not."""
        return self._server.sockets[0].getsockname()[1] if self._server and self._server.sockets else None

    async def open(self, preferred: int | None) -> int:
        """Listen, on the preferred port if nobody else does. Returns the port."""
        if self._server is None:
            try:
                self._server = await asyncio.start_server(self._serve, LOOPBACK, preferred or 0)
            except OSError:
                self._server = await asyncio.start_server(self._serve, LOOPBACK, 0)
        port = self.port
        assert port is not None
        return port

    async def close(self, *, drain_seconds: float = 0) -> None:
        """Listen no more, and let the connections end."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._end(set(self._open), drain_seconds)

    async def drain(self, backend: Upstream, seconds: float) -> None:
        """Give the connections to a backend that is replaced time to end, then end them."""
        await self._end({task for task, upstream in self._open.items() if upstream is backend}, seconds)

    async def _end(self, tasks: set[asyncio.Task[None]], seconds: float) -> None:
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=seconds)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        backend = self.backend if len(self._open) < self._most else None
        self._open[task] = backend
        try:
            async with contextlib.AsyncExitStack() as stack:
                stack.callback(writer.close)
                first = await self._first(reader) if backend is not None else b""
                pair = await _connect(backend)
                if pair is None:
                    writer.write(_NOBODY)
                    return
                stack.callback(pair[1].close)
                pair[1].write(first)
                async with asyncio.timeout(self._idle_seconds) as idle:
                    await _Passing(idle, self._idle_seconds).both_ways(reader, writer, *pair)
        except (OSError, asyncio.CancelledError):  # one side is gone or silent, or we end it: nobody is left to be told
            writer.transport.abort()
        finally:
            del self._open[task]

    async def _first(self, reader: StreamReader) -> bytes:
        """What the client says first. Raises `TimeoutError`."""
        async with asyncio.timeout(self._first_byte_seconds):
            return await reader.read(_CHUNK_BYTES)


async def _connect(backend: Upstream | None) -> tuple[StreamReader, StreamWriter] | None:
    if backend is None:
        return None
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_CONNECT_SECONDS):
            return await backend.connect()
    return None


@dataclass(frozen=True, slots=True)
class _Passing:
    """Passes a connection on; whatever is said puts off the end of its patience."""

    idle: asyncio.Timeout
    idle_seconds: float

    async def both_ways(
        self, reader: StreamReader, writer: StreamWriter, inner_reader: StreamReader, inner_writer: StreamWriter
    ) -> None:
        """Until the backend has said all, or the client is gone. Raises `OSError`."""
        back = asyncio.create_task(self._pass(inner_reader, writer))
        forth = asyncio.create_task(self._pass(reader, inner_writer))
        try:
            await asyncio.wait({back, forth}, return_when=asyncio.FIRST_COMPLETED)
            if forth.done():
                forth.result()  # a client that has only said all still waits for the answer
            await back
        finally:
            back.cancel()
            forth.cancel()
            await asyncio.gather(back, forth, return_exceptions=True)

    async def _pass(self, reader: StreamReader, writer: StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while data := await reader.read(_CHUNK_BYTES):
            if not self.idle.expired():
                self.idle.reschedule(loop.time() + self.idle_seconds)
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
