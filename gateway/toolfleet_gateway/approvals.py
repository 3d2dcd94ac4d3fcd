"""Sends what happens to approvals to each user who may see them, as a stream; any gateway goes on where another one has ended."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Final

from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.http.entrance import operator_of
from toolfleet_gateway.http.problems import invalid_request
from toolfleet_gateway.http.routes import Answer, AnyRoute, HeaderParameter, Route, RouteRequest, json_text
from toolfleet_gateway.http.streams import MEDIA_TYPE, EventStream, OpenStreams, ServerSentEvent
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.store.rules import read_event_id
from toolfleet_tasks.approvals.feed import EVENT_KINDS
from toolfleet_tasks.approvals.shown import ShownApproval, shown
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.resources.approvals import is_shown_to


class ApprovalNotice(BaseModel):
    """Something that has happened to an approval."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    approval: ShownApproval
    """The approval, as it is at this moment."""


_OF_NONE: Final = frozenset({"following", "events_lost"})
_EVENTS: Mapping[str, type[BaseModel] | None] = {
    kind: None if kind in _OF_NONE else ApprovalNotice for kind in EVENT_KINDS
}
_LAST_ID = HeaderParameter(
    "Last-Event-ID", "The id of the last event that came: go on behind it.", pattern="^([0-9]{1,16}-[0-9]{1,16})?$"
)


def approval_routes(fleet: ToolFleet, streams: OpenStreams) -> list[AnyRoute]:
    """Return the route of the stream."""

    async def stream(request: RouteRequest[None, None]) -> Response:
        last = request.raw.headers.get("last-event-id") or None
        try:
            read_event_id(last or "")
        except ValueError:
            raise invalid_request("The Last-Event-ID is none of this stream.") from None
        return EventStream(request.who, _events(fleet, request.who, last), streams)

    return [
        Route(
            method="GET",
            path="/approvals/events",
            name="streamApprovals",
            summary="What happens to approvals that the key's holder may see: a stream that goes on",
            handle=stream,
            headers=(_LAST_ID,),
            answers={200: Answer("First `following`, then what happens.", media=MEDIA_TYPE, events=_EVENTS)},
            tag="approvals",
        )
    ]


async def _events(fleet: ToolFleet, who: Identity, last: str | None) -> AsyncGenerator[ServerSentEvent]:
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
