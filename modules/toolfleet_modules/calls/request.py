"""Reads a request to a module within bounds, and checks all of it; surrounds it with a span if the module is traced."""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from pydantic import ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolfleet_modules.calls.reply import Reply
from toolfleet_registry import spans
from toolfleet_registry.contracts import Conversation, ModuleMessage
from toolfleet_registry.contracts.attempts import LONGEST_HANDLE
from toolfleet_registry.contracts.call_context import CONVERSATION_FIELDS, LogLevel, ToolContext, is_log_level
from toolfleet_registry.contracts.inputs import CallInputs
from toolfleet_registry.spans import (
    TRACEPARENT,
    TRACESTATE,
    OpenSpan,
    TraceContext,
    Tracing,
    context_of,
    switch_here,
    tracing_of,
)
from toolfleet_registry.system.shared_timers import SharedTimeout

_LONGEST_ID = 256
_LONGEST_SECONDS = 7 * 86_400.0
_LONGEST_NAME = 256  # characters; a tool's has at most 129
_SORTED = json.JSONEncoder(sort_keys=True)  # made once: that costs as much as it does to write a call's arguments
_BODY_SECONDS = 30.0  # for a request to arrive, and no longer than its caller waits
_SHORTEST_BODY_SECONDS = 1.0  # what has no time left is answered with that

__all__ = [
    "Call",
    "ClientDisconnect",
    "ExecuteRequest",
    "HeaderRefused",
    "ReconcileRequest",
    "StatusRequest",
    "TooLarge",
    "TooSlow",
    "ValidationError",
    "key_of",
    "read_body",
]

_SPAN = "toolfleet.span"
_ROUTES = frozenset(
    {"/execute", "/reconcile", "/status"}
)  # those of calls: the fleet asks for the others every few seconds
_PARENT, _STATE = TRACEPARENT.encode(), TRACESTATE.encode()
_BAD = 500


class TooLarge(Exception):
    """The request's body passed the limit."""


class TooSlow(Exception):
    """The request's body did not arrive in time."""

    def __init__(self) -> None:
        super().__init__("The request did not arrive in time.")


class AgentContext(ToolContext):
    """What an agent knows of the conversation around a call; fields that are not known are ignored."""

    model_config = ConfigDict(extra="ignore")


class GivenInputs(CallInputs):
    """The answers to what a module has asked, and its state; fields that are not known are ignored."""

    model_config = ConfigDict(extra="ignore")


class ExecuteRequest(ModuleMessage):
    """What `POST /execute` takes. `context` comes with calls of tools that take it.

    `takes_input`: whoever called can be asked; `inputs`: what they have answered last. `log_level`: the least grave log
    messages that they want; without it, and for a level that is not known, there are none.
    """

    tool_name: str = Field(max_length=_LONGEST_NAME)
    arguments: dict[str, Any] = Field(default_factory=dict)
    user_id: str | None = None
    context: AgentContext | None = None
    takes_input: bool = False
    inputs: GivenInputs | None = None
    log_level: str | None = None


class ReconcileRequest(ModuleMessage):
    """What `POST /reconcile` takes. `round`: of a call that was answered, which question's answer the attempt had."""

    call_id: str = Field(max_length=_LONGEST_ID)
    round: int = Field(default=0, ge=0)

    @property
    def key(self) -> str:
        """The name of the attempt's record."""
        return key_of(self.call_id, self.round)


class StatusRequest(ModuleMessage):
    """What `POST /status` takes: a call that was accepted, and its handle. `cancel`: nobody wants it any more.

    `takes_input` and `inputs` as `ExecuteRequest` has them; the same answers may come again and again.
    """

    call_id: str = Field(max_length=_LONGEST_ID)
    handle: str = Field(min_length=1, max_length=LONGEST_HANDLE)
    cancel: bool = False
    takes_input: bool = False
    inputs: GivenInputs | None = None


class HeaderRefused(Exception):
    """A header that cannot be meant. The message says which."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request to run a tool. `seconds`: the time left, if the caller says so; `streams`: it takes progress.

    `attempt`: which one of its call it is, 0 if it does not say so. `context`: what the agent says of the conversation. `takes_input`,
    `inputs` and `log_level` as `ExecuteRequest` has them.
    """

    tool_name: str
    arguments: Mapping[str, Any]
    user_id: str | None
    call_id: str | None
    seconds: float | None
    streams: bool
    fingerprint: str
    attempt: int = 0
    context: ToolContext | None = None
    takes_input: bool = False
    inputs: CallInputs | None = None
    log_level: LogLevel | None = None

    @property
    def key(self) -> str | None:
        """The name of its record: each answer makes another piece of work of a call."""
        return None if self.call_id is None else key_of(self.call_id, 0 if self.inputs is None else self.inputs.round)

    @classmethod
    async def of(cls, request: Request, *, most_bytes: int) -> Self:
        """Read it. Raises `ValidationError`, `HeaderRefused`, `TooLarge`, `TooSlow` and `ClientDisconnect`."""
        seconds = _seconds(request.headers.get("toolfleet-time-left-ms"))
        body = await read_body(request, most_bytes, seconds)
        asked = ExecuteRequest.model_validate_json(body)
        call_id = request.headers.get("idempotency-key") or None
        if call_id is not None and len(call_id) > _LONGEST_ID:
            raise HeaderRefused(f"An Idempotency-Key has at most {_LONGEST_ID} characters.")
        return cls(
            asked.tool_name,
            asked.arguments,
            asked.user_id,
            call_id,
            seconds,
            "application/x-ndjson" in request.headers.get("accept", "").lower(),
            _fingerprint(asked),
            _attempt(request.headers.get("toolfleet-attempt")),
            None if asked.context is None else ToolContext(**dict(asked.context)),
            asked.takes_input,
            asked.inputs,
            asked.log_level if is_log_level(asked.log_level) else None,
        )

    def split(self, own: frozenset[str]) -> tuple[dict[str, Any], Conversation]:
        """Return the arguments, and the conversation fields that the agent's core has added to them.

        A tool's `own` parameters with such a name get theirs, too.
        """
        conversation = {name: self.arguments[name] for name in CONVERSATION_FIELDS & self.arguments.keys()}
        arguments = {name: value for name, value in self.arguments.items() if name not in conversation or name in own}
        texts = {name: value for name, value in conversation.items() if isinstance(value, str)}
        return arguments, Conversation(**texts)


