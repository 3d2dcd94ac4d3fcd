"""One trace of a call, from the agent's span, or that of a request at a gateway, to the module's function."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.documents import ROOT
from support.fleet import TestBed, program
from support.gateways.gateway_process import Gateway, gateway_process
from support.gateways.mcp_clients import ERAS, Era, mcp_client
from support.traces.agent_program import SPAN, TracedAgent
from support.traces.drawing import drawn
from support.traces.otlp_receiver import OtlpReceiver, ReceivedSpan
from support.traces.woken_core import Core
from support.waiting import PATIENCE_SECONDS, wait_until_sync
from support.worker_process import WorkerProcess
from toolfleet_cli.local.environment import beat_command
from toolfleet_registry.spans import attempt_span_id

SHOWN = ROOT / "tests/fleet/traces/a_call.txt"
TRACE_ID = "0af7651916cd43dd8448eb211c80319{}"
PARENT = "b7ad6b7169203331"
CALLED = ("send tools.owls", "process tools.owls", "execute_tool owls.read", "POST", "POST /execute")


def test_a_call_is_one_trace_from_the_agents_span_to_the_module(agent: TracedAgent, collector: OtlpReceiver) -> None:
    """Each span is the child of the one before it, in whichever process, and says what it is by its kind.

    The guide shows it so, word for word but for what each call has anew.
    """
    said = agent.call("owls.read", name="whole")
    spans = collector.wait_for(SPAN, *CALLED, trace_id=said["trace_id"])

    assert said["success"]
    assert spans[0].span_id == said["span_id"]
    assert [span.parent_id for span in spans[1:]] == [span.span_id for span in spans[:-1]]
    assert [span.kind for span in spans] == ["INTERNAL", "PRODUCER", "CONSUMER", "INTERNAL", "CLIENT", "SERVER"]
    assert [span.service for span in spans] == ["owl-watcher"] * 2 + ["toolfleet-worker"] * 3 + ["owls"]
    assert not any(span.is_error for span in spans)
    assert len(collector.trace(said["trace_id"])) == len(spans)
    assert drawn(spans) == SHOWN.read_text(), f"the guide should show:\n{drawn(spans)}"


def _linked_as(span: ReceivedSpan) -> dict[str, str]:
    return {str(link.attributes["toolfleet.linked_as"]): link.span_id for link in span.links}


def test_an_attempt_says_which_one_it_is(agent: TracedAgent, collector: OtlpReceiver) -> None:
    """Number, fencing token, time in the queue, and how sure its effect is; the message's creation is linked."""
    said = agent.call("owls.read", name="facts")
    sent, process = collector.wait_for("send tools.owls", "process tools.owls", trace_id=said["trace_id"])

    assert process.attributes["messaging.message.id"] == said["call_id"] == sent.attributes["messaging.message.id"]
    assert (process.attributes["toolfleet.attempt"], process.attributes["toolfleet.effect_state"]) == (1, "done")
    assert process.attributes["toolfleet.fencing_token"]
    assert process.attributes["toolfleet.queued_seconds"] >= 0
    assert _linked_as(process) == {"creation": sent.span_id}


def test_a_retry_is_a_sibling_that_links_to_the_attempt_before(agent: TracedAgent, collector: OtlpReceiver) -> None:
    """Both are children of the message's creation; the first one has failed."""
    said = agent.call("owls.second_time", name="again", kind="busy")
    first, second = collector.wait_for(*["process tools.owls"] * 2, trace_id=said["trace_id"])

    assert said["success"]
    assert first.parent_id == second.parent_id
    assert (first.is_error, second.is_error) == (True, False)
    assert [span.attributes["toolfleet.attempt"] for span in (first, second)] == [1, 2]
    assert _linked_as(second) == {"creation": first.parent_id, "retried_attempt": first.span_id}
    assert first.span_id == f"{attempt_span_id(said['call_id'], 1):016x}"


def test_the_answer_of_a_call_that_goes_on_is_linked_to_its_attempt(
    agent: TracedAgent, collector: OtlpReceiver, journal: Path
) -> None:
    """Each time that the worker asks where it is, is one more span beside the attempt's."""
    agent.begin("owls.brood")
    collector.wait(lambda: len(collector.named("POST /status")) > 1, "it was asked for twice")
    journal.joinpath("hatched").touch()
    said = agent.end()
    polled = ("toolfleet.effect_state", "done")
    collector.wait(
        lambda: any(polled in span.attributes.items() for span in _processed(collector, said["trace_id"])), "its end"
    )
    begun, *polls = _processed(collector, said["trace_id"])

    assert said["result"] == "owls"
    assert len(polls) > 1
    assert {span.attributes["toolfleet.granted"] for span in polls} == {"accepted"}
    assert {_linked_as(span)["accepted_attempt"] for span in polls} == {begun.span_id}
    assert not any(span.is_error for span in (begun, *polls))


