"""Defines the port to an HTTP client: one `post` to a module, and its response as it comes in.

The worker's own is in `http_client.py`; `TracedClient` adds a span to each request. Another client reads what it needs of
a request's line and header from `head`.
"""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

from toolfleet_registry import spans
from toolfleet_registry.spans import OpenSpan, TraceContext, Tracing, Unrecorded, carried
from toolfleet_workers.executors.request import ModuleRequest, Origin

REPLICA_HEADER = "Toolfleet-Replica"
"""The header that names a process of the module: the one that is meant, or in an answer the one that answers."""

_FAILED = 400


@dataclass(slots=True)
class SendProgress:
    """The progress of sending one request. While `sent` is false, the module cannot have seen any of it."""

    sent: bool = False


class ModuleResponse(Protocol):
    """A response whose header is there. Its user releases it.

    `plain`: the body, if it is a success in plain JSON without a coding that has come whole by now; else `None`.
    """

    status: int
    plain: bytes | None

    def field(self, name: str) -> str | None:
        """Return a field of the header, by its name in lower case; a repeated field is a list (RFC 9110, 5.3)."""
        ...

    async def read_chunk(self) -> bytes:
        """Return the body's new bytes; empty at its end. Raises `NoReply`."""
        ...

    def release(self) -> None:
        """Release the response: gives the connection back if it is whole, and closes it if not."""
        ...


def is_left_by(response: ModuleResponse, replica: str) -> bool:
    """Return whether another process of the module at the same address has answered, and has done nothing else.

    False if no particular one was intended.
    """
    if response.status != HTTPStatus.CONFLICT or not replica:
        return False
    return response.field(REPLICA_HEADER.lower()) not in {None, replica}


class HttpClientPort(Protocol):
    """Sends requests to modules, each once: it follows no redirect, and tries nothing again."""

    def post(self, request: ModuleRequest, progress: SendProgress) -> Coroutine[Any, Any, ModuleResponse]:
        """Send the request, once; returns the response when its header is there. The caller releases it.

        Raises `NoReply`; `progress` then says whether anything was sent. And `LeaseOver`, which says that nothing was.
        """
        ...

    async def probe(self, request: ModuleRequest) -> int:
        """Send a request over a new connection, to find out whether one can be made, and return the status of the response.

        Raises `NoReply`.
        """
        ...

    def trust(self) -> None:
        """Enable https for modules, from now on."""
        ...

    def guard(self, guards: Mapping[Origin, Callable[[str], bool]]) -> None:
        """Restrict these origins to allowed IP addresses, checked when connecting."""
        ...

    async def aclose(self) -> None:
        """Close every connection, in use or not."""
        ...


class TracedClient:
    """Surrounds each request of `client` with a CLIENT span, and sends the span's context along with it."""

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
                spans.HTTP_METHOD: "POST",
                spans.URL_FULL: f"{scheme}://{host}:{origin.port}{path}",
                spans.SERVER_ADDRESS: origin.host,
                spans.SERVER_PORT: origin.port,
            },
            parent=parent,
        )


class _TracedResponse:
    """Implements `ModuleResponse`."""

    def __init__(self, response: ModuleResponse, span: OpenSpan) -> None:
        self._response, self._span = response, span
        self.status, self.plain = response.status, response.plain

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
        self._span.note({spans.HTTP_STATUS: self.status})
        if self.status >= _FAILED:
            self._span.fail(str(self.status))
        self._span.end()


def _path_of(request: ModuleRequest) -> str:
    """Return the path without a query, as the request's first line has it."""
    line = request.fields.partition(b"\r\n")[0].split(b" ")
    return line[1].partition(b"?")[0].decode("latin-1") if len(line) > 1 else "/"
