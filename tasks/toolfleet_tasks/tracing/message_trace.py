"""Reads a call's place in a trace from its message, or from the stored call that waits for an approval."""

from collections.abc import Callable
from typing import Any

from toolfleet_registry.tracing.port import TRACEPARENT, TRACESTATE, TraceContext, context_of


def trace_of(header: Callable[[str], Any]) -> TraceContext | None:
    """Return the message's place in a trace. `header` returns its value of a header, `None` without one.

    These headers are not signed: they affect only ids in traces.
    """
    return context_of(header(TRACEPARENT), header(TRACESTATE))


def trace_text(context: TraceContext | None) -> str:
    """A place in a trace as lines of text, as it is stored."""
    return "" if context is None else "\n".join(context)


def trace_in(text: str) -> TraceContext | None:
    """The place in a trace that `trace_text` has written, if it is one."""
    traceparent, _, tracestate = text.partition("\n")
    return context_of(traceparent, tracestate)
