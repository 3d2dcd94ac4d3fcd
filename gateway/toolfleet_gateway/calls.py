"""Starts, follows and cancels calls over REST."""

import asyncio
import hashlib
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from pydantic import BaseModel, Field
from starlette.datastructures import Headers
from starlette.responses import Response

from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.http.entrance import operator_of
from toolfleet_gateway.http.problems import Problem, ProblemBody, invalid_request, not_found, problem_of
from toolfleet_gateway.http.routes import (
    Answer,
    HeaderParameter,
    RouteRequest,
    json_answer,
    json_text,
    nothing,
    route,
    text_answer,
)
from toolfleet_gateway.http.streams import MEDIA_TYPE, EventStream, OpenStreams, ServerSentEvent
from toolfleet_registry.access import AgentNames, UserName
from toolfleet_registry.config.gateway_settings import GatewaySettings
from toolfleet_registry.contracts import Conversation, ErrorCode, ToolCall, ToolResult
from toolfleet_registry.contracts.call_context import LogLevel, LogMessage, Progress
from toolfleet_registry.errors import FleetError
from toolfleet_tasks.aio import Closing, end
from toolfleet_tasks.approvals.views import ShownApproval, shown
from toolfleet_tasks.calls.begun_calls import BegunHandle, Owner
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.resources.operation import AnswerModel, BodyModel
from toolfleet_tasks.resources.tools import no_such_tool

USUAL_SECONDS: Final = 30.0
"""How long the request of a call is held open by default: most proxies cut one after a minute."""

# Where its client asks for longer: a proxy in front needs a time-out beyond it, and each such request holds a connection.
_LONGEST_WAIT_SECONDS = 300.0
_MOST_IN_BATCH = 50
_LONGEST_KEY = 256

_Seconds = Annotated[float, Field(gt=0, le=86_400 * 365, allow_inf_nan=False)]
Name = Annotated[str, Field(max_length=256)]
# In the document only: what else a model has written is no tool's name, and is answered as that.
_TOOL_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}\.[A-Za-z0-9_.-]{1,192}$"
_METHOD_NAME = r"^([A-Za-z0-9][A-Za-z0-9_-]{0,63}\.)?[A-Za-z0-9_-][A-Za-z0-9_-]{0,191}$"

_PREFER = HeaderParameter(
    "Prefer",
    "`wait=N`: answer with the result if there is one within N seconds. `respond-async`: answer at once.",
    most=None,
)

IDEMPOTENCY_KEY_PATTERN = rf"^[\x21-\x7e]([\x20-\x7e]{{0,{_LONGEST_KEY - 2}}}[\x21-\x7e])?$"
"""The form of an idempotency key, on every route."""
_IDEMPOTENCY_KEY = HeaderParameter(
    "Idempotency-Key",
    "Names the intention: a repeat with the same key brings the first call's result.",
    pattern=IDEMPOTENCY_KEY_PATTERN,
)

_WAIT = re.compile(r"wait\s*=\s*\"?(\d{1,6})\"?")
_PRINTABLE = re.compile(IDEMPOTENCY_KEY_PATTERN)

_REFUSED: dict[ErrorCode, int] = {
    "invalid_tool_name": 400,
    "permission_denied": 403,
    "blocked_by_gate": 403,
    "approval_denied": 403,
    "approval_required": 403,
    "unknown_module": 404,
    "unknown_tool": 404,
    "version_mismatch": 409,
    "conflict": 409,
    "invalid_arguments": 422,
    "rate_limited": 429,
    "busy": 503,
    "fleet_unavailable": 503,
    "module_unreachable": 503,
}
"""The problems of a call that reached no queue. Any other end, a tool's failure included, is a 200 with its result."""

_TELLING: Final = frozenset[ErrorCode | None]({"permission_denied", "unknown_module", "unknown_tool"})
"""Codes that would tell whether a tool exists."""

_SOON_SECONDS = 1.0

