"""Defines samples of jobs' records: what a job is to do, where it is, how it ended, and the call that its end makes."""

from typing import Any

from toolfleet_registry.contracts import Caller, Conversation, ToolCall
from toolfleet_registry.contracts.jobs import HookSpec, JobSpec, Poll, Schedule
from toolfleet_tasks.jobs.completion import EndNote, ThenCall
from toolfleet_tasks.jobs.state_machine import JobPosition
from wire.stored.samples.forms import StoredForm, message_form, sealing

AT = 4_100_000_000.0
ADA = Caller(user_id="ada", permission="owner", allowed_modules="*", agent="production/research")
ASKED_BY = ("key k2", "user dave")
PLAIN_ADA = Caller(user_id="ada", permission="owner", allowed_modules=frozenset({"works"}))
WHERE = Conversation(
    conversation_id="c-1",
    platform="chat",
    platform_channel_id="channel",
    platform_thread_id="thread",
    run_id="r-1",
)
CALL = ToolCall(
    tool_name="works.begin",
    arguments={"text": "tu-whit ✓"},
    user_id="ada",
    idempotency_key="once",
    tool_version="1.2",
    takes_input=True,
    log_level="info",
)
_PLAIN_CALL = ToolCall(tool_name="works.begin", arguments={"text": "tu-whit ✓", "nothing": None}, idempotency_key="k")
_POLL: dict[str, Any] = {
    "tool_name": "works.state",
    "arguments": {"id": {"$from": "task.id"}},
    "interval_seconds": 5.0,
    "backoff": 1.5,
    "longest_interval_seconds": 60.0,
    "until": {"status": ["over"]},
    "failed_when": None,
    "max_seconds": 900.0,
}
_MADE: dict[str, Any] = {"job_id": "job-1", "user_id": "ada", "created_at": AT, "deadline_at": AT + 3600}
_PLAIN = JobSpec(
    **_MADE,
    caller=PLAIN_ADA,
    conversation=Conversation(conversation_id="c-1", platform="chat"),
    name="a report",
    message="It is there.",
    start=_PLAIN_CALL,
    poll=Poll(**_POLL),
    schedule=Schedule(at=AT + 60, timezone="Europe/Berlin"),
    on_complete=("notify", _PLAIN_CALL),
    gated=("0" * 64,),
    hides_results=True,
    secret_tools=("works.begin",),
    wish="1" * 64,
)
_FILLED = _PLAIN.model_copy(
    update={
        "caller": ADA,
        "conversation": WHERE,
        "start": CALL,
        "poll": Poll(**_POLL, tool_version="3"),
        "schedule": Schedule(cron="0 8 * * *", max_runs=3),
        "on_failure_message": "It is not there: {error}",
        "fills": True,
        "workflow_id": "w-1",
        "traceparent": f"00-{'a' * 32}-{'b' * 16}-01",
        "tracestate": "owls=1",
        "asked_by": ASKED_BY,
    }
)
_HOOKED = JobSpec(
    **_MADE,
    caller=PLAIN_ADA,
    hook=HookSpec(secrets=("whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz",)),
    schedule=Schedule(delay_seconds=30),
)
_NAMED = _HOOKED.model_copy(
    update={"hook": HookSpec(secrets=("whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz",), requires_job_id=True)}
)
_PLAIN_POSITION = JobPosition(
    state="polling",
    step=3,
    first=1,
    faults=1,
    due_at=AT,
    call_until=AT + 30,
    call_id="call-1",
    poll_until=AT + 900,
    missing="status",
    by="0a1b2c3d",
)
_PLAIN_END = EndNote(ended_at=AT, result={"id": [1, None]}, error="The module said no.", error_code="module_error")
_ALONE = JobSpec(**_MADE, caller=PLAIN_ADA)

JOB_FORMS: tuple[StoredForm, ...] = (
    message_form(
        "job",
        {"plain": _PLAIN, "filled": _FILLED, "hooked": _HOOKED, "named": _NAMED, "reminder": _ALONE},
        seal=sealing("job"),
    ),
    message_form("job position", {"plain": _PLAIN_POSITION, "filled": _PLAIN_POSITION.model_copy(update={"runs": 2})}),
    message_form("job end", {"plain": _PLAIN_END, "filled": _PLAIN_END.model_copy(update={"delivery": "msg-1"})}),
    message_form(
        "call after a job",
        {
            "plain": ThenCall(call_id="call-2", spec=_ALONE, call=_PLAIN_CALL),
            "filled": ThenCall(call_id="call-2", spec=_ALONE, call=CALL),
        },
        seal=sealing("job"),
    ),
)
