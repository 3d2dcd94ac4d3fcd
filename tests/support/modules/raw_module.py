"""A module that does what a test tells it, down to the byte: any reply, half of one, none at all."""

import asyncio
import json
import ssl
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from socket import SO_LINGER, SOL_SOCKET
from typing import Any

from support.streams.stream_server import stream_server


@dataclass(frozen=True)
class Received:
    """A request as the module saw it; header names in lower case. `connection` counts from 1."""

    line: str
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class RawModule:
    """What the module saw. `departures` counts the connections that the other side has ended."""

    url: str = ""
    requests: list[Received] = field(default_factory=list)
    connections: int = 0
    departures: int = 0


@dataclass
class Peer:
    """One connection, from the module's side."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    module: RawModule
    number: int

    async def request(self) -> Received:
        """Read a whole request and note it. Raises `IncompleteReadError` when the caller has gone."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *fields = head.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in fields)}
        body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        received = Received(line, headers, body, self.number)
        self.module.requests.append(received)
        return received

    async def send(self, *parts: bytes) -> None:
        self.writer.write(b"".join(parts))
        await self.writer.drain()

    async def send_for_ever(self, part: bytes, *, every: float = 0) -> None:
        while True:
            await self.send(part)
            await asyncio.sleep(every)

    async def gone(self) -> None:
        """Return when the caller has ended the connection."""
        while await self.reader.read(2**16):
            pass

    def reset(self) -> None:
        """End the connection with a TCP reset instead of a proper close."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Behaviour = Callable[[Peer], Awaitable[None]]


@asynccontextmanager
async def raw_module(
    behaviour: Behaviour, *, port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[RawModule]:
    """Run `behaviour` for each connection; when it returns, the connection is closed."""
    module = RawModule()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        module.connections += 1
        try:
            await behaviour(Peer(reader, writer, module, module.connections))
        except (asyncio.IncompleteReadError, ConnectionError):
            module.departures += 1

    async with stream_server(answer, port=port, tls=tls, backlog=1000) as bound:
        module.url = f"{'https' if tls else 'http'}://127.0.0.1:{bound}"
        yield module


def http(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    """A whole HTTP response with its length."""
    head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers])
    return head.encode("latin-1") + b"\r\n\r\n" + body


def reply(tool_name: Any = "research.search_docs", **fields: Any) -> bytes:
    """A module's reply as JSON: a success, unless `fields` say otherwise."""
    return json.dumps({"tool_name": tool_name, "success": True, "result": None, "error": None, **fields}).encode()


def answering(response: bytes) -> Behaviour:
    """Answer each request on a connection with `response`, as long as the caller likes."""

    async def behave(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(response)

    return behave


def after_request(*parts: bytes) -> Behaviour:
    """Read one request, send `parts` and close."""

    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.send(*parts)

    return behave
