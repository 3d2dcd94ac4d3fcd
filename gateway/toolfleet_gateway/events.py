"""Sends to those who come in over HTTP streams of what happens to tools, modules and approvals; any gateway goes on where another one has ended."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel
from starlette.responses import Response

from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.http.entrance import operator_of
from toolfleet_gateway.http.problems import invalid_request
from toolfleet_gateway.http.routes import (
    Answer,
    AnyRoute,
    HeaderParameter,
    RouteRequest,
    declared_routes,
    json_text,
    route,
)
from toolfleet_gateway.http.streams import MEDIA_TYPE, EventStream, OpenStreams, ServerSentEvent
from toolfleet_registry.catalog.registry_events import RegistryEvents
from toolfleet_registry.contracts import Caller, ModuleStatus
from toolfleet_registry.contracts.tool_definition import EVENT_KINDS, NO_TOOLS, ToolLoadError
from toolfleet_registry.errors import FleetUnavailable, RegistryEventsLost
from toolfleet_registry.permissions import Modules, permits, reaches
from toolfleet_registry.policy.call_faults import modules_of
from toolfleet_registry.settings import Settings
from toolfleet_registry.specs import RegistryEvent
from toolfleet_registry.store.rules import read_event_id
from toolfleet_registry.system import machine_clock
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.approvals.feed import EVENT_KINDS as APPROVAL_KINDS
from toolfleet_tasks.approvals.views import ShownApproval, shown
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.resources.approvals import is_shown_to
from toolfleet_tasks.resources.operation import AnswerModel

log = get_logger(__name__)

_FOLLOWING = "following"
"""The kind of the first event."""

_EVERYBODY = Caller(permission="owner", allowed_modules="*")
_EVERY_SECONDS = 1.0
_START_SECONDS = 5.0  # for the registry to say where it is
_CATCH_UP_SECONDS = 5.0  # for the next event, of those that a client has missed
_KNOWN_SECONDS = 3.0  # for a tool to be listed of which the registry has told
_FRESH_SECONDS = 0.2  # what all tools ask for is not looked up for each of a thousand events
_MOST_WAITING = 2_000  # events for one client; one that takes none comes again
_MOST_NEEDS = 50_000  # tools that are remembered, when they are gone

_LAST_ID = HeaderParameter(
    "Last-Event-ID", "The id of the last event that came: go on behind it.", pattern="^([0-9]{1,16}-[0-9]{1,16})?$"
)

_OF_NONE: Final = frozenset({"following", "events_lost"})


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """One event.

    `id` is the registry's, for an event of the registry; `needs`: the permission that the tool requires, if that is
    known.

    `is_for_viewers`: only viewers receive it. Without a `module` all clients do.
    """

    kind: str
    data: Mapping[str, Any]
    id: str | None = None
    module: str | None = None
    needs: str | None = None
    is_for_viewers: bool = False

    def sent(self) -> ServerSentEvent:
        """Return the event as it is sent."""
        return ServerSentEvent(self.kind, json.dumps(self.data, separators=(",", ":")), self.id)


EVENTS_LOST = FeedEvent("events_lost", {})
"""The kind of the event that events were lost: clients must read all tools again."""

_KINDS = (
    "state",
    *(f"tool_{kind}" for kind in EVENT_KINDS),
    "tool_load_error",
    "module_up",
    "module_down",
    EVENTS_LOST.kind,
)
"""What clients may hear of; `state` is how the modules are when the stream begins."""


class Listener:
    """A client that listens to a stream."""

    def __init__(self, who: Identity, guest_modules: frozenset[str]) -> None:
        self._is_viewer = who.has_role("viewer")
        self._permission = who.caller.permission
        self._modules: Modules = "*" if self._is_viewer else modules_of(who.caller, guest_modules)

    def may_hear(self, event: FeedEvent) -> bool:
        """Return whether the client may receive an event. One of a tool that is no longer known is for viewers."""
        if self._is_viewer or event.module is None:
            return True
        if event.is_for_viewers or not self.reaches(event.module):
            return False
        return event.needs is not None and permits(self._permission, event.needs)

    def reaches(self, module: str) -> bool:
        """Return whether the client may know of a module."""
        return reaches(module, self._modules)


def _of_registry(event: RegistryEvent, needs: str | None) -> FeedEvent:
    """Return the feed's event for one of the registry."""
    data = event.model_dump(mode="json", exclude_none=True, exclude={"id", "kind"})
    module = event.tool_name.partition(".")[0]
    is_for_viewers = event.kind == "drifted"
    return FeedEvent(f"tool_{event.kind}", data, event.id, module, needs, is_for_viewers)


def of_load_error(module: str, error: ToolLoadError) -> FeedEvent:
    """Return the event that a file is not served as it stands."""
    data = {**error.model_dump(mode="json", exclude_none=True), "module": module}
    return FeedEvent("tool_load_error", data, module=module, is_for_viewers=True)


