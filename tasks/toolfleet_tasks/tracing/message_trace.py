"""Reads a call's place in a trace from its message, or from the stored call that waits for an approval."""

from typing import Any, Protocol

from toolfleet_registry.tracing.trace_context import TRACEPARENT, TRACESTATE, TraceContext, context_of


class Headers(Protocol):
    """A request of a task: Celery's, or what stands for it."""

    def get(self, name: str, /) -> Any:
        """Return the message's value of a header; `None` without one."""
        ...


def trace_of(request: Headers) -> TraceContext | None:
    """Return the message's place in a trace, by its task's request.

    The header is not signed: it affects only ids in traces.
    """
    return context_of(request.get(TRACEPARENT), request.get(TRACESTATE))


def trace_text(context: TraceContext | None) -> str:
    """A place in a trace as lines of text, as it is stored."""
    return "" if context is None else "\n".join(context)


def trace_in(text: str) -> TraceContext | None:
    """The place in a trace that `trace_text` has written, if it is one."""
    traceparent, _, tracestate = text.partition("\n")
    return context_of(traceparent, tracestate)
