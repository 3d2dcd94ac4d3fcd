"""Calls of MCP servers in traces: a CLIENT span each, with the names of OpenTelemetry's conventions."""

from pathlib import Path
from typing import Any

import pytest
from mcp.shared import _otel
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from support.hosts.mcp_server import hosted_server
from support.hosts.odd_server import Answer, odd_http, odd_program
from toolfleet_modules.hosts.mcp import transport as mcp_transport

pytestmark = pytest.mark.asyncio

ANSWERS = {
    "lay": '{"jsonrpc": "2.0", "id": %d, "result": {"content": []}}',
    "fail": '{"jsonrpc": "2.0", "id": %d, "result": {"content": [], "isError": true}}',
    "refuse": '{"jsonrpc": "2.0", "id": %d, "error": {"code": -32007, "message": "no"}}',
}


@pytest.mark.parametrize("transport", ["pipe", "tcp"])
async def test_a_call_has_a_client_span(tmp_path: Path, transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one span, names the tool, says what carried it, and how it failed."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    for module in (_otel, mcp_transport):
        monkeypatch.setattr(module, "_tracer", provider.get_tracer("owls"))
    with odd_http({name: Answer(200, body) for name, body in ANSWERS.items()}) as (_, web):
        server = odd_program(tmp_path, ANSWERS) if transport == "pipe" else web
        async with hosted_server(server, tmp_path / "notes") as served:
            for name in ANSWERS:
                await served.call(name)

    spans = [span for span in exporter.get_finished_spans() if facts_of(span).get("mcp.method.name") == "tools/call"]
    assert [span.name for span in spans] == ["tools/call lay", "tools/call fail", "tools/call refuse"]
    for span, error in zip(spans, (None, "tool_error", "-32007"), strict=True):
        facts = facts_of(span)
        assert (span.kind, facts["gen_ai.tool.name"]) == (SpanKind.CLIENT, span.name.removeprefix("tools/call "))
        assert (facts["network.transport"], facts["mcp.protocol.version"]) == (transport, "2025-06-18")
        assert facts["gen_ai.operation.name"] == "execute_tool"
        assert facts["jsonrpc.request.id"].isdigit()
        assert facts.get("mcp.session.id") == ("session-1" if transport == "tcp" else None)
        assert facts.get("error.type") == error
        assert (span.status.status_code is StatusCode.ERROR) == (error is not None)
    assert facts_of(spans[-1])["rpc.response.status_code"] == "-32007"


def facts_of(span: ReadableSpan) -> dict[str, Any]:
    """A span's attributes."""
    return dict(span.attributes or {})
