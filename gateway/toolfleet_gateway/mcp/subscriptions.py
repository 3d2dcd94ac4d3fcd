"""Serves `subscriptions/listen`: tells an MCP client which of its lists have changed, and where its tasks are."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any, Final

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.subscriptions import ListenHandler, ServerEvent, ToolsListChanged

from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.events.feed import EventFeed
from toolfleet_gateway.events.feed_events import FeedEvent, Listener
from toolfleet_gateway.http.open_streams import End
from toolfleet_gateway.mcp.view import McpView
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_tasks.aio.cancellation import end

Context = ServerRequestContext[Any, Any]
ViewOf = Callable[[Context], McpView]
Place = Callable[[Identity], AbstractAsyncContextManager["asyncio.Future[End]"]]
"""Holds a stream open, until what it gives says that it must end."""

_CHANGES: Final = frozenset(
    f"tool_{kind}"
    for kind in ("registered", "changed", "enabled", "disabled", "removed", "rolled_back", "withheld", "approved")
) | {"events_lost"}
_AWAY_SECONDS = 1.0  # before the registry is asked again that does not answer


class Subscriptions:
    """Those of one gateway's clients; `guest_modules` are what a guest without any reaches."""

    def __init__(self, feed: EventFeed, place: Place, view_of: ViewOf, *, guest_modules: frozenset[str]) -> None:
        self._feed = feed
        self._place = place
        self._view_of = view_of
        self._guest_modules = guest_modules

    async def listen(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Serve one client's stream, until it goes, its key is revoked, or the gateway ends."""
        view = self._view_of(context)
        async with self._place(view.who) as ending:
            bus = _Bus()
            handler = ListenHandler(bus)
            ending.add_done_callback(lambda _: handler.close())
            async with self._following(view, bus):
                return await handler(context, params)

    async def changes(self, view: McpView) -> AsyncGenerator[None]:
        """Yield whenever the tools that are seen there have changed. Without end."""
        listener = Listener(view.who, self._guest_modules)
        while True:
            try:
                async with aclosing(self._feed.events(None)) as events:
                    async for event in events:
                        if _is_theirs(event, view) and listener.may_hear(event):
                            yield
            except FleetUnavailable:
                await asyncio.sleep(_AWAY_SECONDS)

    @asynccontextmanager
    async def _following(self, view: McpView, bus: "_Bus") -> AsyncGenerator[None]:
        task = asyncio.create_task(self._follow(view, bus), name="toolfleet-mcp-listen")
        try:
            yield
        finally:
            await end([task])

    async def _follow(self, view: McpView, bus: "_Bus") -> None:
        async with aclosing(self.changes(view)) as changes:
            async for _ in changes:
                await bus.publish(ToolsListChanged())


def _is_theirs(event: FeedEvent, view: McpView) -> bool:
    return event.kind in _CHANGES and (event.module is None or view.module in {None, event.module})


class _Bus:
    """What one client's handler listens to."""

    def __init__(self) -> None:
        self._listeners = set[Callable[[ServerEvent], None]]()

    async def publish(self, event: ServerEvent) -> None:
        for listener in list(self._listeners):
            listener(event)

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)