_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_CALLS = "/calls"
_CONFIRMATION_SECONDS = 5.0  # beyond what the client waits: a restarted Redis is back by then

_PROBLEMS = (403, 404, 409, 422, 429, 503)
_LOCATION = {"Location": "Where to follow the call.", "Retry-After": "Seconds until a look makes sense."}

_PATH = _CALLS + "/{call_id}"
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

_LONGEST_FOLLOWING_SECONDS = 86_400.0

Report = ShownApproval | Progress | LogMessage
_Source = AsyncGenerator[ShownApproval] | AsyncGenerator[Progress] | AsyncGenerator[LogMessage]


class CallBody(BodyModel):
    """A call of a tool."""

    tool_name: str = Field(max_length=1024, json_schema_extra={"pattern": _TOOL_NAME})
    """`module.tool`, as `GET /tools` has it."""
    arguments: dict[str, Any] = Field(default={})
    """By the names of the tool's arguments."""
    timeout_seconds: _Seconds | None = None
    """By when it is to end; by default the tool's own limit, and room for a second attempt."""
    conversation_id: Name | None = None
    """The conversation that it belongs to."""
    run_id: Name | None = None
    """The turn of the agent that it is part of: what a profile's `run_limit` counts by."""
    user_id: UserName | None = None
    """In whose name, for keys that may act for others."""
    agent: AgentNames | None = None
    """The agent whose profile takes from what the key may do; a key of an agent takes no other one."""
    tool_version: Name | None = None
    """The version of the tool that is meant; by default whichever there is."""
    log_level: LogLevel | None = None
    """Its events have the tool's log messages that are so grave or graver; by default none."""


class BatchedCall(CallBody):
    """A call among others."""

    tool_name: str = Field(max_length=1024)
    """`module.tool`; one that is none is this call's own problem, and none of the others'."""
    user_id: Name | None = None
    """In whose name, for keys that may act for others; again it is this call's own problem if it is none."""
    idempotency_key: str | None = Field(default=None, min_length=1, max_length=_LONGEST_KEY)
    """As the header `Idempotency-Key` of a single call."""


class BatchBody(BodyModel):
    """Calls that are to run side by side."""

    calls: Annotated[list[BatchedCall], Field(min_length=1, max_length=_MOST_IN_BATCH)]
    """Each has an answer of its own."""


class ExecuteBody(BodyModel):
    """A call of one module's tool."""

    tool_name: str = Field(max_length=1024, json_schema_extra={"pattern": _METHOD_NAME})
    """The tool's name, with or without the module before it."""
    arguments: dict[str, Any] = Field(default={})
    """By the names of the tool's arguments."""
    user_id: UserName | None = None
    """In whose name, for keys that may act for others."""
    agent: AgentNames | None = None
    """The agent whose profile takes from what the key may do; a key of an agent takes no other one."""


class CallState(AnswerModel):
    """The state of a call."""

    call_id: str
    """The call's id."""
    tool_name: str
    """Its tool."""
    state: Literal["queued", "running", "retrying", "input_required", "waiting_approval", "done", "unknown"]
    """`unknown`: Redis does not answer now."""
    progress: Progress | None = None
    """What it said last of how far it is."""
    result: ToolResult | None = None
    """How it ended, once it is `done`."""


class BatchedAnswer(AnswerModel):
    """The outcome of one call of a batch: its `result`, its state, or the problem that kept it from its queue."""

    status: int
    """The HTTP status that it would have had by itself."""
    result: ToolResult | None = None
    """How it ended, if it has."""
    call: CallState | None = None
    """Where it is, if it has not."""
    problem: ProblemBody | None = None
    """Why it is in no queue."""


class BatchAnswer(AnswerModel):
    """The answers, in the order of the calls."""

    calls: list[BatchedAnswer]


