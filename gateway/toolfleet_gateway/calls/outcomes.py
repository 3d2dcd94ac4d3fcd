"""Decides which HTTP status a call's refusal has: one table, by error code."""

from toolfleet_gateway.http.problems import Problem
from toolfleet_registry.contracts import ErrorCode, ToolResult

REFUSED: dict[ErrorCode, int] = {
    "invalid_tool_name": 400,
    "permission_denied": 403,
    "blocked_by_gate": 403,
    "approval_denied": 403,
    "approval_required": 403,
    "unknown_module": 404,
    "unknown_tool": 404,
    "version_mismatch": 409,
    "conflict": 409,
    "invalid_arguments": 422,
    "rate_limited": 429,
    "busy": 503,
    "fleet_unavailable": 503,
    "module_unreachable": 503,
}
"""Of a call that is in no queue. Any other end of a call, also a tool's failure, is a 200 with its result."""

_SOON_SECONDS = 1.0


def problem_of_refusal(result: ToolResult) -> Problem | None:
    """The problem that a call is which was refused before it was in a queue; `None` if that is how the call ended."""
    code = result.error_code
    status = None if code is None else REFUSED.get(code)
    if code is None or status is None:
        return None
    seconds = result.retry_after_seconds
    if seconds is None and status == 503:  # noqa: PLR2004 - a client must not come again at once
        seconds = _SOON_SECONDS
    return Problem(
        status,
        code,
        result.error or code,
        hint=result.hint,
        effect_state=result.effect_state,
        retryable=result.retryable,
        retry_after_seconds=seconds,
        ends_run=result.ends_run,
    )
