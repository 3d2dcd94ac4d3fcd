"""Surrounds each request at a path of the REST API with its SERVER span."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolfleet_gateway.tracing.gateway_tracing import context_in
from toolfleet_registry.tracing import names
from toolfleet_registry.tracing.port import OpenSpan, Tracing
from toolfleet_registry.tracing.trace_context import TraceContext

_BAD = 500


class TracedPath:
    """The ASGI app of one path, `route` as it is declared, with spans around its requests."""

    def __init__(self, route: str, app: ASGIApp, tracing: Tracing) -> None:
        self._route, self._app, self._tracing = route, app, tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI."""
        method = scope["method"]
        started = self._tracing.start(
            f"{method} {self._route}",
            "server",
            {names.HTTP_METHOD: method, names.HTTP_ROUTE: self._route},
            parent=context_in(scope["headers"]),
        )
        with self._tracing.within(started):
            if isinstance(started, TraceContext):
                await self._app(scope, receive, send)
            else:
                await self._serve(started, scope, receive, send)

    async def _serve(self, span: OpenSpan, scope: Scope, receive: Receive, send: Send) -> None:
        span.note({names.URL_PATH: scope["path"], names.URL_SCHEME: scope.get("scheme")})

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
    span.note({names.HTTP_STATUS: status})
    if status >= _BAD:
        span.fail(str(status))