def of_module(module: str, *, is_up: bool) -> FeedEvent:
    """Return the event that a module answers again, or no longer answers."""
    return FeedEvent("module_up" if is_up else "module_down", {"module": module}, module=module, needs="guest")


@dataclass(eq=False)
class _Subscription:
    waiting: asyncio.Queue[FeedEvent] = field(default_factory=lambda: asyncio.Queue(_MOST_WAITING))
    is_behind: bool = False


class EventFeed:
    """The events of one gateway. It follows the fleet while it has listeners, and belongs to the running loop."""

    def __init__(self, fleet: ToolFleet) -> None:
        self._fleet = fleet
        self._subscriptions = set[_Subscription]()
        self._tasks: list[asyncio.Task[None]] = []
        self._follower: RegistryEvents | None = None
        self._needs = dict[str, str]()
        self._is_patient_at = self._read_at = 0.0

    async def events(self, after: str | None) -> AsyncGenerator[FeedEvent]:
        """Yield the events from now on, or since the event `after` of the registry.

        Ends for a client that falls behind.

        The first one is `following`: later events are heard, and its id is where a client continues that hears nothing
        else. Raises `FleetUnavailable` if the registry does not tell its position in time.
        """
        with self._subscribed() as subscription:
            position = await self._position()
            yield FeedEvent(_FOLLOWING, {}, position or None if after is None else None)
            if after is not None:
                async for event in self._missed(after, position):
                    yield event
            waiting = subscription.waiting
            while not (subscription.is_behind and waiting.empty()):
                event = await waiting.get()
                if event.id is None or after is None or event.id > max(after, position):
                    yield event

    @contextlib.contextmanager
    def _subscribed(self) -> Generator[_Subscription]:
        subscription = _Subscription()
        self._subscriptions.add(subscription)
        if not self._tasks:
            self._follower = self._fleet.modules.events()
            work = (self._follow_registry(self._follower), self._follow_modules())
            self._tasks = [asyncio.create_task(one, name="toolfleet-event-feed") for one in work]
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)
            if not self._subscriptions:
                for task in self._tasks:
                    task.cancel()
                self._tasks = []

    async def _position(self) -> str:
        """Return the id of the last event that was sent to all listeners."""
        give_up_at = machine_clock.monotonic() + _START_SECONDS
        while self._follower is None or self._follower.after is None:
            if machine_clock.monotonic() > give_up_at:
                raise FleetUnavailable("The registry does not answer.")
            await asyncio.sleep(_EVERY_SECONDS / 20)
        return self._follower.after

    async def _missed(self, after: str, until: str) -> AsyncGenerator[FeedEvent]:
        """Yield the registry's events between two positions."""
        follower = self._fleet.modules.events(after)
        while (follower.after or "") < until:
            try:
                async with asyncio.timeout(_CATCH_UP_SECONDS):
                    event = await anext(follower)
            except RegistryEventsLost:
                yield EVENTS_LOST
                continue
            except (TimeoutError, FleetUnavailable):  # what is left cannot be had
                yield EVENTS_LOST
                return
            if event.id <= until:
                yield _of_registry(event, await self._needed(event))

    async def _follow_registry(self, follower: RegistryEvents) -> None:
        while True:
            try:
                async for event in follower:
                    self._publish(_of_registry(event, await self._needed(event)))
            except RegistryEventsLost:
                self._publish(EVENTS_LOST)
            except FleetUnavailable as exc:
                log.warning("registry_not_followed", error=str(exc))
            except Exception:  # a defect must not end what all listen to
                log.exception("registry_not_followed")
                await asyncio.sleep(_EVERY_SECONDS)

    async def _follow_modules(self) -> None:
        before: Mapping[str, ModuleStatus] | None = None
        while True:
            try:
                present = await self._fleet.modules.statuses()
                for event in () if before is None else changes_between(before, present):
                    self._publish(event)
                before = present
            except FleetUnavailable:  # it is asked again
                pass
            except Exception:  # as above
                log.exception("modules_not_followed")
            await asyncio.sleep(_EVERY_SECONDS)

    async def _needed(self, event: RegistryEvent) -> str | None:
        """Return the permission that the event's tool requires.

        The registry may report it a moment before it is listed.
        """
        clock = machine_clock.monotonic
        if not await self._is_known(event.tool_name) and clock() >= self._is_patient_at:
            give_up_at = clock() + _KNOWN_SECONDS
            while clock() < give_up_at and not await self._is_known(event.tool_name):  # noqa: ASYNC110 - it is not announced
                await asyncio.sleep(_EVERY_SECONDS / 10)
            if event.tool_name not in self._needs:  # other unlisted ones must not wait for as long again
                self._is_patient_at = clock() + 2 * _KNOWN_SECONDS
        return self._needs.get(event.tool_name)

    async def _is_known(self, tool_name: str) -> bool:
        now = machine_clock.monotonic()
        if tool_name not in self._needs or now > self._read_at + _FRESH_SECONDS:
            self._read_at = now
            if len(self._needs) > _MOST_NEEDS:
                self._needs.clear()
            self._needs |= {tool.name: tool.required_permission for tool in await self._fleet.tools(_EVERYBODY)}
        return tool_name in self._needs

    def _publish(self, event: FeedEvent) -> None:
        for subscription in self._subscriptions:
            if subscription.is_behind:
                continue
            try:
                subscription.waiting.put_nowait(event)
            except asyncio.QueueFull:
                subscription.is_behind = True


