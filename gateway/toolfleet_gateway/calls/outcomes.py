"""Decides what a key is told of a refused call, and which HTTP status that has: one table, by error code."""

from typing import Final

from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.http.problems import Problem, not_found
from toolfleet_registry.contracts import ErrorCode, ToolResult
from toolfleet_tasks.client.fleet import ToolFleet

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

_TELLING: Final = frozenset[ErrorCode | None]({"permission_denied", "unknown_module", "unknown_tool"})
"""Codes that would tell whether a tool exists."""

_SOON_SECONDS = 1.0


async def absence_for(fleet: ToolFleet, who: Identity, refusal: ToolResult) -> ToolResult | None:
    """Return the answer in place of a refusal about a tool that the key does not reach: the one about a tool that does not exist.

    `None`: the refusal as it is, which operators always get.
    """
    name = refusal.tool_name
    if refusal.error_code not in _TELLING or who.has_role("operator"):
        return None
    return (
        None if await fleet.begun_calls.reaches(name, who.caller) else await fleet.begun_calls.absence(name, who.caller)
    )


async def unknown_tool(fleet: ToolFleet, who: Identity, name: str) -> Problem:
    """The problem that a tool is which does not exist, as far as this key is to know."""
    return _absent(await fleet.begun_calls.absence(name, who.caller))


async def problem_for(fleet: ToolFleet, who: Identity, refusal: ToolResult) -> Problem | None:
    """Return the problem of a refusal, as far as this key may know it; see `problem_of_refusal`."""
    absence = await absence_for(fleet, who, refusal)
    return problem_of_refusal(refusal) if absence is None else _absent(absence)


def _absent(absence: ToolResult) -> Problem:
    hint = absence.hint or "GET /tools lists those that there are."
    return not_found(str(absence.error), code="unknown_tool", hint=hint)


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
