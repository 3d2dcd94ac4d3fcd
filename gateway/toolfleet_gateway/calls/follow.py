"""Serves `GET /calls/{call_id}`, `DELETE /calls/{call_id}` and `GET /calls/{call_id}/events`."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from pydantic import BaseModel
from starlette.responses import Response

from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.calls.attaching import attached
from toolfleet_gateway.calls.bodies import CallState
from toolfleet_gateway.calls.calling import CALLS, Calling
from toolfleet_gateway.calls.preferences import PREFER, preference_of
from toolfleet_gateway.http.entrance import operator_of
from toolfleet_gateway.http.problems import Problem, invalid_request, not_found
from toolfleet_gateway.http.routes import (
    Answer,
    AnyRoute,
    HeaderParameter,
    Route,
    RouteRequest,
    json_text,
    nothing,
    text_answer,
)
from toolfleet_gateway.http.streams import MEDIA_TYPE, EventStream, OpenStreams, ServerSentEvent
from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.contracts.call_context import LogMessage, Progress
from toolfleet_tasks.aio.cancellation import end
from toolfleet_tasks.approvals.shown import ShownApproval, shown
from toolfleet_tasks.calls.begun_handle import BegunHandle

_PATH = CALLS + "/{call_id}"
_LAST_EVENT_ID = HeaderParameter(
    "Last-Event-ID",
    "The id of the last event that came: what is known by it does not come again.",
    pattern="^([0-9a-f-]{36}:(end|[0-9a-f]{16}))?$",
)
_END = "end"
_EVENTS: Mapping[str, type[BaseModel]] = {
    "approval": ShownApproval,
    "progress": Progress,
    "log": LogMessage,
    _END: ToolResult,
}

_FOLLOWED: Mapping[int, Answer] = {
    200: Answer("How far it is, what it logs, and its end.", media=MEDIA_TYPE, events=_EVENTS),
    204: Answer("The call has ended, and its end has come already: do not come again."),
}

_LONGEST_SECONDS = 86_400.0

Report = ShownApproval | Progress | LogMessage
_Source = AsyncGenerator[ShownApproval] | AsyncGenerator[Progress] | AsyncGenerator[LogMessage]


@dataclass(frozen=True, slots=True)
class FollowingRoutes:
    """The routes of started calls, of any gateway. Another user's call looks like an unknown id."""

    calling: Calling
    streams: OpenStreams

    def routes(self) -> list[AnyRoute]:
        """Return the routes."""
        state = {200: Answer("Where the call is, and its result once it has ended.", CallState)}
        get = Route(
            method="GET", path=_PATH, name="getCall", summary="Where a call is", handle=self.state, answers=state,
            headers=(PREFER,), problems=(404, 503),
        )  # fmt: skip
        cancel = Route(
            method="DELETE", path=_PATH, name="cancelCall", summary="Take a call back", handle=self.cancel,
            answers=state, problems=(404, 409, 503),
        )  # fmt: skip
        events = Route(
            method="GET", path=f"{_PATH}/events", name="followCall", summary="Follow a call: its approval, progress, log, and its end",
            handle=self.events, answers=_FOLLOWED,
            headers=(_LAST_EVENT_ID,), problems=(404, 503),
        )  # fmt: skip
        return [get, cancel, events]

    async def state(self, asked: RouteRequest[None, None]) -> Response:
        """Answer with a call's state; with `Prefer: wait=N`, as soon as it has ended."""
        preference = preference_of(asked.raw.headers, self.calling.settings, usual=0)
        handle = await self._attached(asked.who, asked.path["call_id"])
        try:
            await self.calling.end_of(handle, preference)
            return text_answer(json_text(await _state_of(handle), with_none=True), headers=preference.headers)
        finally:
            handle.leave()

    async def cancel(self, asked: RouteRequest[None, None]) -> Response:
        """Take a call back. One that has ended stays as it ended."""
        handle = await self._attached(asked.who, asked.path["call_id"])
        try:
            if handle.is_guest and await handle.end_within(0) is None:
                raise Problem(
                    409, "conflict", "The call was begun by somebody else with the same key, and is theirs to cancel."
                )
            await handle.cancel()
            return text_answer(json_text(await _state_of(handle), with_none=True))
        finally:
            handle.leave()

    async def events(self, asked: RouteRequest[None, None]) -> Response:
        """Follow a call: how far it is, what it logs from now on, and its end. Who comes again gets the latest, and what follows.

        After its end that is nothing, in the one way after which a browser's `EventSource` does not come again: 204.
        """
        call_id = asked.path["call_id"]
        last = asked.raw.headers.get("last-event-id", "")
        if last and last.partition(":")[0] != call_id:
            raise invalid_request("Last-Event-ID is not one of this call's events.")
        handle = await self._attached(asked.who, call_id)
        if last.endswith(f":{_END}") and handle.has_ended:
            handle.leave()
            return nothing()
        return EventStream(
            asked.who, _events_of(handle, last, self._approvals(asked.who, handle)), self.streams, release=handle.leave
        )

    async def _approvals(self, who: Identity, handle: BegunHandle) -> AsyncGenerator[ShownApproval]:
        """The approval that the call waits for, or waited for: as it is, and after each step."""
        viewer = operator_of(who).approver
        steps = self.calling.fleet.approvals.steps(handle.id, lambda: handle.has_ended)
        async with aclosing(steps):
            async for step in steps:
                yield shown(step, viewer)

    async def _attached(self, who: Identity, call_id: str) -> BegunHandle:
        found = await attached(self.calling.fleet, who, call_id)
        if found is None:
            raise not_found("There is no such call: it is unknown, or was forgotten.")
        return found


