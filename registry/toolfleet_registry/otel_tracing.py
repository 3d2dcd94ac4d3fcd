"""Starts spans by OpenTelemetry; only imported where something is traced."""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, TracerProvider, TraceState

from toolfleet_registry.spans import (
    LINKED_AS,
    SCHEMA_URL,
    Drawn,
    Kind,
    OpenSpan,
    Started,
    TraceContext,
    Unrecorded,
    Value,
    carry,
    drop,
    text_of,
)

_KINDS: Final[Mapping[Kind, SpanKind]] = {
    "internal": SpanKind.INTERNAL,
    "server": SpanKind.SERVER,
    "client": SpanKind.CLIENT,
    "producer": SpanKind.PRODUCER,
    "consumer": SpanKind.CONSUMER,
}
_NANO = 1_000_000_000

wanted_id = threading.local()
"""The numbers of the span that is started in this thread, and of its trace, for a provider of ours: `span` and `trace`."""


class Tracing:
    """Starts spans with the tracer of `provider`, and passes them on.

    A tracing that `is_ours` asks no sampler for a call that is not sampled: `has_attempt_ids` says that its spans and
    traces have the given numbers. `has_contents`: its spans have arguments and results as well.

    `roots` draws for its sampler whether a new trace is recorded. `over` sends the remaining spans, within a second
    or two, and ends it: `shut_down` calls it. Providers made by others are left as they are.
    """

    def __init__(
        self,
        provider: TracerProvider,
        version: str,
        *,
        is_ours: bool = False,
        has_contents: bool = False,
        follows_parent: bool = False,
        roots: Callable[[], Drawn] | None = None,
        over: Callable[[], None] = lambda: None,
    ) -> None:
        self._tracer = provider.get_tracer("toolfleet", version, SCHEMA_URL)
        self.has_attempt_ids, self.has_contents = is_ours, has_contents
        self._follows_parent, self._roots = follows_parent, roots
        self.shut_down = over

    def unrecorded(self, parent: TraceContext | None) -> Unrecorded | None:
        """Return the same place, if it is known, without asking a sampler, that no span below it is recorded; else `None`."""
        if parent is None or not self._follows_parent or parent.is_sampled:
            return None
        return tuple.__new__(Unrecorded, parent)  # each call has one: its own `__new__` takes three times as long

    def draw_root(self) -> Drawn:
        """Decide about a new trace as its sampler would, without its first span; 0 where there is a span already, too."""
        if self._roots is None or (otel_context.get_current() and trace.get_current_span() is not trace.INVALID_SPAN):
            return 0
        return self._roots()

    def start(
        self,
        name: str,
        kind: Kind,
        attributes: Mapping[str, Value],
        *,
        parent: TraceContext | None = None,
        links: Sequence[tuple[TraceContext, str]] = (),
        span_id: int = 0,
        trace_id: int = 0,
        began_at: float | None = None,
    ) -> Started:
        """Start a span below `parent`, or `None` below the current one. Raises nothing.

        `links`: other spans, and what each is to this one. `span_id` is its number, if it is not 0; `trace_id` that of
        its trace, if it is the first one there, or there are several of these. `began_at`: seconds since the epoch, if
        that is not now.
        """
        if (place := self.unrecorded(parent)) is not None:
            return place
        began = None if began_at is None else int(began_at * _NANO)
        if parent is None:
            around = Context() if trace_id else None
        else:
            around = trace.set_span_in_context(_remote(parent), Context())
        linked = [trace.Link(span_context_of(each), {LINKED_AS: word}) for each, word in links]
        wanted_id.span, wanted_id.trace = span_id, trace_id
        try:
            span = self._tracer.start_span(name, around, _KINDS[kind], attributes, linked, began)
        finally:
            wanted_id.span = wanted_id.trace = 0
        return OpenSpan(span) if span.is_recording() else text_of(span.get_span_context())

    def current(self) -> TraceContext | None:
        """Return the running code's place in a trace, as OpenTelemetry knows it."""
        found = trace.get_current_span().get_span_context()
        return text_of(found) if found.is_valid else None

    def within(self, started: Started) -> AbstractContextManager[None]:
        """Make a span the current one, for code that asks OpenTelemetry, and send it along with messages within."""
        context = started if isinstance(started, TraceContext) else started.context
        return _Within(started.span if isinstance(started, OpenSpan) else _remote(context), context)


class _Within:
    """A context manager as a class, cheaper than a generator, as in `spans.carrying`."""

    __slots__ = ("_attached", "_carried", "_context", "_span")

    def __init__(self, span: Span, context: TraceContext) -> None:
        self._span, self._context = span, context

    def __enter__(self) -> None:
        self._attached = otel_context.attach(trace.set_span_in_context(self._span))
        self._carried = carry(self._context)

    def __exit__(self, *exc_info: object) -> None:
        drop(self._carried)
        otel_context.detach(self._attached)


def span_context_of(context: TraceContext) -> SpanContext:
    """OpenTelemetry's words for it."""
    flags = trace.TraceFlags(int(context.traceparent[53:55], 16))
    state = TraceState.from_header([context.tracestate]) if context.tracestate else None
    return SpanContext(context.trace_id, context.span_id, is_remote=True, trace_flags=flags, trace_state=state)


def _remote(context: TraceContext) -> Span:
    return NonRecordingSpan(span_context_of(context))
