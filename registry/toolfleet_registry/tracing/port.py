"""Defines the port through which the fleet begins spans; where nothing is traced there is `None` in its place."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

from toolfleet_registry.tracing.names import Kind
from toolfleet_registry.tracing.trace_context import TraceContext, Unrecorded

Value: TypeAlias = str | bool | int | float
"""What an attribute may be."""


class OpenSpan(Protocol):
    """A span that is recorded, until its end."""

    @property
    def context(self) -> TraceContext:
        """The span's place in its trace."""
        ...

    def note(self, attributes: Mapping[str, Value | None]) -> None:
        """Add attributes; those that are `None` are left out."""
        ...

    def rename(self, name: str) -> None:
        """Give it another name."""
        ...

    def fail(self, error_type: str) -> None:
        """Mark it as failed, with a word of few."""
        ...

    def end(self) -> None:
        """End the span. Later additions are ignored."""
        ...


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
