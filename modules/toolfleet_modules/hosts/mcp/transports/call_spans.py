"""Describes calls of an MCP server in traces, with the names of OpenTelemetry's conventions for MCP."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from mcp.shared.exceptions import MCPError
from opentelemetry.trace import Span, SpanKind, StatusCode, get_current_span, get_tracer

from toolfleet_registry.tracing import port

_TOOL_ERROR: Final = "tool_error"  # the conventions' type of the error of a result that is one
_tracer = get_tracer("toolfleet")


@contextmanager
def call_span(tool: str, number: int, version: str | None) -> Generator[Span]:
    """Give the CLIENT span of a call over the standard streams of a program."""
    facts = _facts(tool, number, version, "pipe")
    with _tracer.start_as_current_span(
        f"{port.TOOLS_CALL} {tool}",
        kind=SpanKind.CLIENT,
        attributes=facts,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield span
        except MCPError as exc:
            _fail(span, str(exc.code), {port.RPC_STATUS_CODE: str(exc.code)})
            raise
        except BaseException as exc:
            _fail(span, type(exc).__name__)
            raise


def describe_call(message: Mapping[str, Any], headers: Mapping[str, str]) -> None:
    """Give the SDK's span of a call over HTTP, in which it is sent, the name and the facts of the conventions."""
    span, params = get_current_span(), message.get("params")
    if not span.is_recording() or message.get("method") != port.TOOLS_CALL or not isinstance(params, Mapping):
        return
    tool = str(params.get("name"))
    span.update_name(f"{port.TOOLS_CALL} {tool}")
    span.set_attributes(_facts(tool, message.get("id"), headers.get("mcp-protocol-version"), "tcp"))
    if (session := headers.get("mcp-session-id")) is not None:
        span.set_attribute(port.MCP_SESSION_ID, session)


def note_result(span: Span, result: object) -> None:
    """Mark the span of a call whose result says that the tool failed."""
    if isinstance(result, Mapping) and result.get("isError") is True:
        _fail(span, _TOOL_ERROR)


def _facts(tool: str, number: object, version: str | None, transport: str) -> dict[str, str]:
    facts = {
        port.MCP_METHOD: port.TOOLS_CALL,
        port.GEN_AI_OPERATION: port.EXECUTE_TOOL,
        port.GEN_AI_TOOL_NAME: tool,
        port.JSONRPC_REQUEST_ID: str(number),
        port.NETWORK_TRANSPORT: transport,
    }
    return facts if version is None else {**facts, port.MCP_PROTOCOL_VERSION: version}


def _fail(span: Span, error_type: str, facts: Mapping[str, str] | None = None) -> None:
    span.set_attributes({port.ERROR_TYPE: error_type, **(facts or {})})
    span.set_status(StatusCode.ERROR)
