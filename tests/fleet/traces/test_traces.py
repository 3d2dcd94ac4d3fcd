"""One trace of a call, from the agent's span to the module's function."""

from support.traces.agent_program import SPAN, TracedAgent
from support.traces.otlp_receiver import OtlpReceiver

CALLED = ("send tools.owls", "process tools.owls", "execute_tool owls.read", "POST", "POST /execute")


def test_a_call_is_one_trace_from_the_agents_span_to_the_module(agent: TracedAgent, collector: OtlpReceiver) -> None:
    """Each span is the child of the one before it, in whichever process, and says what it is by its kind."""
    said = agent.call("owls.read", name="whole")
    spans = collector.wait_for(SPAN, *CALLED, trace_id=said["trace_id"])

    assert said["success"]
    assert spans[0].span_id == said["span_id"]
    assert [span.parent_id for span in spans[1:]] == [span.span_id for span in spans[:-1]]
    assert [span.kind for span in spans] == ["INTERNAL", "PRODUCER", "CONSUMER", "INTERNAL", "CLIENT", "SERVER"]
    assert [span.service for span in spans] == ["owl-watcher"] * 2 + ["toolfleet-worker"] * 3 + ["owls"]
    assert not any(span.is_error for span in spans)
    assert len(collector.trace(said["trace_id"])) == len(spans)
