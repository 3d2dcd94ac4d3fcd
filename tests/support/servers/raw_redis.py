"""A server that a line takes for Redis, and that otherwise answers as a test says."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress

import hiredis

from support.streams.stream_server import stream_server

Answer = Callable[[list[bytes]], bytes]


class RawRedis:
    """`answer` gets each command but HELLO, and gives the bytes of its reply: none for silence."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.url = ""
        self.connections = 0
        self.seen: Counter[bytes] = Counter()
        self.chunks: list[bytes] = []  # what came at once
        self._writers: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        commands = hiredis.Reader()
        with suppress(OSError):
            while data := await reader.read(2**20):
                self.chunks.append(data)
                commands.feed(data)
                while command := commands.gets():
                    self.seen[command[0]] += 1
                    writer.write(self._reply(command))
        self._writers.discard(writer)

    def hang_up(self) -> None:
        """Close every connection."""
        for writer in tuple(self._writers):
            writer.close()

    def say(self, data: bytes) -> None:
        """Send something unasked, to everybody."""
        for writer in self._writers:
            writer.write(data)

    def _reply(self, command: list[bytes]) -> bytes:
        return b"%1\r\n+proto\r\n:3\r\n" if command[0] == b"HELLO" else self.answer(command)


def obliging(command: list[bytes]) -> bytes:
    """An answer that says yes to everything."""
    return b"+PONG\r\n" if command[0] == b"PING" else b"+OK\r\n"


@asynccontextmanager
async def raw_redis(answer: Answer = obliging) -> AsyncGenerator[RawRedis]:
    raw = RawRedis(answer)
    async with stream_server(raw.serve) as port:
        raw.url = f"redis://127.0.0.1:{port}/0"
        yield raw
