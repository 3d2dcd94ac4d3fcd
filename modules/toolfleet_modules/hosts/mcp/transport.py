"""Defines what a transport gives a session: the streams it reads and writes, and a lane for calls past the SDK and its models, which cost more than a call."""

import asyncio
import contextlib
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import httpx2
from mcp.shared.exceptions import MCPError
from opentelemetry.propagate import inject
from opentelemetry.trace import Span, SpanKind, StatusCode, get_current_span, get_tracer
from pydantic_core import to_json

from toolfleet_modules.hosts.mcp.exchanges import Lost, SentRequests, is_answer, outcome_of, request_id
from toolfleet_registry import spans
from toolfleet_registry.contracts.call_context import LogMessage, LogSink, log_message_in

_TOOL_ERROR: Final = "tool_error"  # the conventions' type of the error of a result that is one
_tracer = get_tracer("toolfleet")

FIRST_ID = 2**30
"""The first id of a call's request. The SDK counts from 1 in the same session; some servers take no more than 32 bits."""

_MOST_CANCELLED = 1000  # that the server has not answered

_NOTHING: Mapping[str, Any] = MappingProxyType({})

OnProgress = Callable[[float, float | None, str | None], None]
"""Takes a call's progress: how far it is, the total if that is known, and a message."""

_SESSION = "mcp-session-id"
_MOST_SECONDS = 2.0  # some servers answer only with their first word: a call does not wait for that


