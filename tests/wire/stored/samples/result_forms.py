"""Defines samples of what is stored of calls that have begun or ended, and of what a conversation is told of a job's end."""

from typing import Any

from toolfleet_registry.contracts import Audit, ResultFile, ToolResult
from toolfleet_registry.contracts.artifacts import ArtifactRecord
from toolfleet_registry.contracts.calls import DeadAttempt, DeadLetter, ResultArtifact
from toolfleet_registry.contracts.jobs import WakeUp
from toolfleet_tasks.calls.begun_calls import BegunCall
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.wakeups.events import wake_body
from wire.stored.samples.approval_forms import CALL
from wire.stored.samples.forms import StoredForm, message_form, sealing
from wire.stored.samples.job_forms import ADA, AT, PLAIN_ADA

_AUDIT = Audit(
    call_id="call-1", tool="owls.echo", ts=AT, attempts=2, queued_ms=1.5, duration_ms=20.0, worker="worker@host"
)
_FAILED = ToolResult(
    tool_name="owls.echo",
    success=False,
    result={"text": "tu-whit ✓"},
    error="The module said no.",
    error_code="rate_limited",
    retryable=True,
    retry_after_seconds=5.0,
    effect_state="none",
    hint="Wait.",
    audit=_AUDIT,
)
_DONE = ToolResult(
    tool_name="owls.echo",
    success=True,
    result="image 1",
    effect_state="done",
    files=(ResultFile(kind="image", media_type="image/png", data="iVBORw0KGgo=", name="owl.png"),),
)
_KEPT = _DONE.model_copy(
    update={
        "artifacts": (
            ResultArtifact(id="call-1.1.0", place="/files/0", media_type="image/png", size=8, sha256="0" * 64),
        )
    }
)
_ARTIFACT = ArtifactRecord(
    id="call-1.1.0",
    owner="1" * 64,
    tool_name="owls.echo",
    call_id="call-1",
    media_type="image/png",
    size=8,
    sha256="0" * 64,
    made_at=AT,
    expires_at=AT + 86_400,
)
_LETTER: dict[str, Any] = {
    "call_id": "call-1",
    "tool_name": "owls.echo",
    "arguments": {"text": "✓"},
    "is_redacted": True,
    "user_id": "ada",
    "effect": "once",
    "error_code": "outcome_unknown",
    "reason": "Nobody knows.",
    "attempts": (DeadAttempt(attempt=1, outcome="unknown", ms=3.5),),
    "published_at": AT,
    "died_at": AT + 9,
    "idempotency_key": "once",
    "replay_of": "call-0",
}
_BEGUN: dict[str, Any] = {
    "call_id": "call-1",
    "owner": "key k1",
    "tool_name": "owls.echo",
    "user_id": "ada",
    "effect": "read",
    "lane": "fast",
    "limit_seconds": 30.0,
    "published_at": AT,
    "deadline_at": AT + 60,
    "idempotency_key": "once",
    "hides_results": True,
    "data_id": "d-1",
    "is_guest": True,
}
_WAKE = WakeUp(
    type="job.failed",
    kind="notify",
    wake_id="job-1.notify",
    job_id="job-1",
    timestamp=AT,
    conversation_id="c-1",
    user_id="ada",
    platform="chat",
    platform_channel_id="channel",
    platform_thread_id="thread",
    message="The job has failed.",
    name="a report",
    tool_name="works.state",
    result={"id": 1},
    result_preview='{"id"',
    is_truncated=True,
    error="The module said no.",
    error_code="module_error",
)

RESULT_FORMS: tuple[StoredForm, ...] = (
    message_form(
        "result",
        {"plain": _FAILED, "files": _DONE, "kept": _KEPT, "filled": _FAILED.model_copy(update={"ends_run": True})},
    ),
    message_form("artifact", {"plain": _ARTIFACT}),
    message_form(
        "dead letter",
        {
            "plain": DeadLetter(**_LETTER, caller=PLAIN_ADA),
            "filled": DeadLetter(**_LETTER, caller=ADA, context=CALL.context, tool_version="1.2", asked_by=("key k1",)),
        },
    ),
    message_form(
        "begun call",
        {"plain": BegunCall(**_BEGUN, caller=PLAIN_ADA), "filled": BegunCall(**_BEGUN, caller=ADA, log_level="info")},
    ),
    StoredForm(
        "wake-up",
        {"plain": _WAKE},
        wake_body,
        lambda text: json_text.load(WakeUp, text),
        "refused",
        sealing("job"),
    ),
)
