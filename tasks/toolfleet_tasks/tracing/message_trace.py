"""Reads from a call's message where the call is in a trace."""

from toolfleet_registry.tracing.trace_context import TRACEPARENT, TRACESTATE, TraceContext, context_of


def trace_of(request: object) -> TraceContext | None:
    """Where a message says that its call is, by its task's request. The header is not signed: it decides nothing but ids in traces."""
    return context_of(getattr(request, TRACEPARENT, None), getattr(request, TRACESTATE, None))
