"""Defines the port through which the fleet begins spans; where nothing is traced there is `None` in its place."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, TypeAlias

from toolfleet_registry.tracing.names import ERROR_TYPE, Kind
from toolfleet_registry.tracing.trace_context import TraceContext, Unrecorded

if TYPE_CHECKING:  # nothing of it is loaded where nothing is traced
    from opentelemetry.trace import Span, SpanContext

Value: TypeAlias = str | bool | int | float
"""What an attribute may be."""


class OpenSpan:
    """A span that is recorded, until its end, by OpenTelemetry. Later additions are ignored."""

    __slots__ = ("_context", "span")

    def __init__(self, span: "Span") -> None:
        self.span = span
        self._context: TraceContext | None = None

    @property
    def context(self) -> TraceContext:
        """The span's place in its trace."""
        if self._context is None:
            self._context = text_of(self.span.get_span_context())
        return self._context

    def note(self, attributes: Mapping[str, Value | None]) -> None:
        """Add attributes; those that are `None` are left out."""
        self.span.set_attributes({name: value for name, value in attributes.items() if value is not None})

    def rename(self, name: str) -> None:
        """Give it another name."""
        self.span.update_name(name)

    def fail(self, error_type: str) -> None:
        """Mark it as failed, with a word of few."""
        from opentelemetry.trace.status import Status, StatusCode  # noqa: PLC0415 - loaded where there are spans

        self.span.set_attribute(ERROR_TYPE, error_type)
        self.span.set_status(Status(StatusCode.ERROR))

    def end(self) -> None:
        """End the span."""
        self.span.end()


Started: TypeAlias = OpenSpan | TraceContext
"""A span, or where nobody records one the place in the trace that is to be passed on."""


Drawn: TypeAlias = Unrecorded | int
"""A new trace: its place if nobody records it, else its number; 0: only its first span can decide."""


class Tracing(Protocol):
    """Starts spans, and passes them on."""

    @property
    def has_contents(self) -> bool:
        """Whether spans have arguments and results as well."""
        ...

    @property
    def has_attempt_ids(self) -> bool:
        """Whether a span, and a trace, has the given number."""
        ...

    def unrecorded(self, parent: TraceContext | None) -> Unrecorded | None:
        """Return the same place, if it is known, without asking a sampler, that no span below it is recorded; else `None`."""
        ...

    def draw_root(self) -> Drawn:
        """Decide about a new trace as its sampler would, without its first span; 0 where there is a span already, too."""
        ...

    def start(  # noqa: PLR0913 - what is not obvious has a default
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
        ...

    def current(self) -> TraceContext | None:
        """Return the running code's place in a trace, as OpenTelemetry knows it."""
        ...

    def within(self, started: Started) -> AbstractContextManager[None]:
        """Make a span the current one, for code that asks OpenTelemetry, and send it along with messages within."""
        ...

    def shut_down(self) -> None:
        """Send the remaining spans, within a second or two, and end. Providers made by others are left as they are."""
        ...


def context_of_span(started: Started) -> TraceContext:
    """Return the context to be passed on."""
    return started if isinstance(started, TraceContext) else started.context


def text_of(found: "SpanContext") -> TraceContext:
    """Our words for OpenTelemetry's."""
    text = f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"
    return TraceContext(text, found.trace_state.to_header() if found.trace_state else "")
