"""A TCP proxy that can go deaf: connections stand, and nothing passes; or be slow. Runs in a thread of its own."""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

from support.waiting import PATIENCE_SECONDS

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, and for no time


class TcpProxy:
    """Passes bytes on to a port of this machine, unless it is told not to; answers come `delay_seconds` later."""

    def __init__(self, target: int, *, delay_seconds: float = 0) -> None:
        self._delay_seconds = delay_seconds
        self.port = 0
        self.connections = 0
        self.loop = asyncio.new_event_loop()
        self._target = target
        self._open: set[asyncio.Event] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self._serving: set[asyncio.Task[None]] = set()
        self._readers: list[asyncio.StreamReader] = []
        self._there, self._back = _Gate(), _Gate()

    def go_deaf(self) -> None:
        """Keep today's connections, and pass nothing on for them ever again. New ones work."""
        self.loop.call_soon_threadsafe(self._strand)

    def hold(self, *, there: bool = True, back: bool = True, after_bytes: int = 0) -> None:
        """Keep all connections, and those to come, and pass nothing on: towards the server, back from it, or both, until `release`.

        So many bytes of what comes next pass in each of these directions.
        """
        for is_held, gate in ((there, self._there), (back, self._back)):
            if is_held:
                self.loop.call_soon_threadsafe(gate.shut, after_bytes)

    def holds(self, text: bytes) -> bool:
        """Whether that has come for the server, and has not been passed on: it may be asked in any thread."""
        return any(text in data for data in (*self._there.held, *(bytes(each._buffer) for each in self._readers)))  # type: ignore[attr-defined] # nothing else tells

    def release(self) -> None:
        """Pass on what was held, and what follows."""
        for gate in (self._there, self._back):
            self.loop.call_soon_threadsafe(gate.open)

    def reset(self) -> None:
        """Cut today's connections as a router does that has forgotten them."""
        self.loop.call_soon_threadsafe(self._reset)

    async def start(self) -> asyncio.Server:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def end(self, server: asyncio.Server) -> None:
        """Cut everything."""
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    def _strand(self) -> None:
        for passes in self._open:
            passes.clear()
        self._open.clear()

    def _reset(self) -> None:
        for writer in self._writers:
            own: socket.socket | None = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):  # it has ended already
                if own is not None:
                    own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()
        self._writers.clear()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # No coroutine: one that is cancelled before its first step, or while it connects, closes nothing.
        self.connections += 1
        self._writers.append(writer)
        self._readers.append(reader)
        self._serving.add(task := self.loop.create_task(self._serve(reader, writer)))
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:  # as if nobody were between
            writer.transport.abort()
            return
        self._writers.append(back)
        passes = asyncio.Event()
        passes.set()
        self._open.add(passes)
        ways = [
            asyncio.create_task(_pass_on(reader, back, passes, self._there)),
            asyncio.create_task(_pass_on(there, writer, passes, self._back, self._delay_seconds)),
        ]
        with contextlib.suppress(asyncio.CancelledError):  # the proxy ends; asyncio would log it as an error
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        self._open.discard(passes)
        for end in (writer, back):
            end.close()


class _Gate:
    """Whether bytes pass in one direction. Belongs to the proxy's loop."""

    def __init__(self) -> None:
        self._passes = asyncio.Event()
        self._passes.set()
        self._rest = 0
        self.held = list[bytes]()

    def shut(self, after_bytes: int) -> None:
        self._rest = after_bytes
        self._passes.clear()

    def open(self) -> None:
        self._passes.set()

    async def pass_on(self, data: bytes, write: Callable[[bytes], None]) -> None:
        """Write it, as much of it as may pass at once."""
        if not self._passes.is_set():
            first, data = data[: self._rest], data[self._rest :]
            self._rest -= len(first)
            write(first)
        if data:
            self.held.append(data)
            await self._passes.wait()
            self.held.remove(data)
            write(data)

    async def wait(self) -> None:
        await self._passes.wait()


@contextmanager
def tcp_proxy(target: int, *, delay_seconds: float = 0) -> Generator[TcpProxy]:
    """A proxy to that port, on a free one."""
    proxy = TcpProxy(target, delay_seconds=delay_seconds)
    thread = threading.Thread(target=proxy.loop.run_forever, daemon=True)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(proxy.start(), proxy.loop).result(PATIENCE_SECONDS)
    try:
        yield proxy
    finally:
        asyncio.run_coroutine_threadsafe(proxy.end(server), proxy.loop).result(PATIENCE_SECONDS)
        proxy.loop.call_soon_threadsafe(proxy.loop.stop)
        thread.join(PATIENCE_SECONDS)
        proxy.loop.close()


async def _pass_on(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    passes: asyncio.Event,
    gate: _Gate,
    delay_seconds: float = 0,
) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            await passes.wait()
            await asyncio.sleep(delay_seconds)
            await gate.pass_on(data, writer.write)
            await writer.drain()
    await passes.wait()  # not even the end gets through
    await gate.wait()
