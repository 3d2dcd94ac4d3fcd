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
        """Where it is in its trace."""
        ...

    def note(self, attributes: Mapping[str, Value | None]) -> None:
        """Say more of it; what is `None` is left out."""
        ...

    def rename(self, name: str) -> None:
        """Give it another name."""
        ...

    def fail(self, error_type: str) -> None:
        """Mark it as failed, with a word of few."""
        ...

    def end(self) -> None:
        """It is over. Nothing that is said afterwards counts."""
        ...


Started: TypeAlias = OpenSpan | TraceContext
"""A span, or where nobody records one the place in the trace that is to be passed on."""


Drawn: TypeAlias = Unrecorded | int
"""A new trace: its place if nobody records it, else its number; 0: only its first span can decide."""


class Tracing(Protocol):
    """Begins spans, and hands them on."""

    @property
    def has_contents(self) -> bool:
        """Whether spans have arguments and results as well."""
        ...

    @property
    def has_attempt_ids(self) -> bool:
        """Whether a span, and a trace, has the number that it is begun with."""
        ...

    def unrecorded(self, parent: TraceContext | None) -> Unrecorded | None:
        """The same place, if it is known, without asking anybody, that no span below it is recorded; else `None`."""
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
        """Begin a span below `parent`, or `None` below the current one. Raises nothing.

        `links`: other spans, and what each is to this one. `span_id` is its number, if it is not 0; `trace_id` that
        of its trace, if it is the first one there, or there are several of these. `began_at`: seconds since the epoch, if that
        is not now.
        """
        ...

    def current(self) -> TraceContext | None:
        """Where the running code is in a trace, as OpenTelemetry knows it."""
        ...

    def within(self, started: Started) -> AbstractContextManager[None]:
        """Have a span be the current one, for whoever asks OpenTelemetry, and go with what is sent within."""
        ...

    def shut_down(self) -> None:
        """Send what is not sent, within a second or two, and be over. What others have made is left as it is."""
        ...


def context_of_span(started: Started) -> TraceContext:
    """What is to be passed on."""
    return started if isinstance(started, TraceContext) else started.context
