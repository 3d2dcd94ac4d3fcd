"""Reads a request to a module within bounds, and checks all of it; surrounds it with a span if the module is traced."""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from pydantic import ConfigDict, Field
from starlette.requests import Request
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

_SPAN = "toolfleet.span"
_ROUTES = frozenset({"/execute", "/reconcile", "/status"})  # of calls; the fleet asks for the others all the time
_PARENT, _STATE = TRACEPARENT.encode(), TRACESTATE.encode()
_BAD = 500


class TooLarge(Exception):
    """The request's body passed the limit."""


class TooSlow(Exception):
    """The request's body did not arrive in time."""

    def __init__(self) -> None:
        super().__init__("The request did not arrive in time.")


class AgentContext(ToolContext):
    """An agent's context of the conversation around a call; unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")


class GivenInputs(CallInputs):
    """The answers to a module's questions, and its state; unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")


class ExecuteRequest(ModuleMessage):
    """The body of `POST /execute`. `context` comes with calls of tools that take it.

    `takes_input`: the caller can be asked; `inputs`: its latest answers. `log_level`: the least level of log messages
    that the caller wants; there are none without it, and for an unknown level.
    """

    tool_name: str = Field(max_length=_LONGEST_NAME)
    arguments: dict[str, Any] = Field(default_factory=dict)
    user_id: str | None = None
    context: AgentContext | None = None
    takes_input: bool = False
    inputs: GivenInputs | None = None
    log_level: str | None = None


class ReconcileRequest(ModuleMessage):
    """The body of `POST /reconcile`. `round`: of a call that was answered, the number of the question that was answered."""

    call_id: str = Field(max_length=_LONGEST_ID)
    round: int = Field(default=0, ge=0)

    @property
    def key(self) -> str:
        """The name of the attempt's record."""
        return key_of(self.call_id, self.round)


class StatusRequest(ModuleMessage):
    """The body of `POST /status`: a call that was accepted, and its handle. `cancel`: the call is cancelled.

    `takes_input` and `inputs` are those of `ExecuteRequest`; the same answers may come repeatedly.
    """

    call_id: str = Field(max_length=_LONGEST_ID)
    handle: str = Field(min_length=1, max_length=LONGEST_HANDLE)
    cancel: bool = False
    takes_input: bool = False
    inputs: GivenInputs | None = None


class HeaderRefused(Exception):
    """A header is invalid. The message says which."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request to run a tool. `seconds`: the time left, if the caller states it; `streams`: it takes progress.

    `attempt`: the number of the attempt, 0 if the request states none. `context`: the agent's context of the
    conversation. `takes_input`, `inputs` and `log_level` are those of `ExecuteRequest`.
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
        """The name of its record: each answer to a question begins another one."""
        return None if self.call_id is None else key_of(self.call_id, 0 if self.inputs is None else self.inputs.round)

    @classmethod
    async def of(cls, request: Request, *, most_bytes: int) -> Self:
        """Read a request to run a tool.

        Args:
            request: The request of a verified caller.
            most_bytes: The largest body.

        Raises:
            ValidationError: The body is not an `ExecuteRequest`.
            HeaderRefused: A header is invalid.
            TooLarge: The body is larger than `most_bytes`.
            TooSlow: The body did not arrive in time.
            ClientDisconnect: The client has gone.
        """
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
        """Separate the tool's arguments from the fields of the conversation that the agent's core has added.

        Args:
            own: The names of the tool's own parameters, which keep their arguments in any case.

        Returns:
            The arguments, and the conversation.
        """
        conversation = {name: self.arguments[name] for name in CONVERSATION_FIELDS & self.arguments.keys()}
        arguments = {name: value for name, value in self.arguments.items() if name not in conversation or name in own}
        texts = {name: value for name, value in conversation.items() if isinstance(value, str)}
        return arguments, Conversation(**texts)


def key_of(call_id: str, number: int) -> str:
    """Return the name of a call's record after question `number` was answered; 0 is the call itself.

    No header can hold the separator, so no call's id is such a name.
    """
    return f"{call_id}\x1f{number}" if number else call_id


async def read_body(request: Request, most_bytes: int, seconds: float | None = None) -> bytes:
    """Read a request's body.

    Args:
        request: The request.
        most_bytes: The largest body.
        seconds: The time for it to arrive, from 1 to 30; the default is 30.

    Returns:
        The body.

    Raises:
        TooLarge: The body is larger than `most_bytes`: raised as soon as that many bytes have come.
        TooSlow: The body did not arrive in time.
        ClientDisconnect: The client has gone.
    """
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
    """Return a digest that is the same for equal requests, however their JSON is written."""
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
    """Return the app, with spans around its requests if the environment wants traces.

    Raises:
        SettingsError: The environment wants traces, and they are not possible.
    """
    tracing = tracing_of(switch_here(), service, is_global=True)
    return app if tracing is None else TracedRequests(app, tracing)


class TracedRequests:
    """ASGI middleware that surrounds each request about a call with its SERVER span."""

    def __init__(self, app: ASGIApp, tracing: Tracing) -> None:
        self._app, self._tracing = app, tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, with a span if it is about a call."""
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
    """Note the call in the request's span, if there is one."""
    span: OpenSpan | None = scope.get(_SPAN)
    if span is not None:
        said = {spans.GEN_AI_OPERATION: spans.EXECUTE_TOOL, spans.GEN_AI_TOOL_NAME: tool_name}
        span.note({**said, spans.GEN_AI_TOOL_CALL_ID: call_id, spans.ATTEMPT: attempt or None})


def note_reply(scope: Scope, reply: Reply) -> None:
    """Note a call's failure in the request's span, if there is one: its HTTP status is 200 all the same."""
    span: OpenSpan | None = scope.get(_SPAN)
    if span is not None and not (reply.is_success or reply.handle or reply.is_question):
        span.fail("cancelled" if reply.is_stopped else "tool_error")


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")
