"""Answers at `/mcp` and `/mcp/{module}`: finds the version of a client's protocol, and has its request served.

`tools/call` of 2026-07-28 has a short way of its own: most requests are one, and the SDK's way takes three times as long.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import mcp_types as types
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_MODERN_VERSION
from redis.asyncio import Redis
from starlette.types import Receive, Scope, Send

from toolfleet_gateway.http.routes import ClientGone, read_bytes
from toolfleet_gateway.http.streams import OpenStreams, disconnected
from toolfleet_gateway.mcp.calls import McpCall
from toolfleet_gateway.mcp.client_request import Context, again, kinds_of, takes_forms
from toolfleet_gateway.mcp.module_methods import WATCH
from toolfleet_gateway.mcp.old_clients import (
    ClientQuestions,
    ClientSessions,
    OldEndpoint,
    SessionStreams,
    SessionWatches,
    WatchMethods,
)
from toolfleet_gateway.mcp.results import EXTENSION
from toolfleet_gateway.mcp.server import SERVER_INFO, HeaderArguments, McpMethods
from toolfleet_gateway.mcp.tools import ToolMethods
from toolfleet_gateway.mcp.view import VIEW, McpView
from toolfleet_gateway.tracing import gateway_tracing, traced_call
from toolfleet_registry.contracts.call_context import is_log_level
from toolfleet_registry.redis.keys import GatewayKeys
from toolfleet_registry.settings import Settings
from toolfleet_registry.spans import Tracing
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.aio import Closing
from toolfleet_tasks.client.fleet import ToolFleet

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
"""The time after which a silent connection gets a sign that the answer is still to come: proxies cut silent connections."""

_SESSION_SECONDS = 3600.0  # without a request; a client that comes again later opens another session
_VERSION_HEADER = b"mcp-protocol-version"


@dataclass(frozen=True, slots=True)
class LaneRequest:
    """A request for the lane."""

    id: str | int
    call: McpCall


def named_tool(headers: Headers) -> str | None:
    """Return the tool that a request's headers name, if the call may take the short way."""
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
    """Return the request, if it is well-formed and calls the tool that its headers name."""
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
        gone = asyncio.create_task(disconnected(receive))
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


class McpEndpoint:
    """The MCP endpoint of one gateway, with a server for each kind of module. `aclose` it. Belongs to the running loop."""

    def __init__(
        self, fleet: ToolFleet, settings: Settings, redis: Redis, streams: OpenStreams, closing: Closing
    ) -> None:
        self._streams = streams
        self._methods = McpMethods.of(fleet, settings, redis, closing, streams.place, _view_of)
        keys = GatewayKeys(settings.keys)
        self._sessions = ClientSessions(redis, keys, seconds=_SESSION_SECONDS)
        self._headers = HeaderArguments(fleet)
        self._lane = ToolCallLane(self._methods.tools, SERVER_INFO, gateway_tracing(settings))
        self._questions = ClientQuestions(redis, keys)
        self._watches = SessionWatches(redis, keys, seconds=_SESSION_SECONDS)
        self._session_streams = SessionStreams(self._sessions, self._watches, self._methods.subscriptions)
        self._served: dict[frozenset[str], _Served] = {}
        self._opening = asyncio.Lock()

    async def serve(self, view: McpView, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request of a client."""
        scope[VIEW] = view
        # The server's parser leaves the spaces around values, which are no part of them; names are compared with the body's.
        scope["headers"] = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        kinds = await self._methods.modules.kinds(view)
        served = self._served.get(kinds) or await self._opened(kinds)
        version = next((value.decode("latin-1") for name, value in scope["headers"] if name == _VERSION_HEADER), None)
        if version is None or version in HANDSHAKE_PROTOCOL_VERSIONS:
            await served.old.serve(view, scope, receive, send)
        else:
            await self._serve_newer(served, view, scope, receive, send)

    async def aclose(self) -> None:
        """Cancel the running work."""
        await self._methods.abandoned.aclose()
        for served in self._served.values():
            await served.aclose()

    async def _serve_newer(self, served: "_Served", view: McpView, scope: Scope, receive: Receive, send: Send) -> None:
        name = named_tool(scope["headers"]) if scope["method"] == "POST" else None
        if name is None or await self._headers.are_in(view, name):
            await self._headers.remember(view, scope["headers"])
            await served.manager.handle_request(scope, receive, send)
            return
        try:
            body = await read_bytes(receive)
        except ClientGone:
            return
        asked = lane_request(body, name)
        if asked is None:
            await self._headers.remember(view, scope["headers"])
            await served.manager.handle_request(scope, again(body, receive), send)
        else:
            await self._lane.serve(view, asked, receive, send)

    async def _opened(self, kinds: frozenset[str]) -> "_Served":
        async with self._opening:
            if kinds not in self._served:
                server = self._methods.server(kinds)
                if WATCH in kinds:
                    WatchMethods(self._methods.watching, self._watches, _view_of).add_to(server)
                parts = self._sessions, self._session_streams, self._streams, self._methods.abandoned, self._questions
                old = OldEndpoint(server, *parts)
                served = _Served(StreamableHTTPSessionManager(server, stateless=True), old)
                await served.open()
                self._served[kinds] = served
        return self._served[kinds]


class _Served:
    """One server, for newer clients and for older ones."""

    def __init__(self, manager: StreamableHTTPSessionManager, old: OldEndpoint) -> None:
        self.manager = manager
        self.old = old
        self._ended = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    async def open(self) -> None:
        ready = asyncio.Event()
        self._running = asyncio.create_task(self._run(ready), name="toolfleet-mcp")
        await ready.wait()

    async def aclose(self) -> None:
        self._ended.set()
        if self._running is not None:
            await asyncio.wait({self._running})

    async def _run(self, ready: asyncio.Event) -> None:
        async with self.manager.run():
            ready.set()
            await self._ended.wait()


def _view_of(context: Context) -> McpView:
    """Return the view of a request's client."""
    request: Any = context.request  # Starlette's: both transports have it
    view: McpView = request.scope[VIEW]
    return view
