"""Starts a span for each incoming request, named as for HTTP or for MCP."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from mcp.shared.exceptions import MCPError
from mcp_types.version import LATEST_MODERN_VERSION
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolfleet_registry import spans
from toolfleet_registry.settings import Settings
from toolfleet_registry.spans import (
    TRACEPARENT,
    TRACESTATE,
    OpenSpan,
    TraceContext,
    Tracing,
    carried,
    context_of,
    read_context,
)
from toolfleet_tasks.tracing import process_tracing

_PARENT, _STATE = TRACEPARENT.encode(), TRACESTATE.encode()

_BAD = 500

_TOOL_ERROR: Final = "tool_error"
"""The error type of a failed result."""


def gateway_tracing(settings: Settings) -> Tracing | None:
    """Return the tracing of this process: the same each time."""
    return process_tracing(settings, "toolfleet-gateway")


def context_in(headers: Iterable[tuple[bytes, bytes]]) -> TraceContext | None:
    """Return the sender's place in a trace, by its headers."""
    said = {name.decode(): value.decode("latin-1").strip() for name, value in headers if name in {_PARENT, _STATE}}
    return context_of(said.get(TRACEPARENT), said.get(TRACESTATE))


class TracedPath:
    """The ASGI app of one path, `route` as it is declared, with spans around its requests."""

    def __init__(self, route: str, app: ASGIApp, tracing: Tracing) -> None:
        self._route, self._app, self._tracing = route, app, tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Implement ASGI."""
        method = scope["method"]
        started = self._tracing.start(
            f"{method} {self._route}",
            "server",
            {spans.HTTP_METHOD: method, spans.HTTP_ROUTE: self._route},
            parent=context_in(scope["headers"]),
        )
        with self._tracing.within(started):
            if isinstance(started, TraceContext):
                await self._app(scope, receive, send)
            else:
                await self._serve(started, scope, receive, send)

    async def _serve(self, span: OpenSpan, scope: Scope, receive: Receive, send: Send) -> None:
        span.note({spans.URL_PATH: scope["path"], spans.URL_SCHEME: scope.get("scheme")})

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                _say_status(span, message["status"])
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception as exc:  # it is answered further out
            _say_status(span, getattr(exc, "status", _BAD))
            raise
        finally:
            span.end()


def _say_status(span: OpenSpan, status: int) -> None:
    span.note({spans.HTTP_STATUS: status})
    if status >= _BAD:
        span.fail(str(status))


async def traced_call(
    tracing: Tracing,
    name: str,
    number: str | int,
    meta: Mapping[str, Any],
    run: Callable[[], Awaitable[dict[str, Any]]],
) -> dict[str, Any]:
    """Run a call in the span of its request `number`. Its client's place is in `meta`, or in its HTTP headers."""
    started = tracing.start(
        f"{spans.TOOLS_CALL} {name}",
        "server",
        {
            spans.MCP_METHOD: spans.TOOLS_CALL,
            spans.GEN_AI_OPERATION: spans.EXECUTE_TOOL,
            spans.GEN_AI_TOOL_NAME: name,
        },
        parent=read_context(meta) or carried(),
    )
    with tracing.within(started):
        return await (run() if isinstance(started, TraceContext) else _run(started, number, run))


async def _run(span: OpenSpan, number: str | int, run: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    span.note({spans.JSONRPC_REQUEST_ID: str(number), spans.MCP_PROTOCOL_VERSION: LATEST_MODERN_VERSION})
    span.note({spans.NETWORK_TRANSPORT: "tcp"})
    try:
        result = await run()
        if result.get("isError"):
            span.fail(_TOOL_ERROR)
    except MCPError as exc:
        span.note({spans.RPC_STATUS_CODE: str(exc.code)})
        span.fail(str(exc.code))
        raise
    except BaseException as exc:
        span.fail(type(exc).__name__)
        raise
    finally:
        span.end()
    return result
