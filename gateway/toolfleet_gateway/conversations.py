"""Sends a conversation's completions, each until its client has confirmed it."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from toolfleet_gateway.auth.identity import UserName
from toolfleet_gateway.http.problems import Problem, invalid_request, not_found
from toolfleet_gateway.http.routes import Answer, AnyRoute, HeaderParameter, Route, RouteRequest, json_text, nothing
from toolfleet_gateway.http.streams import MEDIA_TYPE, EventStream, OpenStreams, ServerSentEvent
from toolfleet_registry.contracts.jobs import WakeUp
from toolfleet_registry.errors import SettingsError
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.wakeups.inbox import CompletionInbox, is_entry_id

_LAST_ID = HeaderParameter(
    "Last-Event-ID",
    "The id of the last completion that came: it and those before are confirmed.",
    pattern="^((0|[1-9][0-9]{0,18})-(0|[1-9][0-9]{0,18}))?$",
)


class LostCompletions(BaseModel):
    """Completions that were dropped before they were read: of each user and conversation about the last 1,000 are kept."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    count: int
    """How many there were."""


class CompletionQuery(BaseModel):
    """A query for a user's completions."""

    model_config = ConfigDict(extra="forbid")

    user_id: UserName | None = Field(None, description="Whose, for keys that act for others.")


def conversation_routes(fleet: ToolFleet, streams: OpenStreams) -> list[AnyRoute]:
    """Return the routes of conversations: only for the user whose jobs they are about."""
    about = _AboutConversations(fleet, streams)
    return [
        Route(
            method="GET",
            path="/conversations/{conversation_id}/completions",
            name="streamCompletions",
            summary="How the caller's jobs of a conversation have ended: a stream that goes on",
            handle=about.completions,
            query=CompletionQuery,
            headers=(_LAST_ID,),
            answers={200: Answer("An end each.", media=MEDIA_TYPE, events=_EVENTS)},
            problems=(409,),
            tag="jobs",
        ),
        Route(
            method="POST",
            path="/conversations/{conversation_id}/completions/{completion_id}/ack",
            name="confirmCompletion",
            summary="Confirm a completion: it does not come again",
            handle=about.confirm,
            query=CompletionQuery,
            answers={204: Answer("It is confirmed.")},
            problems=(404, 409),
            tag="jobs",
        ),
    ]


_EVENTS: dict[str, type[BaseModel] | None] = {"completion": WakeUp, "events_lost": LostCompletions}


class _AboutConversations:
    def __init__(self, fleet: ToolFleet, streams: OpenStreams) -> None:
        self._fleet = fleet
        self._streams = streams

    async def completions(self, request: RouteRequest[None, CompletionQuery]) -> Response:
        inbox, last = await self._inbox(request), request.raw.headers.get("last-event-id")
        if last:
            if not is_entry_id(last):
                raise invalid_request("The Last-Event-ID is none of this stream.")
            await inbox.confirm_up_to(last)
        return EventStream(request.who, _events(inbox), self._streams)

    async def confirm(self, request: RouteRequest[None, CompletionQuery]) -> Response:
        completion_id = request.path["completion_id"]
        inbox = await self._inbox(request)
        if not is_entry_id(completion_id) or not await inbox.confirm(completion_id):
            raise not_found("There is no such completion, or not any more: perhaps it was confirmed.")
        return nothing()

    async def _inbox(self, request: RouteRequest[None, CompletionQuery]) -> CompletionInbox:
        caller = request.who.caller_for(request.query.user_id)
        try:
            return await self._fleet.wakeups.inbox(request.path["conversation_id"], caller)
        except SettingsError as exc:
            raise Problem(
                409, "completions_go_to_core", "This fleet wakes an agent's core: nothing comes here."
            ) from exc


async def _events(inbox: CompletionInbox) -> AsyncGenerator[ServerSentEvent]:
    async with aclosing(inbox.follow()) as entries:
        async for entry_id, entry in entries:
            if isinstance(entry, WakeUp):
                yield ServerSentEvent("completion", json_text(entry), entry_id)
            else:
                yield ServerSentEvent("events_lost", json_text(LostCompletions(count=entry)), entry_id)