@dataclass(frozen=True, slots=True)
class Preference:
    """The seconds that a client waits for a result, and the preference that was applied."""

    seconds: float
    applied: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The headers that name the applied preference."""
        return {} if self.applied is None else {"preference-applied": self.applied}


def _preference_of(headers: Headers, *, usual: float) -> Preference:
    """Parse `Prefer`, within bounds; `usual` seconds without it.

    Unknown preferences are ignored, as RFC 7240 requires.
    """
    preferred = [one.strip().lower() for value in headers.getlist("prefer") for one in value.split(",")]
    waits = next((found for one in preferred if (found := _WAIT.fullmatch(one))), None)
    if waits is not None:
        seconds = min(float(waits[1]), _LONGEST_WAIT_SECONDS)
        return Preference(seconds, f"wait={seconds:g}")
    return Preference(0.0, "respond-async") if "respond-async" in preferred else Preference(usual)


def idempotency_key_of(headers: Headers) -> str | None:
    """Return the idempotency key, if there is one. Raises `Problem` (400) for an invalid one."""
    key = headers.get("idempotency-key")
    if key is None:
        return None
    if not _PRINTABLE.fullmatch(key):
        raise invalid_request(f"Idempotency-Key must be 1 to {_LONGEST_KEY} printable ASCII characters.")
    return key


async def absence_for(fleet: ToolFleet, who: Identity, refusal: ToolResult) -> ToolResult | None:
    """Return the answer in place of a refusal about a tool that the key does not reach: the one about a tool that does not exist.

    `None`: the refusal as it is, which operators always get.
    """
    name = refusal.tool_name
    if refusal.error_code not in _TELLING or who.has_role("operator"):
        return None
    return (
        None if await fleet.begun_calls.reaches(name, who.caller) else await fleet.begun_calls.absence(name, who.caller)
    )


async def problem_for(fleet: ToolFleet, who: Identity, refusal: ToolResult) -> Problem | None:
    """Return the problem of a refusal, as far as this key may know it; see `problem_of_refusal`."""
    absence = await absence_for(fleet, who, refusal)
    if absence is None:
        return problem_of_refusal(refusal)
    error = no_such_tool(absence)
    return not_found(str(error), code="unknown_tool", hint=error.hint)


def problem_of_refusal(result: ToolResult) -> Problem | None:
    """Return the problem of a call that was refused before it was queued; `None` for any other end."""
    code = result.error_code
    status = None if code is None else _REFUSED.get(code)
    if code is None or status is None:
        return None
    seconds = result.retry_after_seconds
    if seconds is None and status == 503:  # noqa: PLR2004 - a client must not come again at once
        seconds = _SOON_SECONDS
    return Problem(
        status,
        code,
        result.error or code,
        hint=result.hint,
        effect_state=result.effect_state,
        retryable=result.retryable,
        retry_after_seconds=seconds,
        ends_run=result.ends_run,
    )


async def attached(fleet: ToolFleet, who: Identity, call_id: str) -> BegunHandle | None:
    """The call of this id; `None` for one that is unknown, and for one that is not for this client. `leave` it.

    Raises `FleetUnavailable`.
    """
    if not _ID.fullmatch(call_id):
        return None
    handle = await fleet.begun_calls.attach(call_id, owner_of(who))
    if handle is not None and not who.sees_calls_of(handle.tool_name):
        handle.leave()
        return None
    return handle


def owner_of(who: Identity) -> Owner:
    """Return the owner of calls: the key's own user, also if they are made in another user's name."""
    return Owner(who.caller.user_id)


@dataclass(frozen=True, slots=True)
class Calling:
    """The common parts of calls' routes.

    A request that is held open when `closing` begins is answered with its call's state.
    """

    fleet: ToolFleet
    settings: GatewaySettings
    closing: Closing

    async def begin(self, who: Identity, asked: CallBody, key: str | None) -> BegunHandle:
        """Publish a call. Raises `Problem` for one that is in no queue, and not because of its tool."""
        call = ToolCall(
            tool_name=asked.tool_name,
            arguments=asked.arguments,
            idempotency_key=key,
            tool_version=asked.tool_version,
            log_level=asked.log_level,
        )
        conversation_id = who.conversation_id or asked.conversation_id  # a token's own counts
        is_named = conversation_id is not None or asked.run_id is not None
        where = Conversation(conversation_id=conversation_id, run_id=asked.run_id) if is_named else None
        caller = who.caller_for(asked.user_id, asked.agent)
        handle = await self.fleet.begun_calls.begin(
            call, caller, owner_of(who), conversation=where, timeout=asked.timeout_seconds
        )
        if handle.refusal is not None and (problem := await problem_for(self.fleet, who, handle.refusal)) is not None:
            raise problem
        return handle

    async def end_of(self, handle: BegunHandle, preference: Preference) -> ToolResult | None:
        """Return the call's result, if it comes while its client waits. The call continues in any case.

        Raises `Problem` if no other gateway could continue it: Redis has not confirmed it, and may not have it.
        """
        waits = (
            preference.applied is not None or not handle.waits_for_approval
        )  # people take longer than a client waits by default
        result = await handle.end_within(preference.seconds if waits else 0, self.closing)
        if result is None and not await handle.is_kept_within(_CONFIRMATION_SECONDS):
            raise _unconfirmed()
        return result if result is not None else await handle.end_within(0)

    async def answer(self, handle: BegunHandle, preference: Preference) -> Response:
        """Answer with 200 and the call's result, or with 202 and its state."""
        result = await self.end_of(handle, preference)
        if result is not None:
            return _result_answer(result, preference)
        headers = {"location": self.location(handle.id), "retry-after": "1", **preference.headers}
        return json_answer(_first_state(handle), 202, headers)

    def location(self, call_id: str) -> str:
        """Return the path at which a call is followed."""
        return f"{self.settings.gateway_root_path}{_CALLS}/{call_id}"


