"""Surrounds each request about a call with its SERVER span; is there only where the module is traced."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolfleet_modules.requests.reply import Reply
from toolfleet_registry import spans
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

_SPAN = "toolfleet.span"
_ROUTES = frozenset(
    {"/execute", "/reconcile", "/status"}
)  # those of calls: the fleet asks for the others every few seconds
_PARENT, _STATE = TRACEPARENT.encode(), TRACESTATE.encode()
_BAD = 500


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
