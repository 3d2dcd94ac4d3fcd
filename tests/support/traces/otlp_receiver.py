"""Receives what is exported by OTLP over HTTP, as a collector does, and keeps each span as it is read."""

import gzip
import json
import threading
import zlib
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan

from support.waiting import wait_until_sync

Attributes = Mapping[str, Any]


@dataclass(frozen=True)
class ReceivedLink:
    """A link to another span, and what that is to this one."""

    trace_id: str
    span_id: str
    attributes: Attributes


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it came. Times are nanoseconds since the epoch; `service` is the process that wrote it, `scope` the library in it."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    began: int
    ended: int
    attributes: Attributes
    links: tuple[ReceivedLink, ...]
    is_error: bool
    service: str
    scope: str

    @property
    def error(self) -> str | None:
        found = self.attributes.get("error.type")
        return None if found is None else str(found)


@dataclass
class OtlpReceiver:
    """`url` is for `OTEL_EXPORTER_OTLP_ENDPOINT`; `posts` counts the requests."""

    url: str = ""
    spans: list[ReceivedSpan] = field(default_factory=list)
    posts: int = 0

    @property
    def environment(self) -> dict[str, str]:
        """What has a process export to it, soon after each span."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}

    def named(self, name: str, trace_id: str | None = None) -> list[ReceivedSpan]:
        """Those of this name, of one trace or of all, in the order of their beginning."""
        of_trace = list(self.spans) if trace_id is None else self.trace(trace_id)
        return sorted((span for span in of_trace if span.name == name), key=lambda span: span.began)

    def one(self, name: str) -> ReceivedSpan:
        (span,) = self.named(name)
        return span

    def of_call(self, call_id: str) -> list[ReceivedSpan]:
        """The spans that say they are of this call."""
        names = ("messaging.message.id", "gen_ai.tool.call.id", "toolfleet.call_id")
        found = [span for span in list(self.spans) if call_id in {span.attributes.get(name) for name in names}]
        return sorted(found, key=lambda span: span.began)

    def trace(self, trace_id: str) -> list[ReceivedSpan]:
        return sorted((span for span in list(self.spans) if span.trace_id == trace_id), key=lambda span: span.began)

    def wait(self, is_there: Callable[[], object], what: str, *, seconds: float = 30) -> None:
        try:
            wait_until_sync(lambda: bool(is_there()), what, seconds=seconds)
        except AssertionError as exc:
            raise AssertionError(f"{exc}; received: {self.shown()}") from None

    def wait_for(self, *names: str, trace_id: str | None = None) -> list[ReceivedSpan]:
        """The spans of these names, once each is there; of one trace. A name that stands twice waits for two, the earlier one first.

        Each process exports on its own: that one has come says nothing of the others.
        """

        def found() -> list[ReceivedSpan]:
            left = {name: iter(self.named(name, trace_id)) for name in names}
            first = [next(left[name], None) for name in names]
            return [span for span in first if span is not None]

        self.wait(lambda: len(found()) == len(names), f"spans {names}")
        return found()

    def shown(self) -> str:
        said = [[span.name, span.service, span.trace_id, dict(span.attributes)] for span in list(self.spans)]
        return json.dumps(said, default=str)

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        self.posts += 1
        for resource in request.resource_spans:
            service = _attributes(resource.resource.attributes).get("service.name", "")
            for scope in resource.scope_spans:
                self.spans += [_read(span, str(service), scope.scope.name) for span in scope.spans]


@contextmanager
def otlp_receiver() -> Generator[OtlpReceiver]:
    """A collector on a free port of loopback, in a thread."""
    receiver = OtlpReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            packed = self.headers.get("Content-Encoding")
            receiver.take(gzip.decompress(body) if packed == "gzip" else zlib.decompress(body) if packed else body)
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with served(Handler) as receiver.url:
        yield receiver


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Generator[str]:
    """The URL of a server with this handler, in threads."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def _read(span: WireSpan, service: str, scope: str) -> ReceivedSpan:
    links = tuple(
        ReceivedLink(link.trace_id.hex(), link.span_id.hex(), _attributes(link.attributes)) for link in span.links
    )
    return ReceivedSpan(
        span.name,
        WireSpan.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _attributes(span.attributes),
        links,
        span.status.code == 2,  # ERROR, in the protocol
        service,
        scope,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
