"""Makes the protocol's error of a call that its MCP server has answered with one, with its known effect."""

from typing import Any

from mcp.shared.exceptions import MCPError

from toolfleet_gateway.mcp.calls.call_results import ERROR, error_facts
from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.functions.passed_methods import passed_error


def passed_failure(result: ToolResult) -> MCPError | None:
    """The server's own error; `None` for a success, and for a failure of any other kind."""
    error = None if result.success else passed_error(result.result)
    if error is None:
        return None
    data: dict[str, Any] = error.data if isinstance(error.data, dict) else {}
    return MCPError(error.code, error.message, {**data, ERROR: error_facts(result)})
