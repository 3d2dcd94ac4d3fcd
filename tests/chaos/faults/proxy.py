"""What stands between a process and Redis: it passes everything on, until it goes deaf."""

import asyncio
import contextlib


class Proxy:
    """A TCP proxy on the running loop. Connections that it cannot make end at once, as if nobody were between."""

    def __init__(self, target: int) -> None:
        self.port = 0
        self.ports: set[int] = set()
        """Its own ends of today's connections: as whom Redis knows the process behind it."""
        self._target = target
        self._hearing: set[asyncio.Event] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def go_deaf(self) -> int:
        """Keep today's connections and pass nothing on for them any more, not even their end; returns how many."""
        deaf, self._hearing = self._hearing, set()
        for hears in deaf:
            hears.clear()
        return len(deaf)

    async def aclose(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        own: int = back.get_extra_info("sockname")[1]
        self.ports.add(own)
        hears = asyncio.Event()
        hears.set()
        self._hearing.add(hears)
        ways = [asyncio.create_task(_pass_on(*way, hears)) for way in ((reader, back), (there, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._hearing.discard(hears)
            self.ports.discard(own)
            for way in ways:
                way.cancel()
            for end in (writer, back):
                end.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hears: asyncio.Event) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            await hears.wait()
            writer.write(data)
            await writer.drain()
    await hears.wait()
