"""Writes the end of a call as the result of `tools/call`."""

from typing import Any, Final

from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.formats.results import from_result

CALL_ID: Final = "toolfleet/callId"
"""The name in a result's `_meta` of the call's id."""
ERROR: Final = "toolfleet/error"
"""The name in a failed result's `_meta` of what programs want to know."""


def call_result(result: ToolResult, call_id: str) -> dict[str, Any]:
    """Return the result in the protocol's form. The text about a failure ends with its known effect."""
    answer: dict[str, Any] = from_result(result, "mcp", None)
    meta: dict[str, Any] = {**answer.pop("_meta", {}), CALL_ID: call_id}
    if not result.success:
        meta[ERROR] = error_facts(result)
        answer["content"][0]["text"] += _known(result)
    return {**answer, "resultType": "complete", "_meta": meta}


def error_facts(result: ToolResult) -> dict[str, Any]:
    """Return the facts of a failed call, for programs."""
    facts = {
        "error_code": result.error_code,
        "effect_state": result.effect_state,
        "retryable": result.retryable,
        "retry_after_seconds": result.retry_after_seconds,
        "hint": result.hint,
        "ends_run": result.ends_run or None,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _known(result: ToolResult) -> str:
    facts = f"error_code: {result.error_code}, effect_state: {result.effect_state}"
    return f"\n({facts}, retryable: {'yes' if result.retryable else 'no'})"