def key_of(call_id: str, number: int) -> str:
    """The name of what a call does once question `number` is answered. No header has such a character, so no call has this id."""
    return f"{call_id}\x1f{number}" if number else call_id


async def read_body(request: Request, most_bytes: int, seconds: float | None = None) -> bytes:
    """The body. Raises `TooLarge` as soon as it is, and `TooSlow` after `seconds`, at the latest after 30 s."""
    body = bytearray()
    wait = _BODY_SECONDS if seconds is None else min(max(seconds, _SHORTEST_BODY_SECONDS), _BODY_SECONDS)
    try:
        with SharedTimeout(wait):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most_bytes:
                    raise TooLarge
    except TimeoutError:
        raise TooSlow from None
    return bytes(body)


def _fingerprint(asked: ExecuteRequest) -> str:
    """Two requests that ask for the same have the same one, however their JSON is written."""
    around = [] if asked.context is None else [asked.context.model_dump(mode="json")]
    text = _SORTED.encode([asked.tool_name, asked.arguments, asked.user_id, *around])
    return hashlib.sha256(text.encode()).hexdigest()


def _attempt(header: str | None) -> int:
    return int(header) if header is not None and re.fullmatch(r"[0-9]{1,9}", header) else 0


def _seconds(header: str | None) -> float | None:
    try:
        seconds = float(header or "") / 1000
    except ValueError:
        return None
    return min(max(seconds, 0.0), _LONGEST_SECONDS) if math.isfinite(seconds) else None


def traced_requests(app: ASGIApp, service: str) -> ASGIApp:
    """The app as it is, or with spans around its requests, where the environment wants them. Raises `SettingsError`."""
    tracing = tracing_of(switch_here(), service, is_global=True)
    return app if tracing is None else TracedRequests(app, tracing)


class TracedRequests:
    """ASGI middleware. What a request's function begins itself is below its span."""

    def __init__(self, app: ASGIApp, tracing: Tracing) -> None:
        self._app, self._tracing = app, tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI."""
        path = scope.get("path", "")
        route = next((each for each in _ROUTES if path.endswith(each)), None) if scope["type"] == "http" else None
        if route is None:
            await self._app(scope, receive, send)
            return
        said = dict(scope["headers"])
        parent = context_of(_text(said.get(_PARENT)), _text(said.get(_STATE)))
        started = self._tracing.start(
            f"POST {route}", "server", {spans.HTTP_METHOD: scope["method"], spans.HTTP_ROUTE: route}, parent=parent
        )
        with self._tracing.within(started):
            if isinstance(started, TraceContext):
                await self._app(scope, receive, send)
            else:
                await self._serve(started, scope, receive, send)

    async def _serve(self, span: OpenSpan, scope: Scope, receive: Receive, send: Send) -> None:
        scope[_SPAN] = span
        span.note({spans.URL_PATH: scope["path"], spans.URL_SCHEME: scope.get("scheme")})

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                span.note({spans.HTTP_STATUS: message["status"]})
                if message["status"] >= _BAD:
                    span.fail(str(message["status"]))
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except BaseException as exc:
            span.fail(type(exc).__name__)
            raise
        finally:
            span.end()


def note_call(scope: Scope, tool_name: str, call_id: str | None, attempt: int) -> None:
    """Say in a request's span, if it has one, which call it is about."""
    span: OpenSpan | None = scope.get(_SPAN)
    if span is not None:
        said = {spans.GEN_AI_OPERATION: spans.EXECUTE_TOOL, spans.GEN_AI_TOOL_NAME: tool_name}
        span.note({**said, spans.GEN_AI_TOOL_CALL_ID: call_id, spans.ATTEMPT: attempt or None})


def note_reply(scope: Scope, reply: Reply) -> None:
    """Say in a request's span, if it has one, how the call has ended: 200 is the status of a tool's failure, too."""
    span: OpenSpan | None = scope.get(_SPAN)
    if span is not None and not (reply.is_success or reply.handle or reply.is_question):
        span.fail("cancelled" if reply.is_stopped else "tool_error")


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")