def _result_answer(result: ToolResult, preference: Preference) -> Response:
    """Return a call's result as an answer."""
    return text_answer(json_text(result, with_none=True), headers=preference.headers)


def _unconfirmed() -> Problem:
    """Return the problem of a call that was sent to a Redis which was lost then.

    With a key a repeat joins it, wherever it is.
    """
    return Problem(
        503,
        "fleet_unavailable",
        "The fleet's Redis has not confirmed the call: it may be in its queue, or not.",
        hint="Repeat it with its Idempotency-Key; without one a repeat may be a second call.",
        effect_state="unknown",
        retry_after_seconds=1.0,
    )


def _first_state(handle: BegunHandle) -> CallState:
    """Return the state of a call that was just started."""
    state: Literal["queued", "waiting_approval"] = "waiting_approval" if handle.waits_for_approval else "queued"
    return CallState(call_id=handle.id, tool_name=handle.tool_name, state=state)


_ANSWERS = {
    200: Answer("The call has ended: a tool's failure is a result, too.", ToolResult),
    202: Answer("The call is under way.", CallState, headers=_LOCATION),
}

_STATE = {200: Answer("Where the call is, and its result once it has ended.", CallState)}


@dataclass(frozen=True, slots=True)
class BeginningRoutes:
    """The routes that begin calls."""

    calling: Calling

    @route("POST", _CALLS, "Call a tool", _ANSWERS, headers=(_IDEMPOTENCY_KEY, _PREFER), problems=_PROBLEMS)
    async def begin_call(self, asked: RouteRequest[CallBody, None]) -> Response:
        """Call a tool."""
        key, preference = idempotency_key_of(asked.raw.headers), self._preference(asked)
        return await self.calling.answer(await self.calling.begin(asked.who, asked.body, key), preference)

    @route(
        "POST",
        f"{_CALLS}/batch",
        "Call up to 50 tools side by side",
        {200: Answer("The outcome of each.", BatchAnswer)},
        headers=(_PREFER,),
        problems=_PROBLEMS,
    )
    async def begin_calls(self, asked: RouteRequest[BatchBody, None]) -> Response:
        """Call tools side by side: what keeps one from its queue is its own matter."""
        path, preference = asked.raw.url.path, self._preference(asked)
        one = [self._one(asked.who, call, preference, path) for call in asked.body.calls]
        return json_answer(BatchAnswer(calls=await asyncio.gather(*one)), headers=preference.headers)

    @route(
        "POST",
        "/api/modules/{module}/execute",
        "Call a tool of one module",
        _ANSWERS,
        headers=(_IDEMPOTENCY_KEY, _PREFER),
        problems=_PROBLEMS,
        tag="modules",
    )
    async def execute_tool(self, asked: RouteRequest[ExecuteBody, None]) -> Response:
        """Call a tool of the module in the path."""
        key, preference = idempotency_key_of(asked.raw.headers), self._preference(asked)
        module, name = asked.path["module"], asked.body.tool_name
        if "." in name and not name.startswith(f"{module}."):
            raise invalid_request(f"The tool {name[:200]!r} is not one of the module {module[:200]!r}.")
        full = name if "." in name else f"{module}.{name}"
        # Not checked again: of what is no tool's name, however long, the call itself says so.
        said = asked.body
        body = CallBody.model_construct(
            tool_name=full, arguments=said.arguments, user_id=said.user_id, agent=said.agent
        )
        return await self.calling.answer(await self.calling.begin(asked.who, body, key), preference)

    async def _one(self, who: Identity, call: BatchedCall, preference: Preference, path: str) -> BatchedAnswer:
        try:
            handle = await self.calling.begin(who, call, call.idempotency_key)
            result = await self.calling.end_of(handle, preference)
        except (Problem, FleetError) as exc:  # each has its own answer
            problem = problem_of(exc)
            return BatchedAnswer(status=problem.status, problem=problem.body(path))
        if result is not None:
            return BatchedAnswer(status=200, result=result)
        return BatchedAnswer(status=202, call=_first_state(handle))

    def _preference(
        self,
        asked: RouteRequest[BatchBody, None] | RouteRequest[CallBody, None] | RouteRequest[ExecuteBody, None],
    ) -> Preference:
        return _preference_of(asked.raw.headers, usual=USUAL_SECONDS)


