"""Names the type of a client's request as the SDK hands it on, and what says who sees what by it."""

from collections.abc import Callable
from typing import Any

from mcp.server.context import ServerRequestContext

from toolfleet_gateway.mcp.view import McpView

Context = ServerRequestContext[Any, Any]
ViewOf = Callable[[Context], McpView]
"""Says what the client of a request sees."""
