"""Surrounds `tools/call` on the short lane with its SERVER span, as the SDK does on its own way."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from mcp.shared.exceptions import MCPError
from mcp_types.version import LATEST_MODERN_VERSION

from toolfleet_registry.tracing import names
from toolfleet_registry.tracing.port import OpenSpan, Tracing
from toolfleet_registry.tracing.trace_context import TraceContext, carried, read_context

TOOL_ERROR: Final = "tool_error"
"""The type of the error of a result that is one."""


async def traced_call(
    tracing: Tracing,
    name: str,
    number: str | int,
    meta: Mapping[str, Any],
    run: Callable[[], Awaitable[dict[str, Any]]],
) -> dict[str, Any]:
    """What a call comes to, in the span of its request `number`. Its client is where `meta` says, or its HTTP headers."""
    started = tracing.start(
        f"{names.TOOLS_CALL} {name}",
        "server",
        {names.MCP_METHOD: names.TOOLS_CALL, names.GEN_AI_OPERATION: names.EXECUTE_TOOL, names.GEN_AI_TOOL_NAME: name},
        parent=read_context(meta) or carried(),
    )
    with tracing.within(started):
        return await (run() if isinstance(started, TraceContext) else _run(started, number, run))


async def _run(span: OpenSpan, number: str | int, run: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    span.note({names.JSONRPC_REQUEST_ID: str(number), names.MCP_PROTOCOL_VERSION: LATEST_MODERN_VERSION})
    span.note({names.NETWORK_TRANSPORT: "tcp"})
    try:
        result = await run()
        if result.get("isError"):
            span.fail(TOOL_ERROR)
    except MCPError as exc:
        span.note({names.RPC_STATUS_CODE: str(exc.code)})
        span.fail(str(exc.code))
        raise
    except BaseException as exc:
        span.fail(type(exc).__name__)
        raise
    finally:
        span.end()
    return result