@dataclass(frozen=True, slots=True)
class FollowingRoutes:
    """The routes of started calls, of any gateway. Another user's call looks like an unknown id."""

    calling: Calling
    streams: OpenStreams

    @route("GET", _PATH, "Where a call is", _STATE, headers=(_PREFER,), problems=(404, 503))
    async def get_call(self, asked: RouteRequest[None, None]) -> Response:
        """Answer with a call's state; with `Prefer: wait=N`, as soon as it has ended."""
        preference = _preference_of(asked.raw.headers, usual=0)
        handle = await self._attached(asked.who, asked.path["call_id"])
        try:
            await self.calling.end_of(handle, preference)
            return text_answer(json_text(await _state_of(handle), with_none=True), headers=preference.headers)
        finally:
            handle.leave()

    @route("DELETE", _PATH, "Cancel a call", _STATE, problems=(404, 409, 503))
    async def cancel_call(self, asked: RouteRequest[None, None]) -> Response:
        """Cancel a call. One that has ended stays as it ended."""
        handle = await self._attached(asked.who, asked.path["call_id"])
        try:
            if handle.is_guest and await handle.end_within(0) is None:
                raise Problem(
                    409,
                    "conflict",
                    "The call was begun by another client with the same key, and only that client can cancel it.",
                )
            await handle.cancel()
            return text_answer(json_text(await _state_of(handle), with_none=True))
        finally:
            handle.leave()

    @route(
        "GET",
        f"{_PATH}/events",
        "Follow a call: its approval, progress, log, and its end",
        _FOLLOWED,
        headers=(_LAST_EVENT_ID,),
        problems=(404, 503),
    )
    async def follow_call(self, asked: RouteRequest[None, None]) -> Response:
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
        """Yield the approval that the call waits for, or waited for: as it is, and after each step."""
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
    result = await handle.end_within(_LONGEST_FOLLOWING_SECONDS)
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
