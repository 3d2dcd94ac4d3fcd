"""Writes the answer to a request of the short lane: as JSON, or as a stream of events if something is told before its end."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final

from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from starlette.types import Send

PING: Final = b": still here\r\n\r\n"

_OK = 200
_JSON: Final = [(b"content-type", b"application/json")]
_STREAM: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


class LaneAnswer:
    """The answer to the request of this id."""

    def __init__(self, number: str | int, send: Send) -> None:
        self._number = number
        self._send = send
        self._is_stream = False
        self._sending = (
            asyncio.Lock()
        )  # what is told of progress, log messages and of neither comes from tasks of their own

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Tell the client something before the end."""
        await self._event({"jsonrpc": "2.0", "method": method, "params": params})

    async def ping(self) -> None:
        """Say that the answer is still to come."""
        async with self._sending:
            await self._begin()
            await self._part(PING)

    async def result(self, result: Mapping[str, Any]) -> None:
        """End with a result."""
        await self._end({"jsonrpc": "2.0", "id": self._number, "result": result}, _OK)

    async def error(self, code: int, message: str, data: Any = None) -> None:
        """End with an error of the protocol."""
        error = {"code": code, "message": message, **({} if data is None else {"data": data})}
        status = ERROR_CODE_HTTP_STATUS.get(code, _OK)
        await self._end({"jsonrpc": "2.0", "id": self._number, "error": error}, status)

    async def _end(self, message: Mapping[str, Any], status: int) -> None:
        if self._is_stream:
            await self._event(message)
            await self._part(b"", more=False)
            return
        body = _written(message)
        headers = [*_JSON, (b"content-length", str(len(body)).encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._part(body, more=False)

    async def _event(self, message: Mapping[str, Any]) -> None:
        async with self._sending:
            await self._begin()
            await self._part(b"event: message\r\ndata: " + _written(message) + b"\r\n\r\n")

    async def _begin(self) -> None:
        if not self._is_stream:
            self._is_stream = True
            await self._send({"type": "http.response.start", "status": _OK, "headers": _STREAM})

    async def _part(self, body: bytes, *, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


def _written(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()
