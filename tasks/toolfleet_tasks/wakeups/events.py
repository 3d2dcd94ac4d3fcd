"""Words what a conversation learns of a job's end, small enough to be kept and sent."""

import json
from typing import Any, Final, Literal

from toolfleet_registry.contracts import ErrorCode
from toolfleet_registry.contracts.jobs import JobSpec, WakeKind, WakeUp
from toolfleet_registry.errors import MessageRefused
from toolfleet_tasks.messages.signing import Seal
from toolfleet_tasks.wakeups.placeholders import filled_in

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
    kind: WakeKind = "continue",
    wake_id: str,
    at: float,
    result: Any = None,
    error: str | None = None,
    error_code: ErrorCode | None = None,
    is_last_round: bool = False,
) -> WakeUp:
    """The news of a job, or a round of one, that ended at `at` (seconds since the epoch). `result` is its last poll's. Never fails.

    Told in the job's own message, filled in, and with what went wrong if it did not complete. Of a result over 64 kB, or one
    that is no JSON, only the beginning is told.
    """
    error = error if error is None else _text(error)[:_LONGEST_ERROR]
    conversation, last = spec.conversation, spec.poll or spec.start
    kept, preview = _within_bounds(result)
    return WakeUp(
        type=_TYPES[end],
        kind=kind,
        wake_id=wake_id,
        job_id=spec.job_id,
        timestamp=at,
        conversation_id=conversation.conversation_id,
        user_id=spec.user_id,
        platform=conversation.platform,
        platform_channel_id=conversation.platform_channel_id,
        platform_thread_id=conversation.platform_thread_id,
        message=_message(spec, end, result, error, is_last_round=is_last_round),
        name=spec.name,
        tool_name=None if last is None else last.tool_name,
        result=kept,
        result_preview=preview,
        is_truncated=preview is not None,
        error=error,
        error_code=error_code,
    )


def wake_body(wake: WakeUp) -> str:
    """Return a wake-up as it is kept and sent: ASCII JSON with every field, for readers in any language."""
    return json.dumps(dict(wake), allow_nan=False, separators=(",", ":"))


def opened_wake(body: str, seal: Seal, *, wake_id: str, kind: str) -> str:
    """The news as they are sent. Raises `MessageRefused` if they are not the fleet's, or other news than these."""
    text = seal.read(body)
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict) or (read.get("wake_id"), read.get("kind", "continue")) != (wake_id, kind):
        raise MessageRefused("The news cannot be read, or are other news.")
    return text


def unfilled_places(spec: JobSpec, end: End, result: Any) -> tuple[str, ...]:
    """The places of the message that this end tells, for which there is nothing: they stay as they stand."""
    return _filled(spec, end, result)[1]


def _message(spec: JobSpec, end: End, result: Any, error: str | None, *, is_last_round: bool) -> str:
    what = f"The job {spec.name!r}" if spec.name else "The job"
    happened = {"completed": "has completed", "failed": "has failed", "timed_out": "has not ended in time"}[end]
    why = (error or "").removeprefix("The job has failed: ").removeprefix("The job has timed out: ")
    outcome = f"{what} {happened}{': ' + why if why and end != 'completed' else '.'}"
    own, _ = _filled(spec, end, result)
    parts = [own] if own else []
    if end != "completed" or not parts:  # the message was written for success
        parts.append(outcome)
    if is_last_round:  # a user who was told of a round expects the next one
        parts.append("The job is over: no further round follows.")
    recurs = spec.schedule is not None and spec.schedule.cron is not None
    if spec.workflow_id is not None and end != "completed" and not recurs:  # a round that failed ends nothing else
        parts.append(f"The other jobs of its workflow {spec.workflow_id!r} that have not ended are cancelled.")
    if spec.hides_results:
        parts.append("Its result is not told here: its tool's results are sensitive, and not kept.")
    return "\n\n".join(parts)


def _filled(spec: JobSpec, end: End, result: Any) -> tuple[str, tuple[str, ...]]:
    """The job's own message for such an end, and what of it could not be filled in."""
    own = (spec.on_failure_message if end != "completed" else None) or spec.message or ""
    if not spec.fills:
        return own, ()
    brings_one = end == "completed" and (spec.poll or spec.start) is not None
    has_result = result is not None or brings_one
    return filled_in(own, spec.job_id, result, has_result=has_result, is_hidden=spec.hides_results)


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
    except Exception:  # noqa: BLE001 - deeper than Python goes, or a user's own object
        return "[unreadable]"
