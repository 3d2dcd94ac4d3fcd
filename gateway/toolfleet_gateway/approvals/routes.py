"""Lists, shows and decides approvals: each holder of a key sees those that are theirs to decide, and their own calls'; viewers see all."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Final

from pydantic import BaseModel
from starlette.responses import Response

from toolfleet_gateway.approvals.bodies import ApprovalDecision, ApprovalList, ApprovalNotice, ApprovalQuery
from toolfleet_gateway.approvals.deciding import approver_of, is_theirs, take_decision
from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.http.answers import json_answer, json_text
from toolfleet_gateway.http.open_streams import OpenStreams
from toolfleet_gateway.http.problems import Problem, invalid_request, not_found
from toolfleet_gateway.http.routes import Answer, AnyRoute, HeaderParameter, Route, RouteRequest
from toolfleet_gateway.http.streams import MEDIA_TYPE, EventStream, ServerSentEvent
from toolfleet_registry.errors import ApprovalNotTaken, FleetUnavailable
from toolfleet_registry.store.rules import read_event_id
from toolfleet_tasks.approvals.feed import EVENT_KINDS
from toolfleet_tasks.approvals.records import StoredApproval
from toolfleet_tasks.approvals.shown import ShownApproval, shown
from toolfleet_tasks.client.fleet import ToolFleet

_LIST, _ONE = "/approvals", "/approvals/{approval_id}"

_OF_NONE: Final = frozenset({"following", "events_lost"})
_EVENTS: Mapping[str, type[BaseModel] | None] = {
    kind: None if kind in _OF_NONE else ApprovalNotice for kind in EVENT_KINDS
}
_LAST_ID = HeaderParameter(
    "Last-Event-ID", "The id of the last event that came: go on behind it.", pattern="^([0-9]{1,16}-[0-9]{1,16})?$"
)


def approval_routes(fleet: ToolFleet, streams: OpenStreams) -> list[AnyRoute]:
    """Return the routes of approvals. Each call's rules say who may decide, independent of roles."""
    about = _AboutApprovals(fleet)
    return [
        Route(
            method="GET",
            path=_LIST,
            name="listApprovals",
            summary="Calls that wait for people: those that the key's holder may decide, and their own",
            handle=about.listed,
            query=ApprovalQuery,
            answers={200: Answer("Those that expire next first.", ApprovalList)},
            tag="approvals",
        ),
        _approval_stream(fleet, streams),
        Route(
            method="GET",
            path=_ONE,
            name="getApproval",
            summary="One of them",
            handle=about.shown,
            answers={200: Answer("It.", ShownApproval)},
            problems=(404,),
            tag="approvals",
        ),
        Route(
            method="POST",
            path=_ONE,
            name="decideApproval",
            summary="Approve a call, perhaps with other arguments, or reject it",
            handle=about.decided,
            body=ApprovalDecision,
            answers={200: Answer("What it has come to.", ShownApproval)},
            problems=(403, 404, 409, 422),
            tag="approvals",
        ),
    ]


class _AboutApprovals:
    def __init__(self, fleet: ToolFleet) -> None:
        self._approvals = fleet.approvals

    async def listed(self, request: RouteRequest[None, ApprovalQuery]) -> Response:
        viewer, query = approver_of(request.who), request.query
        seen = await self._approvals.list(
            settled=query.settled,
            limit=query.limit,
            offset=query.offset,
            viewer=None if request.who.has_role("viewer") else viewer,
            conversation_id=query.conversation_id,
        )
        return json_answer(ApprovalList(approvals=[shown(each, viewer) for each in seen], count=len(seen)))

    async def shown(self, request: RouteRequest[None, None]) -> Response:
        found = await self._seen(request.path["approval_id"], request.who)
        return json_answer(shown(found, approver_of(request.who)))

    async def decided(self, request: RouteRequest[ApprovalDecision, None]) -> Response:
        approver = approver_of(request.who)
        approval_id = (await self._seen(request.path["approval_id"], request.who)).approval_id
        found = await take_decision(self._approvals, approval_id, approver, request.body)
        return json_answer(shown(found, approver))

    async def _seen(self, approval_id: str, who: Identity) -> StoredApproval:
        """Return an approval. Raises `Problem`, 404, also for one that the caller may not see."""
        try:
            found = await self._approvals.show(approval_id)
        except ApprovalNotTaken as exc:
            raise _absent() from exc
        if not is_theirs(found, who):
            raise _absent()
        return found


def _absent() -> Problem:
    return not_found("There is no such approval, or not any more.")


def _approval_stream(fleet: ToolFleet, streams: OpenStreams) -> AnyRoute:
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
