"""Tells an older MCP client of changes on the stream of its session, at the gateway that has it open."""

import asyncio
import json
from collections.abc import AsyncGenerator

import mcp_types as types

from toolfleet_gateway.http.streams import ServerSentEvent
from toolfleet_gateway.mcp.changes.change_queue import ChangeQueue, ViewChange
from toolfleet_gateway.mcp.changes.notifications import LISTS, notification_of, wanted_of
from toolfleet_gateway.mcp.old_era.client_sessions import ClientSession, ClientSessions
from toolfleet_gateway.mcp.old_era.session_watches import SessionWatches
from toolfleet_gateway.mcp.subscriptions import Subscriptions
from toolfleet_gateway.mcp.view import McpView
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.watching import RENEW_SECONDS
from toolfleet_tasks.aio.cancellation import end

log = get_logger(__name__)

_CHECK_SECONDS = 5.0  # between two looks whether the session lasts, and this is its stream
_AWAY_SECONDS = 1.0  # before a Redis is asked again that does not answer


class SessionStreams:
    """The streams of one gateway. A session has one: a second one takes the place of the first, wherever that is."""

    def __init__(
        self,
        sessions: ClientSessions,
        watches: SessionWatches,
        subscriptions: Subscriptions,
    ) -> None:
        self._sessions = sessions
        self._watches = watches
        self._subscriptions = subscriptions

    async def events(self, view: McpView, session: ClientSession) -> AsyncGenerator[ServerSentEvent]:
        """The notifications, until the session ends, or has another stream."""
        name = await self._watches.take_stream(session)
        async with self._subscriptions.following(view) as queue:
            keeping = asyncio.create_task(self._keep(view, session, name, queue), name="toolfleet-mcp-session")
            try:
                async for change in queue:
                    for note in await self._notes(view, session, name, change):
                        yield ServerSentEvent("message", note)
            finally:
                await end([keeping])

    async def forget(self, session: ClientSession) -> None:
        """Forget what a session has watched that has ended; its stream ends soon."""
        await self._watches.forget(session)

    async def _notes(self, view: McpView, session: ClientSession, name: str, change: ViewChange) -> list[str]:
        """Return the notifications of a change."""
        while True:
            try:
                if not await self._watches.has_stream(session, name):
                    return []
                uris = await self._uris(session, change)
                break
            except FleetUnavailable:
                await asyncio.sleep(_AWAY_SECONDS)
        if change.kind == "returned":
            await self._subscriptions.renew(view, uris)
        parts = wanted_of(change, LISTS, uris)
        return [_noted(notification_of(part, {})) for part in parts if await self._subscriptions.may_hear(view, part)]

    async def _uris(self, session: ClientSession, change: ViewChange) -> list[str]:
        """Return the watched resources of a session that a change may be about."""
        if change.kind == "resource":
            return [change.subject] if await self._watches.has(session, change.subject) else []
        return await self._watches.of(session) if change.kind in {"lost", "returned"} else []

    async def _keep(self, view: McpView, session: ClientSession, name: str, queue: ChangeQueue) -> None:
        """Keep the session and what it watches, and close the queue once it has ended or has another stream."""
        loop, renew_at = asyncio.get_running_loop(), 0.0
        while True:
            try:
                if await self._sessions.find(session.id, view) is None:
                    break
                if not await self._watches.has_stream(session, name):
                    break
                if loop.time() >= renew_at:
                    await self._subscriptions.renew(view, await self._watches.of(session))
                    renew_at = loop.time() + RENEW_SECONDS
            except FleetUnavailable as exc:
                log.warning("mcp_session_not_kept", error=str(exc))
            await asyncio.sleep(_CHECK_SECONDS)
        queue.close()


def _noted(notification: types.ServerNotification) -> str:
    dumped = notification.model_dump(by_alias=True, mode="json", exclude_none=True)
    return json.dumps({"jsonrpc": "2.0", **dumped})
