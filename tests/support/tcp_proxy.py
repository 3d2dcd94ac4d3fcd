"""A TCP proxy that can go deaf: connections stand, and nothing passes; or be slow. Runs in a thread of its own."""

import asyncio
import contextlib
import threading
from collections.abc import Generator
from contextlib import contextmanager


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

    def go_deaf(self) -> None:
        """Keep today's connections, and pass nothing on for them ever again. New ones work."""
        self.loop.call_soon_threadsafe(self._strand)

    async def start(self) -> asyncio.Server:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
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

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers += (writer, back)
        passes = asyncio.Event()
        passes.set()
        self._open.add(passes)
        ways = [
            asyncio.create_task(_pass_on(reader, back, passes)),
            asyncio.create_task(_pass_on(there, writer, passes, self._delay_seconds)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        self._open.discard(passes)
        for end in (writer, back):
            end.close()


@contextmanager
def tcp_proxy(target: int, *, delay_seconds: float = 0) -> Generator[TcpProxy]:
    """A proxy to that port, on a free one."""
    proxy = TcpProxy(target, delay_seconds=delay_seconds)
    thread = threading.Thread(target=proxy.loop.run_forever, daemon=True)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(proxy.start(), proxy.loop).result(10)
    try:
        yield proxy
    finally:
        asyncio.run_coroutine_threadsafe(proxy.end(server), proxy.loop).result(10)
        proxy.loop.call_soon_threadsafe(proxy.loop.stop)
        thread.join(10)
        proxy.loop.close()


async def _pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passes: asyncio.Event, delay_seconds: float = 0
) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            await passes.wait()
            await asyncio.sleep(delay_seconds)
            writer.write(data)
            await writer.drain()
    await passes.wait()  # not even the end gets through
