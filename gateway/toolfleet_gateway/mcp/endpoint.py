"""Answers at `/mcp` and `/mcp/{module}`: finds the era of a client's protocol, and has its request served."""

import asyncio
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from redis.asyncio import Redis
from starlette.types import Receive, Scope, Send

from toolfleet_gateway.events.feed import EventFeed
from toolfleet_gateway.http.open_streams import OpenStreams
from toolfleet_gateway.mcp.calls.abandoned_calls import AbandonedCalls
from toolfleet_gateway.mcp.calls.followed_calls import FollowedCalls
from toolfleet_gateway.mcp.calls.tool_calls import ToolCalls
from toolfleet_gateway.mcp.listing import McpListing
from toolfleet_gateway.mcp.meta_tools import MetaTools
from toolfleet_gateway.mcp.old_era.client_sessions import ClientSessions
from toolfleet_gateway.mcp.old_era.old_endpoint import OldEndpoint
from toolfleet_gateway.mcp.server import build_server
from toolfleet_gateway.mcp.subscriptions import Subscriptions
from toolfleet_gateway.mcp.task_methods import TaskMethods
from toolfleet_gateway.mcp.tool_methods import ToolMethods
from toolfleet_gateway.mcp.view import VIEW, McpView
from toolfleet_registry.redis.gateway_keys import GatewayKeys
from toolfleet_registry.settings import Settings
from toolfleet_tasks.aio.closing import Closing
from toolfleet_tasks.client.fleet import ToolFleet

_VERSION_HEADER = b"mcp-protocol-version"


class McpEndpoint:
    """The protocol's face of one gateway. Enter it with `open`, and `aclose` it. Belongs to the running loop."""

    def __init__(
        self, fleet: ToolFleet, settings: Settings, redis: Redis, streams: OpenStreams, closing: Closing
    ) -> None:
        keys = GatewayKeys(settings.keys)
        self._abandoned = AbandonedCalls(fleet, redis, keys, settings, closing)
        calls = ToolCalls(fleet, settings, self._abandoned)
        tools = ToolMethods(
            calls, McpListing(fleet, settings), MetaTools(fleet), FollowedCalls(fleet, settings), view_of
        )
        subscriptions = Subscriptions(EventFeed(fleet), streams, view_of, guest_modules=settings.default_guest_modules)
        server = build_server(tools, TaskMethods(fleet, settings, view_of), subscriptions)
        self._manager = StreamableHTTPSessionManager(server, stateless=True)
        sessions = ClientSessions(redis, keys, seconds=settings.mcp_session_seconds)
        self._old = OldEndpoint(server, sessions, subscriptions, streams)
        self._running: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()

    async def open(self) -> None:
        """Get ready for requests."""
        ready = asyncio.Event()
        self._running = asyncio.create_task(self._run(ready), name="toolfleet-mcp")
        await ready.wait()

    async def aclose(self) -> None:
        """End what is under way."""
        self._ended.set()
        await self._abandoned.aclose()
        if self._running is not None:
            await asyncio.wait({self._running})

    async def serve(self, view: McpView, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request of a client."""
        scope[VIEW] = view
        version = next((value.decode("latin-1") for name, value in scope["headers"] if name == _VERSION_HEADER), None)
        if version is None or version in HANDSHAKE_PROTOCOL_VERSIONS:
            await self._old.serve(view, scope, receive, send)
        else:
            await self._manager.handle_request(scope, receive, send)

    async def _run(self, ready: asyncio.Event) -> None:
        async with self._manager.run():
            ready.set()
            await self._ended.wait()


def view_of(context: ServerRequestContext[Any, Any]) -> McpView:
    """What the client of a request sees."""
    request: Any = context.request  # Starlette's: both transports have it
    view: McpView = request.scope[VIEW]
    return view
