"""The place in a trace as text: what W3C allows is passed on as it is, and nothing else."""

import pytest

from toolfleet_registry.tracing import names
from toolfleet_registry.tracing.trace_context import attempt_span_id, context_of, read_context

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
    attributes = [value for name, value in vars(names).items() if name.isupper() and "." in str(value)]

    assert [each for each in attributes if not each.startswith((*known, "toolfleet.", "https:"))] == []
