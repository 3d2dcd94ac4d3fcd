"""Posts to a server over kept connections, with as little work as possible, so that the client is not what is measured."""

import asyncio
import json
from collections import deque
from typing import Any

_HEAD_END = b"\r\n\r\n"
_LENGTH = b"content-length: "


class RestClient:
    """Each request takes a connection of its own, and leaves it to the next."""

    def __init__(self, host: str, port: int, key: str) -> None:
        self._host, self._port = host, port
        self._head = (
            f"Host: {host}:{port}\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\nContent-Length: "
        )
        self._idle = deque["_Connection"]()

    @property
    def idle(self) -> int:
        """How many connections wait for a request, and are open."""
        return sum(connection.is_open for connection in self._idle)

    async def post(self, path: str, body: Any, headers: str = "") -> tuple[int, Any]:
        """The status and the JSON of the answer."""
        connection = self._kept() or await self._connect()
        data = json.dumps(body).encode()
        request = f"POST {path} HTTP/1.1\r\n{headers}{self._head}{len(data)}\r\n\r\n".encode() + data
        status, answer = await connection.ask(request)
        self._idle.append(connection)
        return status, json.loads(answer)

    def _kept(self) -> "_Connection | None":
        """The one that was used last; servers close what has been idle for some seconds."""
        while self._idle:
            if (connection := self._idle.pop()).is_open:
                return connection
        return None

    def close(self) -> None:
        """Close what is idle."""
        for connection in self._idle:
            connection.close()

    async def _connect(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        _, protocol = await loop.create_connection(_Connection, self._host, self._port)
        return protocol


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._buffer = b""
        self._waiting: asyncio.Future[tuple[int, bytes]] | None = None
        self.is_open = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as it is for TCP
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(_HEAD_END)
        if not found:
            return
        begin = head.index(_LENGTH) + len(_LENGTH)
        length = int(head[begin:].partition(b"\r\n")[0])
        if len(rest) >= length and self._waiting is not None and not self._waiting.done():
            self._buffer = rest[length:]
            self._waiting.set_result((int(head[9:12]), rest[:length]))

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(exc or ConnectionResetError("the server has hung up"))

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._waiting

    def close(self) -> None:
        self._transport.close()
