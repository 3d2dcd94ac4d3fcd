"""Says what a gateway is traced with, and where a request is in its sender's trace."""

from collections.abc import Iterable

from toolfleet_registry.settings import Settings
from toolfleet_registry.tracing.port import Tracing
from toolfleet_registry.tracing.trace_context import TRACEPARENT, TRACESTATE, TraceContext, context_of
from toolfleet_tasks.tracing.processes import process_tracing

_PARENT, _STATE = TRACEPARENT.encode(), TRACESTATE.encode()


def gateway_tracing(settings: Settings) -> Tracing | None:
    """What this process is traced with: the same each time."""
    return process_tracing(settings, "toolfleet-gateway")


def context_in(headers: Iterable[tuple[bytes, bytes]]) -> TraceContext | None:
    """Where the headers say that their sender is."""
    said = {name.decode(): value.decode("latin-1").strip() for name, value in headers if name in {_PARENT, _STATE}}
    return context_of(said.get(TRACEPARENT), said.get(TRACESTATE))
