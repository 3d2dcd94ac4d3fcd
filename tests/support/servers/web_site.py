"""A web site on the loopback interface: answers each path with the bytes that it was given."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from support.streams.stream_server import stream_server


@dataclass
class WebSite:
    """`pages`: path, whatever its query -> the whole answer as bytes, headers included. `asked`: the requests that came.

    After its answer, what is below `/silent` keeps the connection open, and what is below `/trickle` sends a byte now and then.
    """

    port: int
    pages: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def page(self, path: str, body: bytes, *headers: str, status: str = "200 OK") -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
        self.pages[path] = "\r\n".join(lines).encode() + b"\r\n\r\n" + body

    def redirect(self, path: str, to: str) -> None:
        self.page(path, b"", f"Location: {to}", status="302 Found")

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.asked.append(request)
        path = request.split()[1].partition("?")[0]
        writer.write(self.pages.get(path, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"))
        await writer.drain()
        if path.startswith("/silent"):
            await reader.read()
        while path.startswith("/trickle"):
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)


@asynccontextmanager
async def web_site(host: str = "127.0.0.1") -> AsyncGenerator[WebSite]:
    site = WebSite(0)
    async with stream_server(site.answer, host=host) as site.port:
        yield site
