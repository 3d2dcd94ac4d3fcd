"""Tells MCP clients of changes: of lists, of resources that they watch, and of their tasks (`subscriptions/listen`)."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import mcp_types as types
from mcp.server.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
    event_to_notification,
)

from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.events import EventFeed, FeedEvent, Listener
from toolfleet_gateway.http.streams import End
from toolfleet_gateway.mcp.client_request import Context, ViewOf, needing_redis, takes_forms
from toolfleet_gateway.mcp.module_methods import ModuleMethods
from toolfleet_gateway.mcp.results import EXTENSION, lacks_tasks
from toolfleet_gateway.mcp.tasks import TaskMethods, capabilities_of
from toolfleet_gateway.mcp.view import McpView
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.functions.passed_methods import LONGEST_URI, MOST_WATCHED, WATCH_METHOD, ServerChange
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.watching import RENEW_SECONDS, ServerChanges, WatchedResources, is_before
from toolfleet_tasks.aio import end
from toolfleet_tasks.calls.begun_calls import BegunHandle

log = get_logger(__name__)

ViewChangeKind = Literal["tools", "prompts", "resources", "resource", "task", "lost", "returned"]

_MOST = 5_000  # changes of others' resources are among them; who is further behind is told that some are lost

_LISTS: Final[Mapping[ViewChangeKind, ServerEvent]] = {
    "tools": ToolsListChanged(),
    "prompts": PromptsListChanged(),
    "resources": ResourcesListChanged(),
}

LISTS: Final = frozenset(_LISTS)
"""What may change as a list."""

_Hear = Callable[[str, ServerChange | Literal["lost", "returned"]], None]
"""Takes the name of a changed module; "" after changes were lost, or when Redis has returned."""

_START_SECONDS = 2.0  # for Redis to say where the stream is; later, who listens is told that changes may be lost
_AWAY_SECONDS = 1.0  # before a Redis, or the registry, is asked again that does not answer

_GRANT_SECONDS = 10.0  # for modules to answer: one that does not finds later what is watched
_AT_ONCE = 16  # calls for one client
_METHODS = {"resource": WATCH_METHOD, "resources": "resources/list", "prompts": "prompts/list"}

_MOST_TASKS = 100  # of one stream
_LONGEST_ID = 256
_POLL_SECONDS = 1.0  # between two looks at a task that has not ended: its end is heard of at once
_CHANGING = ("status", "statusMessage", "inputRequests")
_ENDED = frozenset({"completed", "failed", "cancelled"})

Place = Callable[[Identity], AbstractAsyncContextManager["asyncio.Future[End]"]]
"""Holds a place for a stream, and gives a future that ends it."""

_CHANGES: Final = frozenset(
    f"tool_{kind}"
    for kind in ("registered", "changed", "enabled", "disabled", "removed", "rolled_back", "withheld", "approved")
) | {"events_lost"}


@dataclass(frozen=True, slots=True)
class ViewChange:
    """One change. `subject`: the address of a resource, or a task's id.

    `lost`: changes were lost, so that anything may have changed. `returned`: Redis answers again, and may have lost what is watched.
    """

    kind: ViewChangeKind
    subject: str = ""


_LOST = ViewChange("lost")


class ChangeQueue:
    """Iterated over by one reader, until it is closed and empty."""

    def __init__(self) -> None:
        self._waiting = dict[ViewChange, None]()
        self._there = asyncio.Event()
        self._is_closed = False

    def put(self, change: ViewChange) -> None:
        """Have one told, unless it waits already."""
        if len(self._waiting) >= _MOST and change.kind == "resource":
            change = _LOST
        self._waiting.setdefault(change)
        self._there.set()

    def close(self) -> None:
        """End it once the reader has what there is."""
        self._is_closed = True
        self._there.set()

    def __aiter__(self) -> "ChangeQueue":
        return self

    async def __anext__(self) -> ViewChange:
        while not self._waiting:
            if self._is_closed:
                raise StopAsyncIteration
            self._there.clear()
            await self._there.wait()
        first = next(iter(self._waiting))
        del self._waiting[first]
        return first


def wanted_of(change: ViewChange, lists: Collection[ViewChangeKind], uris: Collection[str]) -> list[ViewChange]:
    """Return the parts of a change for a client that listens for these lists, and watches these resources."""
    if change.kind == "lost":
        return [*(ViewChange(kind) for kind in _LISTS if kind in lists), *(ViewChange("resource", uri) for uri in uris)]
    if change.kind == "resource":
        return [change] if change.subject in uris else []
    return [change] if change.kind in lists else []


def notification_of(change: ViewChange, meta: Mapping[str, Any]) -> types.ServerNotification:
    """Return the notification of a list's, or of a resource's change."""
    event = _LISTS.get(change.kind) or ResourceUpdated(change.subject)
    return event_to_notification(event, dict(meta))


def _task_notification(state: Mapping[str, Any], meta: Mapping[str, Any]) -> types.Notification[Any, str]:
    """Return the notification of a task's state, of the extension `io.modelcontextprotocol/tasks`."""
    return types.Notification[Any, str](method="notifications/tasks", params={**state, "_meta": dict(meta)})


