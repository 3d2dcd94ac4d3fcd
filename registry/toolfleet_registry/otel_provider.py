"""Makes a provider of OpenTelemetry by its own environment variables, for a process that has none; only imported where one is wanted."""

import atexit
import os
import threading
from collections.abc import Callable
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from toolfleet_registry.otel_tracing import Tracing, wanted_id
from toolfleet_registry.spans import Drawn, Unrecorded

_RANDOM_NOT_SAMPLED: Final = "02"  # W3C's flags
_LEAVING_SECONDS: Final = 2.0  # for the spans that were ended last to be sent, as a process ends


class _AttemptIds(RandomIdGenerator):
    """Gives a span and a trace their given numbers; random ones without."""

    def generate_span_id(self) -> int:
        return getattr(wanted_id, "span", 0) or super().generate_span_id()

    def generate_trace_id(self) -> int:
        return getattr(wanted_id, "trace", 0) or super().generate_trace_id()


def make_tracing(service: str, version: str, *, is_global: bool, has_contents: bool) -> Tracing:
    """Make the tracing of this process, sent by OTLP over HTTP.

    `is_global`: it is also OpenTelemetry's global provider.

    Spans that cannot be sent are dropped: at most 2,048 spans wait (`OTEL_BSP_MAX_QUEUE_SIZE`).
    """
    provider = TracerProvider(resource=_resource(service, version), id_generator=_AttemptIds(), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    over = _Leaving(provider)
    atexit.register(over)
    if is_global:
        trace.set_tracer_provider(provider)
    return Tracing(
        provider,
        version,
        is_ours=True,
        has_contents=has_contents,
        follows_parent=isinstance(provider.sampler, ParentBased),
        roots=_root_draw(provider),
        over=over,
    )


def _root_draw(provider: TracerProvider) -> Callable[[], Drawn] | None:
    """Return the usual sampler's decision on new traces, which depends on their numbers alone; `None` for any other sampler."""
    root = getattr(provider.sampler, "_root", None)
    if type(root) is not TraceIdRatioBased:
        return None
    limit, bound = root.TRACE_ID_LIMIT, root.bound
    new_trace = RandomIdGenerator().generate_trace_id  # no given number here, for which `_AttemptIds` would look
    new = tuple.__new__

    def draw() -> Drawn:
        number = new_trace()
        if number & limit < bound:
            return number
        text = f"{number:032x}"  # half of it is enough for an unrecorded span
        return new(Unrecorded, (f"00-{text}-{text[:16]}-{_RANDOM_NOT_SAMPLED}", ""))

    return draw


def _resource(service: str, version: str) -> Resource:
    said = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    own: dict[str, Any] = {SERVICE_VERSION: version} if said else {SERVICE_NAME: service, SERVICE_VERSION: version}
    return Resource.create(own)


class _Leaving:
    """Ends a provider in time: if its exporter hangs, a daemon thread waits for it."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._is_over = False

    def __call__(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        atexit.unregister(self)
        thread = threading.Thread(target=self._provider.shutdown, name="toolfleet-traces", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is too far gone for threads
            return
        thread.join(_LEAVING_SECONDS)
