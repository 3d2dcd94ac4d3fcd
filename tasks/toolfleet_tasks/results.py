"""What Celery stored of a call, as the one `ToolResult` that the caller gets."""

from toolfleet_registry.contracts import ToolResult
from toolfleet_tasks import endings, wire
from toolfleet_tasks.inbox import Meta


def result_of(meta: Meta, *, tool_name: str, limit_seconds: float) -> ToolResult:
    """The result of a call that has ended (`meta["status"]` is one of `inbox.READY`).

    A worker's own answer is passed on. What Celery wrote itself is translated: a task that it stopped at the hard
    limit has timed out, one that it revoked was cancelled, and of any other nobody knows the end.
    """
    if meta["status"] == "SUCCESS":
        try:
            return wire.load(ToolResult, str(meta.get("result")))
        except (ValueError, RecursionError):
            return endings.outcome_unknown(tool_name, "the worker's answer cannot be read.")
    reason = meta.get("result")
    kind = reason.get("exc_type") if isinstance(reason, dict) else None
    if meta["status"] == "REVOKED":
        return endings.cancelled(tool_name)
    if kind in {"TimeLimitExceeded", "SoftTimeLimitExceeded"}:
        return endings.timed_out(tool_name, limit_seconds)
    return endings.outcome_unknown(tool_name, f"the worker failed ({kind}).")