@contextmanager
def _call_span(tool: str, number: int, version: str | None) -> Generator[Span]:
    """Give the CLIENT span of a call over the standard streams of a program."""
    facts = _facts(tool, number, version, "pipe")
    with _tracer.start_as_current_span(
        f"{spans.TOOLS_CALL} {tool}",
        kind=SpanKind.CLIENT,
        attributes=facts,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield span
        except MCPError as exc:
            _fail(span, str(exc.code), {spans.RPC_STATUS_CODE: str(exc.code)})
            raise
        except BaseException as exc:
            _fail(span, type(exc).__name__)
            raise


def describe_call(message: Mapping[str, Any], headers: Mapping[str, str]) -> None:
    """Give the SDK's span of a call over HTTP, in which it is sent, the name and the facts of the conventions."""
    span, params = get_current_span(), message.get("params")
    if not span.is_recording() or message.get("method") != spans.TOOLS_CALL or not isinstance(params, Mapping):
        return
    tool = str(params.get("name"))
    span.update_name(f"{spans.TOOLS_CALL} {tool}")
    span.set_attributes(_facts(tool, message.get("id"), headers.get("mcp-protocol-version"), "tcp"))
    if (session := headers.get("mcp-session-id")) is not None:
        span.set_attribute(spans.MCP_SESSION_ID, session)


def note_result(span: Span, result: object) -> None:
    """Mark the span of a call as failed if its result says so."""
    if isinstance(result, Mapping) and result.get("isError") is True:
        _fail(span, _TOOL_ERROR)


def _facts(tool: str, number: object, version: str | None, transport: str) -> dict[str, str]:
    facts = {
        spans.MCP_METHOD: spans.TOOLS_CALL,
        spans.GEN_AI_OPERATION: spans.EXECUTE_TOOL,
        spans.GEN_AI_TOOL_NAME: tool,
        spans.JSONRPC_REQUEST_ID: str(number),
        spans.NETWORK_TRANSPORT: transport,
    }
    return facts if version is None else {**facts, spans.MCP_PROTOCOL_VERSION: version}


def _fail(span: Span, error_type: str, facts: Mapping[str, str] | None = None) -> None:
    span.set_attributes({spans.ERROR_TYPE: error_type, **(facts or {})})
    span.set_status(StatusCode.ERROR)


@dataclass(frozen=True, slots=True)
class CallListener:
    """The listener of a call before its answer: `log` takes the server's log messages; `owner` is the user who makes it."""

    on_progress: OnProgress
    log: LogSink | None = None
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class _Pending:
    answer: asyncio.Future[dict[str, Any]]
    listener: CallListener


class CallLane:
    """The calls of one session. `write` takes a message's bytes. `meta` goes with each call: what the protocol's `version` asks for.

    Nothing in a log message says which request it belongs to. It is its call's where there is one alone; else, and while something
    of another user's may still be at work, `stray` takes it.
    """

    def __init__(self, write: Callable[[bytes], None], stray: Callable[[LogMessage], object]) -> None:
        self.meta: Mapping[str, Any] = {}
        self.version: str | None = None
        self._write, self._stray = write, stray
        self._requests = 0  # of others than calls
        self._cancelled: dict[int, str | None] = {}  # whose they were: until they are answered they may be at work
        self._is_muted = False
        self._pending: dict[int, _Pending] = {}
        self._next_id = FIRST_ID
        self._is_ended = False

    @property
    def waiting(self) -> int:
        """The number of calls without an answer."""
        return len(self._pending)

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        listener: CallListener,
        *,
        more: Mapping[str, Any] = _NOTHING,
        meta: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Call a tool and return the server's answer unchanged; `more` parameters go with the arguments, and another `meta` than usual.

        If cancelled, the server is told. Raises `MCPError` for the server's errors, `Malformed` and `Lost`.
        """
        if self._is_ended:
            raise _lost()
        number, self._next_id = self._next_id, self._next_id + 1
        with _call_span(tool, number, self.version) as span:
            sent = {**(self.meta if meta is None else meta), "progressToken": number}
            inject(sent)  # the trace, where the host is traced
            result = await self._answered(tool, number, {"arguments": arguments, **more, "_meta": sent}, listener)
            note_result(span, result)
            return result

    async def _answered(
        self, tool: str, number: int, more: Mapping[str, Any], listener: CallListener
    ) -> dict[str, Any]:
        params = {"name": tool, **more}
        written = to_json({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._pending[number] = _Pending(answer, listener)
        self._write(written)
        try:
            return await answer
        finally:
            del self._pending[number]
            if answer.cancelled() and not self._is_ended:
                self._note_cancelled(number, listener.owner)
                over = {"requestId": number, "reason": "caller cancelled"}
                self._write(to_json({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": over}))

    def take(self, message: Mapping[str, Any]) -> bool:
        """Return whether a message belongs to a call: its answer, its progress, or its log.

        One of an ended call is taken, and ignored.

        An answer ends its call in any form: the call's id says which.
        """
        if not is_answer(message):
            if message["method"] == "notifications/message":
                self._take_log(message.get("params"))
                return True
            return message["method"] == "notifications/progress" and self._take_progress(message.get("params"))
        number = request_id(message.get("id"))
        if not isinstance(number, int) or number < FIRST_ID:
            return False
        self._answer(number, outcome_of(message))
        return True

    @contextlib.contextmanager
    def beside(self) -> Generator[None]:
        """Say that the server is asked something else meanwhile."""
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1

    def end(self) -> None:
        """Have no more calls: the server is lost to those that there are."""
        self._is_ended = True
        for number in self._pending:
            self._answer(number, _lost())

    def _note_cancelled(self, number: int, owner: str | None) -> None:
        if len(self._cancelled) < _MOST_CANCELLED:
            self._cancelled[number] = owner
        else:  # of a server that answers none of them: better nothing than another's words
            self._is_muted = True

    def _take_log(self, params: object) -> None:
        message = log_message_in(params)
        if message is None:
            return
        call = next(iter(self._pending.values())).listener if len(self._pending) == 1 else None
        others = set(self._cancelled.values()) - ({call.owner} if call else set())
        if call is None or others or self._requests or self._is_muted:
            self._stray(message)
        elif call.log is not None:
            # Not from here: after any exception, other messages are still read.
            asyncio.get_running_loop().call_soon(call.log.pass_on, message)

    def _answer(self, number: int, answer: dict[str, Any] | MCPError) -> None:
        self._cancelled.pop(number, None)
        pending = self._pending.get(number)
        if pending is None or pending.answer.done():  # it came twice, or too late
            return
        if isinstance(answer, MCPError):
            pending.answer.set_exception(answer)
        else:
            pending.answer.set_result(answer)

    def _take_progress(self, params: object) -> bool:
        if not isinstance(params, dict):
            return False
        number = request_id(params.get("progressToken"))
        if not isinstance(number, int) or number < FIRST_ID:
            return False
        pending, progress = self._pending.get(number), _float_of(params.get("progress"))
        if pending is not None and progress is not None:
            words = params.get("message")
            report = progress, _float_of(params.get("total")), words if isinstance(words, str) else None
            # Not from here: after any exception, other messages are still read.
            asyncio.get_running_loop().call_soon(pending.listener.on_progress, *report)
        return True


def _float_of(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    with contextlib.suppress(OverflowError):
        return float(value)
    return None


def _lost() -> Lost:
    return Lost("the connection to its server ended in the middle")


class StandaloneStream(httpx2.AsyncBaseTransport):
    """Passes requests on, and sees which answers come."""

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner
        self._has_session = False  # without one there is no such stream
        self._answered = asyncio.Event()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Return the answer. GET requests are for streams only, and the first is this one."""
        response = await self._inner.handle_async_request(request)
        self._has_session |= _SESSION in response.headers
        if request.method == "GET":
            self._answered.set()
        return response

    async def answered(self, seconds: float) -> None:
        """Wait until the server has opened or refused it: no longer than 2 s, nor than so many."""
        if self._has_session:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(seconds, _MOST_SECONDS)):
                    await self._answered.wait()

    async def aclose(self) -> None:
        """Close its connections."""
        await self._inner.aclose()


@dataclass(frozen=True, slots=True)
class MessageStreams:
    """`incoming` and `outgoing` are as the SDK has them. Without `calls`, calls go there as well.

    `requests`: what has become of each request that the SDK sends. `standalone`: how a server at a URL speaks by itself.
    """

    incoming: Any
    outgoing: Any
    requests: SentRequests
    calls: CallLane | None = None
    standalone: StandaloneStream | None = None
