"""Answers `resources/subscribe` and `resources/unsubscribe` of older MCP clients."""

from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from toolfleet_gateway.mcp.changes.resource_watching import ResourceWatching, check_uri
from toolfleet_gateway.mcp.client_request import Context, ViewOf
from toolfleet_gateway.mcp.old_era.client_sessions import ClientSession
from toolfleet_gateway.mcp.old_era.session_watches import SessionWatches
from toolfleet_gateway.mcp.view import SESSION
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.functions.passed_methods import MOST_WATCHED


class WatchMethods:
    """The methods of watching.

    A session's watches are in Redis: any gateway takes them, and the one with the session's stream notifies.
    """

    def __init__(self, watching: ResourceWatching, watches: SessionWatches, view_of: ViewOf) -> None:
        self._watching = watching
        self._watches = watches
        self._view_of = view_of

    def add_to(self, server: Server[Any]) -> None:
        """Have a server answer them."""
        server.add_request_handler("resources/subscribe", types.SubscribeRequestParams, self.watch)
        server.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, self.leave)

    async def watch(self, context: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        """Have a resource watched. Raises `MCPError`, that of the module's server or of the call."""
        session, view, uri = _session_of(context), self._view_of(context), str(params.uri)
        check_uri(uri)
        try:
            if not await self._watches.add(session, uri):
                raise MCPError(types.INVALID_PARAMS, f"A session watches at most {MOST_WATCHED} resources.")
            try:
                await self._watching.watch(view, uri)
            except MCPError:
                await self._watches.remove(session, uri)
                raise
        except FleetUnavailable:
            raise _away() from None
        return types.EmptyResult()

    async def leave(self, context: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        """Tell the session no more. One that was not watched is none, either."""
        try:
            await self._watches.remove(_session_of(context), str(params.uri))
        except FleetUnavailable:
            raise _away() from None
        return types.EmptyResult()


def _session_of(context: Context) -> ClientSession:
    found = None if context.request is None else context.request.scope.get(SESSION)
    if not isinstance(found, ClientSession):
        raise MCPError(types.INVALID_REQUEST, "Resources are watched in a session: send its id.")
    return found


def _away() -> MCPError:
    return MCPError(types.INTERNAL_ERROR, "The fleet's Redis does not answer.")
