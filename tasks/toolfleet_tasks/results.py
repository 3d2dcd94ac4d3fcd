"""What is stored of a call: how it is written down, and read as the one `ToolResult` that the caller gets."""

import json
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii as _quoted

from toolfleet_registry.contracts import PublishedCall, ToolResult
from toolfleet_tasks import endings, wire
from toolfleet_tasks.endings import Ending
from toolfleet_tasks.inbox import Meta
from toolfleet_tasks.shelf import ANNOUNCED_AT_MOST, STORED


def result_of(meta: Meta, tool_name: str) -> ToolResult:
    """The fleet's own answer (`meta["status"]` is `SUCCESS`)."""
    return _read(str(meta.get("result")), tool_name)


def ending_of(meta: Meta, call: PublishedCall) -> Ending:
    """How a call ends that Celery itself has ended, as far as its `meta` says; what was begun, the ledger knows.

    A task that it stopped at the hard limit has timed out, one that it revoked was cancelled, and of any other nobody
    knows the end.
    """
    reason = meta.get("result")
    kind = reason.get("exc_type") if isinstance(reason, dict) else None
    if meta["status"] == "REVOKED":
        return endings.taken_back(call)
    if kind in {"TimeLimitExceeded", "SoftTimeLimitExceeded"}:
        known = endings.timed_out(call.tool_name, call.limit_seconds)
    else:
        known = endings.outcome_unknown(call.tool_name, f"the worker failed ({kind}).")
    nothing = endings.worker_failed(call.tool_name, str(kind))
    return Ending(nothing, nothing, known)


def celery_value(call_id: str, text: str) -> str:
    """A result as Celery's backend writes it down, status first."""
    return (
        f'{{"status": "SUCCESS", "result": {_quoted(text)}, "traceback": null, "children": [], '
        f'"date_done": "{datetime.now(UTC).isoformat()}", "task_id": {_quoted(call_id)}}}'
    )


def announcement(call_id: str, value: str) -> str:
    """What is said where somebody waits for a result: "" for the value itself, if that is not too large for it."""
    return "" if len(value) <= ANNOUNCED_AT_MOST else f'{{"status": "{STORED}", "task_id": {_quoted(call_id)}}}'


def word_of(result: ToolResult) -> str:
    """How a call ended, for those who may not see its result: `done`, or its error code."""
    return "done" if result.success else result.error_code or "failed"


def text_of(stored: str) -> str:
    """The result's own text in what the ledger has stored: Celery's value, or that text itself."""
    try:
        value = json.loads(stored)
    except ValueError:
        return stored
    return str(value["result"]) if isinstance(value, dict) and "status" in value else stored


def read_stored(stored: str, tool_name: str) -> ToolResult:
    """What the ledger has stored of a call that has ended."""
    return _read(text_of(stored), tool_name)


def _read(text: str, tool_name: str) -> ToolResult:
    try:
        return wire.load(ToolResult, text)
    except ValueError:
        return endings.outcome_unknown(tool_name, "the worker's answer cannot be read.")
