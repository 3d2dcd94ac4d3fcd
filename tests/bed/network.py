"""A connection between two members that can be late, lossy, cut or half open."""

import asyncio
from dataclasses import dataclass, field

from toolfleet_cli.local.redis_server import LOOPBACK

_CHUNK = 1 << 16


@dataclass(eq=False)
class Link:
    """Stands between a client and a server, byte for byte. Change its fields at any time.

    Attributes:
        late_seconds: How much later everything arrives.
        loses_requests: What the client writes is lost from now on; its connections stay, so they are half open.
        loses_answers: What the server writes is lost from now on.
        is_away: New connections are refused: closed at once.

    """

    server_port: int
    port: int = 0
    late_seconds: float = 0.0
    loses_requests: bool = False
    loses_answers: bool = False
    is_away: bool = False
    requests: list[bytes] = field(default_factory=list)
    """What the client has written lately, as it came."""
    _writers: dict[asyncio.StreamWriter, None] = field(default_factory=dict)  # in the order in which they are cut
    _stranded: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def redis_url(self) -> str:
        """Return the URL of a Redis behind it."""
        return f"redis://{LOOPBACK}:{self.port}/0"

    @property
    def http_url(self) -> str:
        """Return the URL of a module or gateway behind it."""
        return f"http://{LOOPBACK}:{self.port}"

    async def open(self) -> None:
        """Listen on a free port."""
        server = await asyncio.start_server(self._join, LOOPBACK, self.port)
        self.port = server.sockets[0].getsockname()[1]

    def cut(self) -> int:
        """Reset every connection. Returns how many there were."""
        there, self._writers = self._writers, {}
        for writer in there:
            writer.transport.abort()
        return len(there) // 2

    def strand(self) -> None:
        """Lose all that is written to today's connections, by either side, and their ends as well. New ones work."""
        self._stranded |= self._writers.keys()

    async def repeat(self) -> None:
        """Have the server get the client's latest request once more, as a proxy does that tries again. The answer is lost."""
        _, writer = await asyncio.open_connection(LOOPBACK, self.server_port)
        self._writers[writer] = None
        writer.write(self.requests[-1])
        await writer.drain()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_away:
            writer.transport.abort()
            return
        there_reader, there_writer = await asyncio.open_connection(LOOPBACK, self.server_port)
        pair = writer, there_writer
        self._writers |= dict.fromkeys(pair)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._carry(reader, there_writer, is_request=True))
                group.create_task(self._carry(there_reader, writer, is_request=False))
        except* OSError:
            pass  # cut
        finally:
            for each in pair:
                self._writers.pop(each, None)
                each.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_request: bool) -> None:
        while data := await reader.read(_CHUNK):
            if is_request:
                self.requests[:] = [*self.requests[-9:], data]
            if self.late_seconds:
                await asyncio.sleep(self.late_seconds)
            if writer not in self._stranded and not (self.loses_requests if is_request else self.loses_answers):
                writer.write(data)
                await writer.drain()
        if writer not in self._stranded and writer.can_write_eof():
            writer.write_eof()
