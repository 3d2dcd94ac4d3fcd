"""Whether a new trace is recorded is drawn as OpenTelemetry's sampler decides it, without a span for most."""

from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Decision, ParentBased, Sampler, TraceIdRatioBased

from toolfleet_registry.tracing.otel_tracing import OtelTracing, RecordedSpan
from toolfleet_registry.tracing.provider import _AttemptIds, _root_draw
from toolfleet_registry.tracing.trace_context import TraceContext, Unrecorded, context_of

DRAWS = 2_000


def traced(sampler: Sampler) -> OtelTracing:
    provider = TracerProvider(sampler=sampler, id_generator=_AttemptIds(), shutdown_on_exit=False)
    return OtelTracing(provider, "1", is_ours=True, follows_parent=True, roots=_root_draw(provider))


def test_each_draw_is_what_the_sampler_decides() -> None:
    """By the trace's number: one that is dropped has a place that can be passed on, and says so."""
    sampler = TraceIdRatioBased(0.5)
    tracing = traced(ParentBased(sampler))
    drawn = [tracing.draw_root() for _ in range(DRAWS)]

    for root in drawn:
        number = root.trace_id if isinstance(root, TraceContext) else root
        is_sampled = sampler.should_sample(None, number, "send").decision is Decision.RECORD_AND_SAMPLE
        assert is_sampled is not isinstance(root, TraceContext)
        if isinstance(root, TraceContext):
            assert context_of(root.traceparent, "") == root
            assert not root.is_sampled
            assert tracing.unrecorded(root) == root
            assert isinstance(root, Unrecorded)
    assert {isinstance(root, TraceContext) for root in drawn} == {True, False}
    assert len({root.traceparent if isinstance(root, TraceContext) else root for root in drawn}) == DRAWS


def test_a_trace_that_is_recorded_has_the_number_that_was_drawn() -> None:
    """Drawn twice, it would be recorded too seldom."""
    tracing = traced(ParentBased(TraceIdRatioBased(1.0)))
    drawn = tracing.draw_root()
    assert isinstance(drawn, int)
    started = tracing.start("send", "producer", {}, trace_id=drawn)

    assert isinstance(started, RecordedSpan)
    assert started.context.trace_id == drawn
    started.end()


@pytest.mark.parametrize(
    "make", [lambda: ParentBased(ALWAYS_ON), lambda: TraceIdRatioBased(0.5), lambda: ParentBased(_Odd(0.5))]
)
def test_other_samplers_are_asked_themselves(make: Callable[[], Any]) -> None:
    """They may decide by more than the number."""
    assert traced(make()).draw_root() == 0


def test_below_a_span_nothing_is_drawn() -> None:
    """A call goes on in the trace that its agent is in."""
    tracing = traced(ParentBased(TraceIdRatioBased(0.0)))
    outer = TracerProvider(shutdown_on_exit=False).get_tracer("agent").start_span("turn")
    with trace.use_span(outer, end_on_exit=True):
        assert tracing.draw_root() == 0
    assert isinstance(tracing.draw_root(), TraceContext)


class _Odd(TraceIdRatioBased):
    """One that somebody has derived from the usual one."""
