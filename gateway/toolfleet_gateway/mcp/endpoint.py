"""Answers at `/mcp` and `/mcp/{module}`: finds the era of a client's protocol, and has its request served."""

import asyncio
from typing import Any

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from redis.asyncio import Redis
from starlette.types import Receive, Scope, Send

from toolfleet_gateway.http.streams import OpenStreams
from toolfleet_gateway.mcp.client_request import Context, again, whole_body
from toolfleet_gateway.mcp.lane import ToolCallLane, lane_request, named_tool
from toolfleet_gateway.mcp.module_methods import WATCH
from toolfleet_gateway.mcp.old_endpoint import OldEndpoint, SessionStreams, WatchMethods
from toolfleet_gateway.mcp.old_sessions import ClientQuestions, ClientSessions, SessionWatches
from toolfleet_gateway.mcp.server import SERVER_INFO, HeaderArguments, McpMethods
from toolfleet_gateway.mcp.view import VIEW, McpView
from toolfleet_gateway.tracing import gateway_tracing
from toolfleet_registry.redis.keys import GatewayKeys
from toolfleet_registry.settings import Settings
from toolfleet_tasks.aio import Closing
from toolfleet_tasks.client.fleet import ToolFleet

_SESSION_SECONDS = 3600.0  # without a request; a client that comes again later opens another session
_VERSION_HEADER = b"mcp-protocol-version"


class McpEndpoint:
    """The protocol's face of one gateway: a server for each kind of module. `aclose` it. Belongs to the running loop."""

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
        body = await whole_body(receive)
        if body is None:
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
