"""Sends what happens to approvals: to each holder of a key what `GET /approvals` would show them."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Final

from pydantic import BaseModel
from starlette.responses import Response

from toolfleet_gateway.approvals.bodies import ApprovalNotice
from toolfleet_gateway.approvals.deciding import approver_of, is_theirs
from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.http.answers import json_text
from toolfleet_gateway.http.open_streams import OpenStreams
from toolfleet_gateway.http.problems import invalid_request
from toolfleet_gateway.http.routes import Answer, AnyRoute, HeaderParameter, Route, RouteRequest
from toolfleet_gateway.http.streams import MEDIA_TYPE, EventStream, ServerSentEvent
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.store.rules import read_event_id
from toolfleet_tasks.approvals.feed import EVENT_KINDS
from toolfleet_tasks.approvals.shown import shown
from toolfleet_tasks.client.fleet import ToolFleet

_OF_NONE: Final = frozenset({"following", "events_lost"})
_EVENTS: Mapping[str, type[BaseModel] | None] = {
    kind: None if kind in _OF_NONE else ApprovalNotice for kind in EVENT_KINDS
}
_LAST_ID = HeaderParameter(
    "Last-Event-ID", "The id of the last event that came: go on behind it.", pattern="^([0-9]{1,16}-[0-9]{1,16})?$"
)


def approval_stream(fleet: ToolFleet, streams: OpenStreams) -> AnyRoute:
    """The stream. Any gateway goes on where another one has ended."""
    about = _Stream(fleet, streams)
    return Route(
        method="GET",
        path="/approvals/events",
        name="streamApprovals",
        summary="What happens to approvals that the key's holder may see: a stream that goes on",
        handle=about.stream,
        headers=(_LAST_ID,),
        answers={200: Answer("First `following`, then what happens.", media=MEDIA_TYPE, events=_EVENTS)},
        tag="approvals",
    )


class _Stream:
    def __init__(self, fleet: ToolFleet, streams: OpenStreams) -> None:
        self._fleet, self._streams = fleet, streams

    async def stream(self, request: RouteRequest[None, None]) -> Response:
        last = request.raw.headers.get("last-event-id") or None
        try:
            read_event_id(last or "")
        except ValueError:
            raise invalid_request("The Last-Event-ID is none of this stream.") from None
        return EventStream(request.who, self._events(request.who, last), self._streams)

    async def _events(self, who: Identity, last: str | None) -> AsyncGenerator[ServerSentEvent]:
        viewer = approver_of(who)
        try:
            async with aclosing(self._fleet.approvals.events(last)) as events:
                async for event in events:
                    if event.found is None:
                        yield ServerSentEvent(event.kind, "{}", event.id)
                    elif is_theirs(event.found, who):
                        notice = ApprovalNotice(approval=shown(event.found, viewer))
                        yield ServerSentEvent(event.kind, json_text(notice, with_none=True), event.id)
        except FleetUnavailable:  # the stream has begun: it ends, and its client comes again
            return
