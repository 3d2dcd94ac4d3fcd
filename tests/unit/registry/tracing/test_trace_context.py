"""The place in a trace as text, and whether a new trace is recorded."""

from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Decision, ParentBased, Sampler, TraceIdRatioBased

from toolfleet_registry import spans
from toolfleet_registry.otel_provider import _AttemptIds, _root_draw
from toolfleet_registry.otel_tracing import Tracing
from toolfleet_registry.spans import (
    OpenSpan,
    TraceContext,
    Unrecorded,
    attempt_span_id,
    context_of,
    read_context,
)

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
FINE = f"00-{TRACE_ID}-{SPAN_ID}-01"


def test_a_context_is_read_and_written_as_w3c_has_it() -> None:
    """What systems say beside it goes with it; without it there is no second header."""
    with_state = read_context({"traceparent": FINE, "tracestate": "a=1,b=2"})
    without = read_context({"traceparent": FINE})

    assert with_state is not None
    assert without is not None
    assert with_state.headers == {"traceparent": FINE, "tracestate": "a=1,b=2"}
    assert without.fields == f"traceparent: {FINE}\r\n".encode()
    assert (without.trace_id, without.span_id) == (int(TRACE_ID, 16), int(SPAN_ID, 16))


@pytest.mark.parametrize(
    "said",
    [
        None,
        7,
        "",
        FINE.upper(),
        FINE + "\r\nx: 1",
        f"ff-{TRACE_ID}-{SPAN_ID}-01",
        f"00-{'0' * 32}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"00-{TRACE_ID}-{SPAN_ID}",
    ],
)
def test_what_w3c_does_not_allow_is_no_context(said: object) -> None:
    """Whoever sends it only loses its own trace."""
    assert context_of(said, "a=1") is None


@pytest.mark.parametrize("state", ["a=1\r\nx: 1", "a=é", "a" * 513, 7])
def test_a_bad_state_is_left_out(state: object) -> None:
    """It would end up in headers; the trace goes on without it."""
    found = context_of(FINE, state)

    assert found is not None
    assert found.tracestate == ""


def test_flags_say_whether_anybody_keeps_the_trace() -> None:
    """The lowest bit, whatever else is set."""
    kept = {flags: context_of(f"{FINE[:-2]}{flags}", None) for flags in ("00", "01", "02", "03")}

    assert {flags: context is not None and context.is_sampled for flags, context in kept.items()} == {
        "00": False,
        "01": True,
        "02": False,
        "03": True,
    }


def test_an_attempts_number_is_known_to_everybody() -> None:
    """It follows from the call's id, so that what follows a dead worker's attempt links to it."""
    assert attempt_span_id("c-1", 1) == attempt_span_id("c-1", 1)
    assert len({attempt_span_id("c-1", 1), attempt_span_id("c-1", 2), attempt_span_id("c-2", 1)}) == 3


def test_own_attributes_have_a_prefix_of_their_own() -> None:
    """No later version of the conventions can mean something else by them."""
    known = ("messaging.", "gen_ai.", "mcp.", "http.", "url.", "server.", "rpc.", "jsonrpc.", "network.", "error.")
    attributes = [
        value for name, value in vars(spans).items() if name.isupper() and isinstance(value, str) and "." in value
    ]

    assert [each for each in attributes if not each.startswith((*known, "toolfleet.", "https:"))] == []


DRAWS = 2_000


def traced(sampler: Sampler) -> Tracing:
    provider = TracerProvider(sampler=sampler, id_generator=_AttemptIds(), shutdown_on_exit=False)
    return Tracing(provider, "1", is_ours=True, follows_parent=True, roots=_root_draw(provider))


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

    assert isinstance(started, OpenSpan)
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