async def _state_of(handle: BegunHandle) -> CallState:
    result = await handle.end_within(0)
    if result is not None:
        return CallState(call_id=handle.id, tool_name=handle.tool_name, state="done", result=result)
    status = await handle.status()
    result = await handle.end_within(0)  # it may have ended meanwhile
    if result is not None:
        return CallState(call_id=handle.id, tool_name=handle.tool_name, state="done", result=result)
    place = "running" if status == "done" else str(status)  # its result is on its way
    return CallState.model_validate(
        {"call_id": handle.id, "tool_name": handle.tool_name, "state": place, "progress": status.progress}
    )


async def _events_of(
    handle: BegunHandle, last: str, approvals: AsyncGenerator[ShownApproval]
) -> AsyncGenerator[ServerSentEvent]:
    async with aclosing(_reports_of(handle, approvals)) as reports:
        async for report in reports:
            text = json_text(report, with_none=True)
            if isinstance(report, LogMessage):
                yield ServerSentEvent("log", text)  # without an id: it does not come again
                continue
            name = f"{handle.id}:{hashlib.sha256(text.encode()).hexdigest()[:16]}"
            if name != last:
                kind = "approval" if isinstance(report, ShownApproval) else "progress"
                yield ServerSentEvent(kind, text, name)
    result = await handle.end_within(_LONGEST_SECONDS)
    if result is not None:
        yield ServerSentEvent(_END, json_text(result, with_none=True), f"{handle.id}:{_END}")


async def _reports_of(handle: BegunHandle, approvals: AsyncGenerator[ShownApproval]) -> AsyncGenerator[Report]:
    """Yield the call's reports until it ends, and the changes of its approval."""
    send, receive = anyio.create_memory_object_stream[Report](0)
    sources: list[_Source] = [approvals, handle.progress()]
    if handle.log_level is not None:
        sources.append(handle.log())
    tasks = [asyncio.create_task(_pass_on(each, send.clone()), name="toolfleet-call-reports") for each in sources]
    send.close()
    async with receive:
        try:
            async for report in receive:
                yield report
        finally:
            await end(tasks)


async def _pass_on(source: _Source, send: MemoryObjectSendStream[Report]) -> None:
    async with send, aclosing(source) as reports:
        async for report in reports:
            await send.send(report)
