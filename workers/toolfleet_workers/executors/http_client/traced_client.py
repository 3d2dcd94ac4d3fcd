"""Surrounds each request to a module with its CLIENT span, and writes into it where it is in the trace; only where the worker is traced."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from toolfleet_registry.tracing import port
from toolfleet_registry.tracing.port import OpenSpan, TraceContext, Tracing, Unrecorded, carried
from toolfleet_workers.executors.http.module_client import HttpClientPort, ModuleResponse, SendProgress
from toolfleet_workers.executors.http.request import ModuleRequest, Origin

_FAILED = 400


class TracedClient:
    """Implements `HttpClientPort` around `client`."""

    def __init__(self, client: HttpClientPort, tracing: Tracing) -> None:
        self._client, self._tracing = client, tracing

    def post(self, request: ModuleRequest, progress: SendProgress) -> Coroutine[Any, Any, ModuleResponse]:
        """Implements `HttpClientPort.post`. The span lasts until the response is released."""
        parent = carried()
        if parent is None:
            return self._client.post(request, progress)
        if type(parent) is Unrecorded:
            request.fields += parent.fields
            return self._client.post(request, progress)
        return self._traced(request, progress, parent)

    async def probe(self, request: ModuleRequest) -> int:
        """Implements `HttpClientPort.probe`: it belongs to no call."""
        return await self._client.probe(request)

    def trust(self) -> None:
        """Implements `HttpClientPort.trust`."""
        self._client.trust()

    def guard(self, guards: Mapping[Origin, Callable[[str], bool]]) -> None:
        """Implements `HttpClientPort.guard`."""
        self._client.guard(guards)

    async def aclose(self) -> None:
        """Implements `HttpClientPort.aclose`."""
        await self._client.aclose()

    async def _traced(self, request: ModuleRequest, progress: SendProgress, parent: TraceContext) -> ModuleResponse:
        span = self._begin(request, parent)
        if isinstance(span, TraceContext):
            request.fields += span.fields
            return await self._client.post(request, progress)
        request.fields += span.context.fields
        try:
            response = await self._client.post(request, progress)
        except BaseException as exc:
            span.fail(type(exc).__name__)
            span.end()
            raise
        return _TracedResponse(response, span)

    def _begin(self, request: ModuleRequest, parent: TraceContext) -> OpenSpan | TraceContext:
        origin, path = request.origin, _path_of(request)
        scheme = "https" if origin.is_tls else "http"
        host = f"[{origin.host}]" if ":" in origin.host else origin.host
        return self._tracing.start(
            "POST",
            "client",
            {
                port.HTTP_METHOD: "POST",
                port.URL_FULL: f"{scheme}://{host}:{origin.port}{path}",
                port.SERVER_ADDRESS: origin.host,
                port.SERVER_PORT: origin.port,
            },
            parent=parent,
        )


class _TracedResponse:
    """Implements `ModuleResponse`."""

    def __init__(self, response: ModuleResponse, span: OpenSpan) -> None:
        self._response, self._span = response, span
        self.status = response.status

    def field(self, name: str) -> str | None:
        return self._response.field(name)

    async def read_chunk(self) -> bytes:
        try:
            return await self._response.read_chunk()
        except BaseException as exc:
            self._span.fail(type(exc).__name__)
            raise

    def release(self) -> None:
        self._response.release()
        self._span.note({port.HTTP_STATUS: self.status})
        if self.status >= _FAILED:
            self._span.fail(str(self.status))
        self._span.end()


def _path_of(request: ModuleRequest) -> str:
    """The path without a query, as the request's first line has it."""
    line = request.fields.partition(b"\r\n")[0].split(b" ")
    return line[1].partition(b"?")[0].decode("latin-1") if len(line) > 1 else "/"
