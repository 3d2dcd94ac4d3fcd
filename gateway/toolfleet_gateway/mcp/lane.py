"""Serves `tools/call` of 2026-07-28 on a short way of its own: most requests are one, and the SDK's way takes three times as long."""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from mcp_types.version import LATEST_MODERN_VERSION
from starlette.types import Receive, Send

from toolfleet_gateway.mcp.calls import McpCall
from toolfleet_gateway.mcp.client_request import kinds_of, takes_forms
from toolfleet_gateway.mcp.results import EXTENSION
from toolfleet_gateway.mcp.tools import ToolMethods
from toolfleet_gateway.mcp.view import McpView
from toolfleet_gateway.tracing import traced_call
from toolfleet_registry.contracts.call_context import is_log_level
from toolfleet_registry.spans import Tracing
from toolfleet_registry.system.loggers import get_logger

log = get_logger(__name__)

Headers = list[tuple[bytes, bytes]]

_METHOD: Final = "tools/call"
_PARAMS: Final = frozenset({"name", "arguments", "_meta"})
_BODY: Final = frozenset({"jsonrpc", "id", "method", "params"})
_WANTED: Final = {b"mcp-protocol-version": LATEST_MODERN_VERSION.encode(), b"mcp-method": _METHOD.encode()}
_ACCEPTED: Final = (b"application/json", b"text/event-stream")
_PROGRESS: Final = "progressToken"
_OTHERS: Final = b"mcp-param-"  # arguments that travel as headers, too

_PING: Final = b": still here\r\n\r\n"

_OK = 200
_JSON: Final = [(b"content-type", b"application/json")]
_STREAM: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]

_KEEP_ALIVE_SECONDS: Final = 15.0
"""After so long without a word a client is told that its answer is still to come: proxies cut silent connections."""


@dataclass(frozen=True, slots=True)
class LaneRequest:
    """A request for the lane."""

    id: str | int
    call: McpCall


def named_tool(headers: Headers) -> str | None:
    """The tool that a request's headers name, if they are those of a call that may take the lane."""
    found = {name: value for name, value in headers if name.startswith(b"mcp-") or name == b"accept"}
    if sum(name in found for name, _ in headers) != len(found) or any(name.startswith(_OTHERS) for name in found):
        return None  # one appears twice
    if any(found.get(name) != value for name, value in _WANTED.items()):
        return None
    accepted = found.get(b"accept", b"").lower()
    name = found.get(b"mcp-name", b"")
    if not all(each in accepted for each in _ACCEPTED) or not name.isascii() or name.startswith(b"=?"):
        return None
    return name.decode()


def lane_request(body: bytes, name: str) -> LaneRequest | None:
    """The request, if it is well-formed and calls the tool that its headers name."""
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(asked, dict) or asked.keys() != _BODY or asked["jsonrpc"] != "2.0" or asked["method"] != _METHOD:
        return None
    params, number = asked["params"], asked["id"]
    if not _is_token(number) or not isinstance(params, dict):
        return None
    arguments, meta = params.get("arguments", {}), params.get("_meta")
    if not params.keys() <= _PARAMS or params.get("name") != name or not isinstance(arguments, dict):
        return None
    if not isinstance(meta, dict) or not _is_enveloped(meta):
        return None
    declared = meta[types.CLIENT_CAPABILITIES_META_KEY]
    takes_tasks = EXTENSION in (declared.get("extensions") or {})
    kinds, token = kinds_of(declared), meta.get(_PROGRESS)
    level = meta.get(types.LOG_LEVEL_META_KEY)
    has_forms = takes_forms(declared)
    call = McpCall(name, arguments, meta, token, level, takes_tasks=takes_tasks, takes_forms=has_forms, kinds=kinds)
    return LaneRequest(number, call)


def _is_token(value: object) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _is_enveloped(meta: Mapping[str, Any]) -> bool:
    """Return whether a request has the required statements about its client."""
    token, level = meta.get(_PROGRESS), meta.get(types.LOG_LEVEL_META_KEY)
    return (
        meta.get(types.PROTOCOL_VERSION_META_KEY) == LATEST_MODERN_VERSION
        and isinstance(meta.get(types.CLIENT_CAPABILITIES_META_KEY), dict)
        and (token is None or _is_token(token))
        and (level is None or is_log_level(level))
    )


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
            await self._part(_PING)

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
    """The lane of one gateway, whose `server_info` is each result's statement about its server."""

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
                done, _ = await asyncio.wait(both, timeout=_KEEP_ALIVE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
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
