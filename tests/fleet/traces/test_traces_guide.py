"""The guide to traces shows a trace that a fleet has exported."""

from support.documents import ROOT
from support.traces.agent_program import SPAN, TracedAgent
from support.traces.drawing import drawn
from support.traces.otlp_receiver import OtlpReceiver

PAGE = ROOT / "docs/guides/traces.md"
CALLED = ("send tools.owls", "process tools.owls", "execute_tool owls.read", "POST", "POST /execute")


def test_the_guide_shows_a_trace_as_it_is(agent: TracedAgent, collector: OtlpReceiver) -> None:
    """Span by span, and word for word but for what each call has anew."""
    said = agent.call("owls.read", name="guide")
    spans = collector.wait_for(SPAN, *CALLED, trace_id=said["trace_id"])

    assert drawn(spans) in PAGE.read_text(), f"the guide should show:\n{drawn(spans)}"
