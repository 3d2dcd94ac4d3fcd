"""Writes a call's end as Celery stores it, and reads it as the one `ToolResult` that the caller gets."""

import contextlib
import json
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii as _quoted
from typing import get_args

from toolfleet_registry.contracts import Audit, ErrorCode, PublishedCall, ToolResult
from toolfleet_registry.system import machine_clock
from toolfleet_tasks.messages import fleet_results, json_text
from toolfleet_tasks.messages.fleet_results import CallEnding
from toolfleet_tasks.results.verifier import ANNOUNCED_AT_MOST, FORGED, STORED, Meta, stored_meta


def result_in(text: str, tool_name: str) -> ToolResult:
    """Return the result of this text, as the fleet has stored it."""
    try:
        return json_text.load(ToolResult, text)
    except ValueError:
        with contextlib.suppress(ValueError, RecursionError):
            return _known_part(text)
        return fleet_results.outcome_unknown(tool_name, "the worker's answer cannot be read.")


def ending_of(meta: Meta, call: PublishedCall) -> CallEnding:
    """Return the end of a call that Celery itself has ended, as far as its `meta` says; the ledger knows whether it was started.

    A task that it stopped at the hard limit has timed out, one that it revoked was cancelled, and the end of any other
    is unknown.
    """
    reason = meta.get("result")
    kind = reason.get("exc_type") if isinstance(reason, dict) else None
    if meta["status"] == "REVOKED":
        return fleet_results.taken_back(call)
    if kind == FORGED:
        lost = fleet_results.outcome_unknown(call.tool_name, "its result is not one that the fleet has signed.")
        return CallEnding(lost, lost, lost)
    if kind in {"TimeLimitExceeded", "SoftTimeLimitExceeded"}:
        known = fleet_results.timed_out(call.tool_name, call.limit_seconds)
    else:
        known = fleet_results.outcome_unknown(call.tool_name, f"the worker failed ({kind}).")
    nothing = fleet_results.worker_failed(call.tool_name, str(kind))
    return CallEnding(nothing, nothing, known)


def celery_value(call_id: str, text: str, signature: str = "") -> str:
    """Return a result as Celery's backend stores it, status first.

    Its `signature` is a field that Celery's readers ignore.
    """
    return (
        f'{{"status": "SUCCESS", "result": {_quoted(text)}, "traceback": null, "children": [], '
        f'"date_done": "{datetime.fromtimestamp(machine_clock.wall(), UTC).isoformat()}", "task_id": {_quoted(call_id)}{signed(signature)}}}'
    )


def signed(signature: str) -> str:
    """Return the end of a value with this signature, behind its other fields."""
    return f', "signature": {_quoted(signature)}' if signature else ""


def announcement(call_id: str, value: str) -> str:
    """Return the announcement of a result: "" for the value itself, if that is not too large for it."""
    return "" if len(value) <= ANNOUNCED_AT_MOST else f'{{"status": "{STORED}", "task_id": {_quoted(call_id)}}}'


def word_of(result: ToolResult) -> str:
    """Return how a call ended, for those who may not see its result: `done`, or its error code."""
    return "done" if result.success else result.error_code or "failed"


def text_of(stored: str) -> str:
    """Return the result's own text in what the ledger has stored: Celery's value, or that text itself."""
    return str(stored_meta(stored).get("result"))


def read_stored(stored: str, tool_name: str) -> ToolResult:
    """Parse the ledger's stored result of a call that has ended."""
    return result_in(text_of(stored), tool_name)


def _known_part(text: str) -> ToolResult:
    """Return a newer version's result without the fields that this version does not know.

    Raises `ValueError` if there is none.
    """
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("no result")
    known = {name: value for name, value in found.items() if name in ToolResult.model_fields}
    if known.get("error_code") is not None and known["error_code"] not in get_args(ErrorCode):
        known["error_code"] = "internal"
    if isinstance(audit := known.get("audit"), dict):
        known["audit"] = {name: value for name, value in audit.items() if name in Audit.model_fields}
    return ToolResult.model_validate(known)
