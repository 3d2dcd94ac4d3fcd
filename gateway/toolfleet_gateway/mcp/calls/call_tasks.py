"""Writes a call as a task of the protocol's extension `io.modelcontextprotocol/tasks`: its id is the call's.

The shapes are those of SEP-2663.
"""

from datetime import UTC, datetime
from typing import Any, Final, Literal

import mcp_types as types
from mcp.shared.exceptions import MCPError

from toolfleet_tasks.calls.begun_handle import BegunHandle

EXTENSION: Final = "io.modelcontextprotocol/tasks"

TaskState = Literal["working", "input_required", "completed", "failed", "cancelled"]

_POLL_MS = 500


def task_facts(
    handle: BegunHandle, state: TaskState, *, now: float, kept_seconds: float, message: str | None = None
) -> dict[str, Any]:
    """Return the facts of every answer about a task; times as ISO 8601, in UTC."""
    call = handle.published
    begun_at = now if call is None else call.published_at
    lasts = kept_seconds if call is None else max(call.deadline_at - begun_at, 0) + kept_seconds
    facts: dict[str, Any] = {
        "taskId": handle.id,
        "status": state,
        "createdAt": _iso(begun_at),
        "lastUpdatedAt": _iso(now),
        "ttlMs": round(lasts * 1000),
        "pollIntervalMs": _POLL_MS,
    }
    return facts if message is None else {**facts, "statusMessage": message}


def lacks_tasks() -> MCPError:
    """Return the error of a request that would need a client with tasks."""
    needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
    message = f"Declare the extension {EXTENSION} in this request's capabilities."
    return MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, message, needed)


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