class ServerFeed:
    """The changes of one gateway. It follows them while it has listeners, and belongs to the running loop."""

    def __init__(self, changes: ServerChanges) -> None:
        self._changes = changes
        self._listeners = list[_Hear]()
        self._started = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def heard_by(self, hear: _Hear) -> AsyncGenerator[None]:
        """Tell of what happens in this block, from its first moment on."""
        self._listeners.append(hear)
        if self._reading is None:
            self._started = asyncio.Event()
            self._reading = asyncio.create_task(self._read(self._started), name="toolfleet-mcp-changes")
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_START_SECONDS):
                    await self._started.wait()
            yield
        finally:
            self._listeners.remove(hear)
            if not self._listeners:
                self._end()

    def _end(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    async def _read(self, started: asyncio.Event) -> None:
        last: str | None = None
        was_away = False
        while True:
            try:
                last = await self._begun(last, was_away=was_away)
                was_away = False
                started.set()
                found = await self._changes.after(last)
                if found.are_lost:
                    self._publish("", "lost")
                for module, change in found.changes:
                    self._publish(module, change)
                last = found.until
            except FleetUnavailable as exc:
                if not was_away:
                    log.warning("server_changes_not_followed", error=str(exc))
                was_away = True
                await asyncio.sleep(_AWAY_SECONDS)
            except Exception:  # a defect must not end what all listen to
                log.exception("server_changes_not_followed")
                await asyncio.sleep(_AWAY_SECONDS)

    async def _begun(self, last: str | None, *, was_away: bool) -> str:
        """Return where to continue reading. A Redis that was away may have lost entries."""
        if last is not None and not was_away:
            return last
        found = await self._changes.last()
        if was_away:
            self._publish("", "returned")
        if was_away and (last is None or is_before(found, last)):
            self._publish("", "lost")
            return found
        return found if last is None else last

    def _publish(self, module: str, change: ServerChange | Literal["lost", "returned"]) -> None:
        for hear in list(self._listeners):
            hear(module, change)


class ResourceWatching:
    """The resource watching of one gateway's clients.

    Each call is made with the client's permissions, and is in the audit.
    """

    def __init__(self, modules: ModuleMethods, watched: WatchedResources) -> None:
        self._modules = modules
        self._watched = watched

    async def sees(self, view: McpView, kind: str) -> bool:
        """Return whether a client may hear of such changes of its endpoint's module. From memory."""
        method = _METHODS.get(kind)
        return method is not None and await self._modules.has(view, method)

    async def watch(self, view: McpView, uri: str) -> None:
        """Have one resource watched. Raises `MCPError`, that of the server or of the call."""
        check_uri(uri)
        await self._note(view, [uri])
        await self._modules.asked(view, WATCH_METHOD, {"uri": uri})

    async def watch_all(self, view: McpView, uris: Sequence[str]) -> list[str]:
        """Watch resources.

        Returns those that may be watched; a module that is away will report on them when it is back.

        Raises `MCPError` for resources that cannot be watched.
        """
        wanted = list(dict.fromkeys(uris))
        if len(wanted) > MOST_WATCHED:
            raise MCPError(types.INVALID_PARAMS, f"At most {MOST_WATCHED} resources can be watched by one client.")
        for uri in wanted:
            check_uri(uri)
        if not wanted or not await self.sees(view, "resource"):
            return []
        await self._note(view, wanted)
        places = asyncio.Semaphore(_AT_ONCE)
        asking = {uri: asyncio.create_task(self._is_granted(view, uri, places)) for uri in wanted}
        try:
            await asyncio.wait(asking.values(), timeout=_GRANT_SECONDS)
            return [uri for uri, task in asking.items() if not task.done() or task.result()]
        finally:
            await end(asking.values())

    async def renew(self, view: McpView, uris: Sequence[str]) -> None:
        """Renew the watched resources. Raises `FleetUnavailable`."""
        if view.module is not None:
            await self._watched.watch(view.module, uris)

    async def _is_granted(self, view: McpView, uri: str, places: asyncio.Semaphore) -> bool:
        async with places:
            try:
                await self._modules.asked(view, WATCH_METHOD, {"uri": uri})
            except MCPError as exc:
                return isinstance(exc.data, dict) and bool(exc.data.get("retryable"))
        return True

    async def _note(self, view: McpView, uris: Sequence[str]) -> None:
        with needing_redis():
            await self.renew(view, uris)


def check_uri(uri: str) -> None:
    """Raise `MCPError` for an invalid address of a resource."""
    if not 0 < len(uri) <= LONGEST_URI:
        raise MCPError(types.INVALID_PARAMS, f"The address of a resource has between 1 and {LONGEST_URI} characters.")
    try:
        uri.encode()
    except UnicodeEncodeError:
        raise MCPError(types.INVALID_PARAMS, "The address of a resource must be text.") from None


class _TaskChanges:
    """The tasks of one stream, by their ids; `states` is where each is, as `tasks/get` says it."""

    def __init__(self, tasks: TaskMethods, view: McpView, *, takes_forms: bool) -> None:
        self._tasks = tasks
        self._view, self._takes_forms = view, takes_forms
        self._handles = dict[str, BegunHandle]()
        self.states = dict[str, dict[str, Any]]()

    @property
    def ids(self) -> list[str]:
        """The tasks that this client has: an unknown id and another user's look alike."""
        return list(self._handles)

    async def find(self, asked: object) -> None:
        """Find the tasks with these ids. Raises `MCPError` for an invalid list, and if Redis does not answer."""
        if not isinstance(asked, Sequence) or isinstance(asked, str) or not all(map(_is_id, asked)):
            raise MCPError(types.INVALID_PARAMS, "taskIds must be a list of tasks' ids.")
        if len(asked) > _MOST_TASKS:
            raise MCPError(types.INVALID_PARAMS, f"At most {_MOST_TASKS} tasks can be listened to on one stream.")
        for task_id in dict.fromkeys(asked):
            handle = await self._tasks.find(self._view, task_id)
            if handle is not None:
                self._handles[task_id] = handle

    @asynccontextmanager
    async def putting_into(self, queue: ChangeQueue) -> AsyncGenerator[None]:
        """Put each change into a queue in this block; at first where each task is."""
        follow = [asyncio.create_task(self._follow(each, queue), name="toolfleet-mcp-task") for each in self.ids]
        try:
            yield
        finally:
            await end(follow)

    def leave(self) -> None:
        """Follow them no further: they go on."""
        for handle in self._handles.values():
            handle.leave()

    async def _follow(self, task_id: str, queue: ChangeQueue) -> None:
        handle, said = self._handles[task_id], None
        while True:
            try:
                state = await self._tasks.state(self._view, handle, takes_forms=self._takes_forms)
            except FleetUnavailable:
                await asyncio.sleep(_POLL_SECONDS)
                continue
            except Exception:  # a defect of ours: the stream tells of everything else all the same
                log.exception("task_not_followed")
                return
            facts = [state.get(name) for name in _CHANGING]
            if facts != said:
                said, self.states[task_id] = facts, state
                queue.put(ViewChange("task", task_id))
            if state["status"] in _ENDED:
                return
            await handle.end_within(_POLL_SECONDS)


def _is_id(given: object) -> bool:
    return isinstance(given, str) and 0 < len(given) <= _LONGEST_ID


@dataclass(frozen=True, slots=True)
class _Wants:
    """The changes that one client listens for."""

    lists: frozenset[ViewChangeKind]
    uris: tuple[str, ...]
    tasks: _TaskChanges

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

    def __init__(
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
        tasks = _TaskChanges(self._tasks, view, takes_forms=takes_forms(capabilities_of(context.params)))
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
                note = cast("types.ServerNotification", _task_notification(wants.tasks.states[change.subject], meta))
                await context.session.send_notification(note, related_request_id=number)
            for part in wanted_of(change, wants.lists, wants.uris):
                if await self.may_hear(view, part):
                    await context.session.send_notification(notification_of(part, meta), related_request_id=number)

    async def _wants(self, view: McpView, asked: types.SubscriptionFilter, tasks: _TaskChanges) -> _Wants:
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

    async def _find_tasks(self, context: Context, tasks: _TaskChanges, asked: object) -> None:
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