def test_a_job_and_what_it_wakes_are_in_its_makers_trace(
    traced_bed: TestBed, agent: TracedAgent, collector: OtlpReceiver, core: Core
) -> None:
    """Its start, its poll and the news of its end; the core that is woken is told where it is."""
    with program(traced_bed, beat_command(), "beat", ready="beat: Starting"):
        said = agent.start_job("owls.read", {"name": "start"}, {"name": "poll"})
        wait_until_sync(lambda: core.headers, "the core is woken", seconds=3 * PATIENCE_SECONDS)
    collector.wait(lambda: _woken(collector, said["trace_id"], core.url), "its wake-up")
    (wake,) = _woken(collector, said["trace_id"], core.url)
    *sent, _, _ = collector.wait_for(*["send tools.owls"] * 2, *["process tools.owls"] * 2, trace_id=said["trace_id"])

    assert {span.attributes["toolfleet.job_id"] for span in [*sent, wake]} == {said["result"]}
    assert len(collector.named("send tools.owls", said["trace_id"])) == 2
    assert len(_processed(collector, said["trace_id"])) == 2
    assert {span.parent_id for span in [*sent, wake]} == {said["span_id"]}
    assert _linked_as(wake) == {"job": said["span_id"]}
    assert core.headers[0]["traceparent"].startswith(f"00-{wake.trace_id}-{wake.span_id}-")


def test_links_of_a_canvas_are_below_what_made_them(agent: TracedAgent, collector: OtlpReceiver) -> None:
    """Each has a `create` span in the place of `send`: Celery, or a worker, publishes it later."""
    said = agent.call("owls.read", {"chain": True}, name="link")
    names = ["create tools.owls"] * 2 + ["process tools.owls"] * 2
    first, second, *processed = collector.wait_for(*names, trace_id=said["trace_id"])

    assert said["success"]
    assert [first.parent_id, second.parent_id] == [said["span_id"]] * 2
    assert [span.parent_id for span in processed] == [first.span_id, second.span_id]
    assert len(_processed(collector, said["trace_id"])) == 2


def _processed(collector: OtlpReceiver, trace_id: str) -> list[ReceivedSpan]:
    return collector.named("process tools.owls", trace_id)


def _woken(collector: OtlpReceiver, trace_id: str, url: str) -> list[ReceivedSpan]:
    return [span for span in collector.trace(trace_id) if str(span.attributes.get("url.full", "")).startswith(url)]


@pytest.fixture(scope="module")
def gateway(traced_bed: TestBed, traced_worker: WorkerProcess, collector: OtlpReceiver) -> Iterator[Gateway]:
    del traced_worker
    with gateway_process(traced_bed, env=collector.environment) as gateway:
        yield gateway


async def test_a_rest_call_is_below_its_senders_span(gateway: Gateway, collector: OtlpReceiver) -> None:
    """The span is named after the route; the call's own spans are below it."""
    trace_id = TRACE_ID.format("a")
    async with gateway.client() as client:
        body = {"tool_name": "owls.read", "arguments": {"name": "rest"}}
        answer = await client.post(
            "/calls", json=body, headers={"traceparent": f"00-{trace_id}-{PARENT}-01", "Prefer": "wait=30"}
        )
    spans = collector.wait_for("POST /calls", *CALLED, trace_id=trace_id)

    assert answer.status_code == 200, answer.text
    assert [span.parent_id for span in spans] == [PARENT, *(span.span_id for span in spans[:-1])]
    assert (spans[0].kind, spans[0].service) == ("SERVER", "toolfleet-gateway")
    assert spans[0].attributes["http.route"] == "/calls"
    assert len(collector.trace(trace_id)) == len(spans)


@pytest.mark.parametrize("era", ERAS)
async def test_an_mcp_call_has_one_span_of_its_request(gateway: Gateway, collector: OtlpReceiver, era: Era) -> None:
    """On the short lane it is ours, on the SDK's way the SDK's: by the same names, and never both."""
    trace_id = TRACE_ID.format(ERAS.index(era))
    async with mcp_client(gateway, era) as client:
        meta: Any = {"traceparent": f"00-{trace_id}-{PARENT}-01"}
        result = await client.call_tool("owls.read", {"name": f"mcp {era}"}, meta=meta)
    spans = collector.wait_for("tools/call owls.read", *CALLED, trace_id=trace_id)

    assert not result.is_error
    assert [span.parent_id for span in spans] == [PARENT, *(span.span_id for span in spans[:-1])]
    assert (spans[0].kind, spans[0].service) == ("SERVER", "toolfleet-gateway")
    assert spans[0].attributes["mcp.method.name"] == "tools/call"
    assert spans[0].attributes["gen_ai.operation.name"] == "execute_tool"
    assert len(collector.trace(trace_id)) == len(spans)


async def test_a_failed_tool_is_an_error_of_its_request(gateway: Gateway, collector: OtlpReceiver) -> None:
    """The conventions have a word for a result that is an error."""
    trace_id = TRACE_ID.format("e")
    async with mcp_client(gateway) as client:
        meta: Any = {"traceparent": f"00-{trace_id}-{PARENT}-01"}
        result = await client.call_tool("owls.second_time", {"name": "e", "kind": "late"}, meta=meta)
    (span,) = collector.wait_for("tools/call owls.second_time", trace_id=trace_id)

    assert result.is_error is span.is_error
