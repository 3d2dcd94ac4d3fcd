"""Runs `tools/call` on the short lane, as the SDK's way does: a client that goes has left its call, and one that waits is told so."""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from starlette.types import Receive, Send

from toolfleet_gateway.mcp.lane.lane_request import LaneRequest
from toolfleet_gateway.mcp.tool_methods import ToolMethods
from toolfleet_gateway.mcp.view import McpView
from toolfleet_gateway.tracing.mcp_spans import traced_call
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.tracing.port import Tracing

log = get_logger(__name__)

PING: Final = b": still here\r\n\r\n"

_OK = 200
_JSON: Final = [(b"content-type", b"application/json")]
_STREAM: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]

KEEP_ALIVE_SECONDS: Final = 15.0
"""After so long without a word a client is told that its answer is still to come: proxies cut silent connections."""


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


class ToolCallLane:
    """The lane of one gateway, whose `server_info` is what each result says of its server."""

    def __init__(self, tools: ToolMethods, server_info: Mapping[str, Any], tracing: Tracing | None = None) -> None:
        self._tools, self._tracing = tools, tracing
        self._stamp = {types.SERVER_INFO_META_KEY: dict(server_info)}

    async def serve(self, view: McpView, asked: LaneRequest, receive: Receive, send: Send) -> None:
        """Answer one request."""
        answer = LaneAnswer(asked.id, send)
        running = asyncio.create_task(self._run(view, asked, answer))
        gone = asyncio.create_task(_disconnected(receive))
        both: set[asyncio.Task[Any]] = {running, gone}
        try:
            while not running.done() and not gone.done():
                done, _ = await asyncio.wait(both, timeout=KEEP_ALIVE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    await answer.ping()
            if running.done():
                await _tell(running, answer)
        finally:
            for task in both:
                task.cancel()
            await asyncio.wait(both)

    async def _run(self, view: McpView, asked: LaneRequest, answer: LaneAnswer) -> dict[str, Any]:
        run, call = partial(self._tools.run, view, asked.call, answer.notify), asked.call
        if self._tracing is None:
            result = await run()
        else:
            result = await traced_call(self._tracing, call.name, asked.id, call.meta, run)
        return {**result, "_meta": {**result.get("_meta", {}), **self._stamp}}


async def _tell(running: "asyncio.Task[dict[str, Any]]", answer: LaneAnswer) -> None:
    try:
        await answer.result(running.result())
    except MCPError as exc:
        await answer.error(exc.code, exc.message, exc.data)
    except Exception:
        log.exception("mcp_call_failed")
        await answer.error(types.INTERNAL_ERROR, "The gateway failed; its log says why.")


async def _disconnected(receive: Receive) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        while (await receive())["type"] != "http.disconnect":
            pass
