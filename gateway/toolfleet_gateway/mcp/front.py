"""Admits MCP clients at `/mcp` and `/mcp/{module}`: identifies them, and checks the module whose tools they see.

The official SDK is loaded with the first of them: it takes a second, and 40 MB that a gateway for REST alone does not need.
"""

import asyncio
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING

from redis.asyncio import Redis
from starlette.types import Receive, Scope, Send

from toolfleet_gateway.events import Listener
from toolfleet_gateway.http.app import ENDPOINT
from toolfleet_gateway.http.entrance import Entrance
from toolfleet_gateway.http.middleware import ROUTE
from toolfleet_gateway.http.problems import not_found
from toolfleet_gateway.http.streams import OpenStreams
from toolfleet_gateway.mcp.view import McpView
from toolfleet_gateway.tracing import context_in
from toolfleet_registry.settings import Settings
from toolfleet_registry.spans import Tracing
from toolfleet_tasks.aio import Closing
from toolfleet_tasks.client.fleet import ToolFleet

if TYPE_CHECKING:
    from toolfleet_gateway.mcp.endpoint import McpEndpoint

PATHS = (ENDPOINT, f"{ENDPOINT}/{{module}}")


@dataclass(slots=True)
class McpFront:
    """The MCP entrance of one gateway, as an ASGI app."""

    fleet: ToolFleet
    settings: Settings
    redis: Redis
    entrance: Entrance
    streams: OpenStreams
    closing: Closing
    tracing: Tracing | None = None
    _endpoint: "McpEndpoint | None" = None
    _loading: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Implement ASGI. Raises `Problem`, `AuthRefused` and `FleetUnavailable`."""
        module = scope.get("path_params", {}).get("module")
        endpoint = ENDPOINT if module is None else f"{ENDPOINT}/{module}"
        scope[ROUTE] = ENDPOINT
        who = scope["toolfleet.who"] = await self.entrance.admit(scope, endpoint)
        if module is not None:
            listener = Listener(who, self.settings.default_guest_modules)
            if not listener.reaches(module) or module not in await self.fleet.modules.statuses():
                raise not_found("There is no such module for this caller.")
        served = self._endpoint or await self._loaded()
        context = None if self.tracing is None else context_in(scope["headers"])
        with nullcontext() if self.tracing is None or context is None else self.tracing.within(context):
            await served.serve(McpView(who, module), scope, receive, send)

    async def aclose(self) -> None:
        """Cancel the running work."""
        if self._endpoint is not None:
            await self._endpoint.aclose()

    async def _loaded(self) -> "McpEndpoint":
        async with self._loading:
            if self._endpoint is not None:
                return self._endpoint
            code = await asyncio.to_thread(import_module, "toolfleet_gateway.mcp.endpoint")
            loaded: McpEndpoint = code.McpEndpoint(self.fleet, self.settings, self.redis, self.streams, self.closing)
            self._endpoint = loaded
            return loaded
