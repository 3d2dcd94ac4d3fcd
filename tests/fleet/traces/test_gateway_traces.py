"""What comes in through the gateway: one SERVER span for each request, below its sender's span, and no second one."""

from collections.abc import Iterator
from typing import Any

import pytest

from support.fleet import TestBed
from support.gateways.gateway_process import Gateway, gateway_process
from support.gateways.mcp_clients import ERAS, Era, mcp_client
from support.traces.otlp_receiver import OtlpReceiver
from support.worker_process import WorkerProcess

TRACE_ID = "0af7651916cd43dd8448eb211c80319{}"
PARENT = "b7ad6b7169203331"
CALLED = ("send tools.owls", "process tools.owls", "execute_tool owls.read", "POST", "POST /execute")


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
