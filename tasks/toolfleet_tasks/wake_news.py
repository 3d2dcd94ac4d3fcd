"""What a conversation is told of a job's end: worded, and small enough to be kept and sent."""

import json
from typing import Any, Final, Literal

from toolfleet_registry.contracts import ErrorCode
from toolfleet_registry.jobs import JobSpec, WakeUp

End = Literal["completed", "failed", "timed_out"]

_TYPES: Final[dict[End, Literal["job.completed", "job.failed", "job.timed_out"]]] = {
    "completed": "job.completed",
    "failed": "job.failed",
    "timed_out": "job.timed_out",
}

MAX_RESULT_BYTES: Final = 64_000
"""Of a result as JSON: news wait in Redis, and a model has to read them."""

_PREVIEW_CHARACTERS = 4_000
_LONGEST_ERROR = 2_000  # characters


def bounded_wake(  # noqa: PLR0913 - what there is to say of an end
    spec: JobSpec,
    end: End,
    *,
    wake_id: str,
    at: float,
    result: Any = None,
    error: str | None = None,
    error_code: ErrorCode | None = None,
) -> WakeUp:
    """The news of a job that ended at `at` (seconds since the epoch). `result` is its last poll's. Never fails.

    Told in the job's own message, and with what went wrong if it did not complete. Of a result over 64 kB, or one that is no
    JSON, only the beginning is told.
    """
    error = error if error is None else _text(error)[:_LONGEST_ERROR]
    conversation, last = spec.conversation, spec.poll or spec.start
    kept, preview = _within_bounds(result)
    return WakeUp(
        type=_TYPES[end],
        wake_id=wake_id,
        job_id=spec.job_id,
        timestamp=at,
        conversation_id=conversation.conversation_id,
        user_id=spec.user_id,
        platform=conversation.platform,
        platform_channel_id=conversation.platform_channel_id,
        platform_thread_id=conversation.platform_thread_id,
        message=_message(spec, end, error),
        name=spec.name,
        tool_name=None if last is None else last.tool_name,
        result=kept,
        result_preview=preview,
        is_truncated=preview is not None,
        error=error,
        error_code=error_code,
    )


def wake_body(wake: WakeUp) -> str:
    """News as they are kept and sent: ASCII JSON with every field, for readers in any language."""
    return json.dumps(dict(wake), allow_nan=False, separators=(",", ":"))


def _message(spec: JobSpec, end: End, error: str | None) -> str:
    what = f"The job {spec.name!r}" if spec.name else "The job"
    happened = {"completed": "has completed", "failed": "has failed", "timed_out": "has not ended in time"}[end]
    outcome = f"{what} {happened}{': ' + error if error and end != 'completed' else '.'}"
    if not spec.message:
        return outcome
    # Whoever wrote the message thought of success.
    return spec.message if end == "completed" else f"{spec.message}\n\n{outcome}"


def _within_bounds(result: Any) -> tuple[Any, str | None]:
    """The result, or the beginning of it."""
    try:
        text = json.dumps(result, allow_nan=False, separators=(",", ":"))
    except (ValueError, TypeError, RecursionError):
        return None, _text(result)[:_PREVIEW_CHARACTERS]
    if len(text) <= MAX_RESULT_BYTES:
        return result, None
    shown = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    return None, shown[:_PREVIEW_CHARACTERS]


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - deeper than Python goes, or somebody's own object
        return "[unreadable]"