def changes_between(before: Mapping[str, ModuleStatus], present: Mapping[str, ModuleStatus]) -> Generator[FeedEvent]:
    """Yield the changes from one status to the next."""
    for name in before.keys() | present.keys():
        was, now = before.get(name), present.get(name)
        was_up, is_up = was is not None and was.ok, now is not None and now.ok
        if was_up != is_up:
            yield of_module(name, is_up=is_up)
        known = () if was is None else was.load_errors
        for error in () if now is None else now.load_errors:
            if error not in known and error.error_type != NO_TOOLS:
                yield of_load_error(name, error)


def event_routes(fleet: ToolFleet, settings: Settings, streams: OpenStreams) -> list[AnyRoute]:
    """Return the route of the stream of the fleet's events."""
    return declared_routes(_AboutEvents(fleet, settings, streams), tag="tools")


class _AboutEvents:
    def __init__(self, fleet: ToolFleet, settings: Settings, streams: OpenStreams) -> None:
        self._fleet = fleet
        self._feed = EventFeed(fleet)
        self._guest_modules = settings.default_guest_modules
        self._streams = streams

    @route(
        "GET",
        "/events",
        "What happens to tools and modules: a stream that goes on",
        {200: Answer("First `state`, then what happens.", media=MEDIA_TYPE, events=dict.fromkeys(_KINDS))},
        headers=(_LAST_ID,),
    )
    async def stream_events(self, request: RouteRequest[None, None]) -> Response:
        last = _last_id_of(request)
        return EventStream(request.who, self._events(Listener(request.who, self._guest_modules), last), self._streams)

    async def _events(self, listener: Listener, last: str | None) -> AsyncGenerator[ServerSentEvent]:
        try:
            async with aclosing(self._feed.events(last)) as events:
                async for event in events:
                    if event.kind == _FOLLOWING:
                        yield await self._state(listener, event.id)
                    elif listener.may_hear(event):
                        yield event.sent()
        except FleetUnavailable:  # the stream has begun: it ends, and its client comes again
            return

    async def _state(self, listener: Listener, position: str | None) -> ServerSentEvent:
        statuses = await self._fleet.modules.statuses()
        up = {name: status.ok for name, status in statuses.items() if listener.reaches(name)}
        return FeedEvent("state", {"modules": up}, position).sent()


class ApprovalNotice(AnswerModel):
    """Something that has happened to an approval."""

    approval: ShownApproval
    """The approval, as it is at this moment."""


_APPROVAL_EVENTS: Mapping[str, type[BaseModel] | None] = {
    kind: None if kind in _OF_NONE else ApprovalNotice for kind in APPROVAL_KINDS
}


def approval_routes(fleet: ToolFleet, streams: OpenStreams) -> list[AnyRoute]:
    """Return the route of the stream of approvals."""
    return declared_routes(_ApprovalStream(fleet, streams), tag="approvals")


@dataclass(frozen=True, slots=True)
class _ApprovalStream:
    fleet: ToolFleet
    streams: OpenStreams

    @route(
        "GET",
        "/approvals/events",
        "What happens to approvals that the key's holder may see: a stream that goes on",
        {200: Answer("First `following`, then what happens.", media=MEDIA_TYPE, events=_APPROVAL_EVENTS)},
        headers=(_LAST_ID,),
    )
    async def stream_approvals(self, request: RouteRequest[None, None]) -> Response:
        last = _last_id_of(request)
        return EventStream(request.who, _approval_events(self.fleet, request.who, last), self.streams)


async def _approval_events(fleet: ToolFleet, who: Identity, last: str | None) -> AsyncGenerator[ServerSentEvent]:
    viewer = operator_of(who)
    try:
        async with aclosing(fleet.approvals.events(last)) as events:
            async for event in events:
                if event.found is None:
                    yield ServerSentEvent(event.kind, "{}", event.id)
                elif is_shown_to(viewer, event.found):
                    notice = ApprovalNotice(approval=shown(event.found, viewer.approver))
                    yield ServerSentEvent(event.kind, json_text(notice, with_none=True), event.id)
    except FleetUnavailable:  # the stream has begun: it ends, and its client comes again
        return


def _last_id_of(request: RouteRequest[None, None]) -> str | None:
    """Return the id of the last event that came to the client. Raises `Problem` (400) for one of another stream."""
    last = request.raw.headers.get("last-event-id") or None
    try:
        read_event_id(last or "")
    except ValueError:
        raise invalid_request("The Last-Event-ID is none of this stream.") from None
    return last
