"""Failures of calls that MCP clients are told as errors of the protocol."""

from typing import Any

from toolfleet_gateway.mcp.calls.passed_failures import passed_failure
from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.functions.passed_errors import PassedError


def failed(result: object) -> ToolResult:
    said = ToolResult.failed("nest.hatch", "module_error", "it failed", effect_state="unknown")
    return said.model_copy(update={"result": result})


def test_a_servers_error_is_told_with_what_is_known_of_the_effect() -> None:
    """Its code, message and data are the server's; beside the data stands what programs may go by."""
    needed: dict[str, Any] = {"requiredCapabilities": {"sampling": {}}}
    error = passed_failure(failed(PassedError(-32021, "it needs sampling", needed).worded()))

    assert error is not None
    assert (error.code, error.message) == (-32021, "it needs sampling")
    known = error.data.pop("toolfleet/error")
    assert (known["error_code"], known["effect_state"], known["retryable"]) == ("module_error", "unknown", False)
    assert error.data == needed


def test_other_ends_are_no_errors_of_the_protocol() -> None:
    """Neither a tool's own failure, nor a success that looks like an error."""
    worded = PassedError(-32603, "no").worded()

    assert passed_failure(failed(None)) is None
    assert passed_failure(ToolResult.ok("nest.hatch", worded)) is None
