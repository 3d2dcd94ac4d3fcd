"""Serves `subscriptions/listen`: tells an MCP client of changes of lists, of resources that it watches, and of its tasks."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import mcp_types as types
from mcp.server.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp.shared.exceptions import MCPError

from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.events import EventFeed, FeedEvent, Listener
from toolfleet_gateway.http.streams import End
from toolfleet_gateway.mcp.calls.call_tasks import EXTENSION, lacks_tasks
from toolfleet_gateway.mcp.calls.client_kinds import takes_forms
from toolfleet_gateway.mcp.changes.change_queue import ChangeQueue, ViewChange, ViewChangeKind
from toolfleet_gateway.mcp.changes.notifications import notification_of, task_notification, wanted_of
from toolfleet_gateway.mcp.changes.resource_watching import ResourceWatching
from toolfleet_gateway.mcp.changes.server_feed import ServerFeed
from toolfleet_gateway.mcp.changes.task_changes import TaskChanges
from toolfleet_gateway.mcp.client_request import Context, ViewOf
from toolfleet_gateway.mcp.task_methods import TaskMethods, capabilities_of
from toolfleet_gateway.mcp.view import McpView
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.functions.passed_methods import ServerChange
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.watching import RENEW_SECONDS
from toolfleet_tasks.aio.cancellation import end

Place = Callable[[Identity], AbstractAsyncContextManager["asyncio.Future[End]"]]
"""Holds a stream open, until what it gives says that it must end."""

log = get_logger(__name__)

_CHANGES: Final = frozenset(
    f"tool_{kind}"
    for kind in ("registered", "changed", "enabled", "disabled", "removed", "rolled_back", "withheld", "approved")
) | {"events_lost"}
_AWAY_SECONDS = 1.0  # before the registry is asked again that does not answer


@dataclass(frozen=True, slots=True)
class _Wants:
    """The changes that one client listens for."""

    lists: frozenset[ViewChangeKind]
    uris: tuple[str, ...]
    tasks: TaskChanges

    def acknowledged(self, meta: dict[str, Any], *, names_tasks: bool) -> types.SubscriptionsAcknowledgedNotification:
        more: dict[str, Any] = {"taskIds": self.tasks.ids} if names_tasks else {}
        honored = types.SubscriptionFilter(
            tools_list_changed="tools" in self.lists or None,
            prompts_list_changed="prompts" in self.lists or None,
            resources_list_changed="resources" in self.lists or None,
            resource_subscriptions=list(self.uris) or None,
            **more,
        )
        params = types.SubscriptionsAcknowledgedNotificationParams(notifications=honored, _meta=cast("Any", meta))
        return types.SubscriptionsAcknowledgedNotification(params=params)


class Subscriptions:
    """The subscriptions of one gateway's clients; `guest_modules` are those that a guest without any reaches."""

    def __init__(  # noqa: PLR0913 - its parts
        self,
        feed: EventFeed,
        servers: ServerFeed,
        place: Place,
        view_of: ViewOf,
        watching: ResourceWatching,
        tasks: TaskMethods,
        *,
        guest_modules: frozenset[str],
    ) -> None:
        self._feed = feed
        self._servers = servers
        self._place = place
        self._view_of = view_of
        self._watching = watching
        self._tasks = tasks
        self._guest_modules = guest_modules

    async def listen(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Serve one client's stream, until it goes, its key is revoked, or the gateway ends. Raises `MCPError`."""
        view, number = self._view_of(context), context.request_id
        if number is None:
            raise MCPError(types.INVALID_REQUEST, "subscriptions/listen needs an id.")
        meta: dict[str, Any] = {SUBSCRIPTION_ID_META_KEY: number}
        tasks = TaskChanges(self._tasks, view, takes_forms=takes_forms(capabilities_of(context.params)))
        asked_tasks = (params.notifications.model_extra or {}).get("taskIds")
        try:
            async with self._place(view.who) as ending, self.following(view) as queue:
                ending.add_done_callback(lambda _: queue.close())
                await self._find_tasks(context, tasks, asked_tasks)
                wants = await self._wants(view, params.notifications, tasks)
                ack = wants.acknowledged(meta, names_tasks=asked_tasks is not None)
                await context.session.send_notification(ack, related_request_id=number)
                async with self._renewing(view, wants.uris), tasks.putting_into(queue):
                    await self._send(context, view, queue, wants, meta)
        finally:
            tasks.leave()
        return types.SubscriptionsListenResult(_meta=cast("Any", meta))

    @asynccontextmanager
    async def following(self, view: McpView) -> AsyncGenerator[ChangeQueue]:
        """Give what changes at an endpoint in this block, whether or not its client may hear of it: ask `may_hear`."""
        queue = ChangeQueue()

        def hear(module: str, change: ServerChange | Literal["lost", "returned"]) -> None:
            if not isinstance(change, ServerChange):
                queue.put(ViewChange(change))
            elif module == view.module:
                queue.put(ViewChange(change.kind, change.uri))

        task = asyncio.create_task(self._follow_tools(view, queue), name="toolfleet-mcp-listen")
        try:
            if view.module is None:
                yield queue
            else:
                async with self._servers.heard_by(hear):
                    yield queue
        finally:
            await end([task])

    async def may_hear(self, view: McpView, change: ViewChange) -> bool:
        """Return whether a client may hear of a change now: an unusable thing does not change for it."""
        return change.kind == "tools" or await self._watching.sees(view, change.kind)

    async def renew(self, view: McpView, uris: Sequence[str]) -> None:
        """Say again what a client watches. Without Redis, another time will do."""
        try:
            await self._watching.renew(view, uris)
        except FleetUnavailable as exc:
            log.warning("watched_resources_not_renewed", error=str(exc))

    async def _send(
        self, context: Context, view: McpView, queue: ChangeQueue, wants: _Wants, meta: dict[str, Any]
    ) -> None:
        number = context.request_id
        async for change in queue:
            if change.kind == "returned":
                await self.renew(view, wants.uris)
            elif change.kind == "task":
                note = cast("types.ServerNotification", task_notification(wants.tasks.states[change.subject], meta))
                await context.session.send_notification(note, related_request_id=number)
            for part in wanted_of(change, wants.lists, wants.uris):
                if await self.may_hear(view, part):
                    await context.session.send_notification(notification_of(part, meta), related_request_id=number)

    async def _wants(self, view: McpView, asked: types.SubscriptionFilter, tasks: TaskChanges) -> _Wants:
        """Return the accepted part of a client's filter. Raises `MCPError`."""
        lists = set[ViewChangeKind]()
        if asked.tools_list_changed:
            lists.add("tools")
        if asked.prompts_list_changed and await self._watching.sees(view, "prompts"):
            lists.add("prompts")
        if asked.resources_list_changed and await self._watching.sees(view, "resources"):
            lists.add("resources")
        uris = await self._watching.watch_all(view, asked.resource_subscriptions or ())
        return _Wants(frozenset(lists), tuple(uris), tasks)

    async def _find_tasks(self, context: Context, tasks: TaskChanges, asked: object) -> None:
        if asked is None:
            return
        if EXTENSION not in (capabilities_of(context.params).get("extensions") or {}):
            raise lacks_tasks()
        await tasks.find(asked)

    @asynccontextmanager
    async def _renewing(self, view: McpView, uris: Sequence[str]) -> AsyncGenerator[None]:
        """Renew the watches repeatedly, in this block."""
        task = asyncio.create_task(self._renew(view, uris), name="toolfleet-mcp-renew") if uris else None
        try:
            yield
        finally:
            await end([] if task is None else [task])

    async def _renew(self, view: McpView, uris: Sequence[str]) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            await self.renew(view, uris)

    async def _follow_tools(self, view: McpView, queue: ChangeQueue) -> None:
        listener = Listener(view.who, self._guest_modules)
        while True:
            try:
                async with aclosing(self._feed.events(None)) as events:
                    async for event in events:
                        if _is_theirs(event, view) and listener.may_hear(event):
                            queue.put(ViewChange("tools"))
                            if view.module is None:  # apps come and go with tools
                                queue.put(ViewChange("resources"))
            except FleetUnavailable:
                await asyncio.sleep(_AWAY_SECONDS)


def _is_theirs(event: FeedEvent, view: McpView) -> bool:
    return event.kind in _CHANGES and (event.module is None or view.module in {None, event.module})
