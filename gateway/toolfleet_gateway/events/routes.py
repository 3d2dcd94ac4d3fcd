"""Sends what happens to tools and modules, as far as a key may see it."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.responses import Response

from toolfleet_gateway.events.feed import FOLLOWING, EventFeed
from toolfleet_gateway.events.feed_events import KINDS, FeedEvent, Listener
from toolfleet_gateway.http.open_streams import OpenStreams
from toolfleet_gateway.http.problems import invalid_request
from toolfleet_gateway.http.routes import Answer, AnyRoute, HeaderParameter, Route, RouteRequest
from toolfleet_gateway.http.streams import MEDIA_TYPE, EventStream, ServerSentEvent
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.settings import Settings
from toolfleet_registry.store.rules import read_event_id
from toolfleet_tasks.client.fleet import ToolFleet

_LAST_ID = HeaderParameter(
    "Last-Event-ID", "The id of the last event that came: go on behind it.", pattern="^([0-9]{1,16}-[0-9]{1,16})?$"
)


def event_routes(fleet: ToolFleet, settings: Settings, streams: OpenStreams) -> list[AnyRoute]:
    """The stream of the fleet's events."""
    about = _AboutEvents(fleet, settings, streams)
    return [
        Route(
            method="GET",
            path="/events",
            name="streamEvents",
            summary="What happens to tools and modules: a stream that goes on",
            handle=about.stream,
            headers=(_LAST_ID,),
            answers={200: Answer("First `state`, then what happens.", media=MEDIA_TYPE, events=dict.fromkeys(KINDS))},
            tag="tools",
        )
    ]


class _AboutEvents:
    def __init__(self, fleet: ToolFleet, settings: Settings, streams: OpenStreams) -> None:
        self._fleet = fleet
        self._feed = EventFeed(fleet)
        self._guest_modules = settings.default_guest_modules
        self._streams = streams

    async def stream(self, request: RouteRequest[None, None]) -> Response:
        last = request.raw.headers.get("last-event-id") or None
        try:
            read_event_id(last or "")
        except ValueError:
            raise invalid_request("The Last-Event-ID is none of this stream.") from None
        return EventStream(request.who, self._events(Listener(request.who, self._guest_modules), last), self._streams)

    async def _events(self, listener: Listener, last: str | None) -> AsyncGenerator[ServerSentEvent]:
        try:
            async with aclosing(self._feed.events(last)) as events:
                async for event in events:
                    if event.kind == FOLLOWING:
                        yield await self._state(listener, event.id)
                    elif listener.may_hear(event):
                        yield event.sent()
        except FleetUnavailable:  # the stream has begun: it ends, and its client comes again
            return

    async def _state(self, listener: Listener, position: str | None) -> ServerSentEvent:
        statuses = await self._fleet.modules.statuses()
        up = {name: status.ok for name, status in statuses.items() if listener.reaches(name)}
        return FeedEvent("state", {"modules": up}, position).sent()
