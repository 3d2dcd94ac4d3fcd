"""Builds the events of the end of a job, or of one of its rounds, and the record that is kept of it."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from toolfleet_registry.contracts import ErrorCode, Message, Since, ToolCall
from toolfleet_registry.contracts.jobs import Job, JobSpec, WakeKind
from toolfleet_registry.policy.redaction import OUR_WORDS
from toolfleet_tasks.jobs.state_machine import EndedRound, JobPosition, Transition
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.ids import then_call_id, wake_root
from toolfleet_tasks.wakeups.events import MAX_RESULT_BYTES, bounded_wake, unfilled_places, wake_body

_THEN_SECONDS = 30 * 86_400  # after a job's deadline, which is not that of a call that its end makes
_LONGEST_ERROR = 2_000  # characters: a module's words may be among them
_NOT_KEPT = "The job has failed: what its tool has said is not kept, for its results are sensitive."


class EndNote(Message):
    """A job's end. A result over 64 kB is not kept. `delivery` is the id of the hook's request that has ended it."""

    ended_at: float
    result: Any = None
    error: str | None = None
    error_code: ErrorCode | None = None
    delivery: Annotated[str | None, Since(2)] = None


class ThenCall(Message):
    """A call that a job's end makes, as it waits to be published; sealed, so that only the fleet can name it or its caller."""

    call_id: str
    spec: JobSpec
    call: ToolCall


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One event of an end, sent once.

    `completion` is for an agent without HTTP, the others are as in `wakeups.scripts`.

    `body` is sealed; that of a call is JSON, in which the call is.
    """

    kind: Literal["continue", "notify", "call", "completion"]
    wake_id: str
    body: str
    conversation_id: str = ""


def end_note(spec: JobSpec, move: Transition, now: float) -> EndNote | None:
    """Return the record of the end, if the job is over."""
    if not move.is_over:
        return None
    if move.ended is None:  # cancelled, by its owner or, for a reason, by the fleet
        code: ErrorCode | None = "cancelled" if move.reason else None
        return EndNote(ended_at=round(now, 3), error=move.reason, error_code=code)
    ended = without_secrets(spec, move.ended)
    error = None if ended.error is None else ended.error[:_LONGEST_ERROR]
    kept = _kept(ended.result)
    kept = ended.shown if kept is None else kept
    return EndNote(ended_at=round(now, 3), result=kept, error=error, error_code=ended.error_code)


def end_events_of(
    spec: JobSpec, move: Transition, now: float, *, has_core: bool, seal: Callable[[str], str]
) -> Sequence[JobEvent]:
    """Return the events of a round's end or the job's, each once; `seal` signs texts that only the fleet may write.

    Without a core and a conversation's id, the events wait for a worker that knows of a core.
    """
    if move.ended is None:
        return ()
    ended = without_secrets(spec, move.ended)
    events, root, calls = dict[str, JobEvent](), wake_root(spec.job_id, move.round_step), 0
    for request in spec.on_complete:
        if isinstance(request, ToolCall):
            call_id = then_call_id(spec.job_id, calls, round_step=move.round_step)
            calls += 1
            if ended.state == "completed":
                call = _then(spec, call_id, _of_round(request, move.round_step), seal)
                events[call_id] = JobEvent("call", call_id, call)
            continue
        wake_id = root if request == "resume_conversation" else f"{root}.notify"
        if wake_id in events:  # requested twice, and sent once: a result of megabytes is not written again for it
            continue
        kind: WakeKind = "continue" if request == "resume_conversation" else "notify"
        wake_up = bounded_wake(
            spec,
            ended.state,
            kind=kind,
            wake_id=wake_id,
            at=round(now, 3),
            result=ended.result,
            shown=ended.shown,
            error=ended.error,
            error_code=ended.error_code,
            is_last_round=move.is_over and move.round_step is not None,
        )
        body, conversation_id = seal(wake_body(wake_up)), spec.conversation.conversation_id
        if has_core or conversation_id is None:
            events[wake_id] = JobEvent(kind, wake_id, body)
        else:
            events[wake_id] = JobEvent("completion", wake_id, body, conversation_id)
    return tuple(events.values())


def unfilled(spec: JobSpec, move: Transition) -> tuple[str, ...]:
    """Return the places of the message for which there is no value: they stay as they are."""
    if move.ended is None or all(isinstance(request, ToolCall) for request in spec.on_complete):
        return ()
    ended = without_secrets(spec, move.ended)
    return unfilled_places(spec, ended.state, ended.result)


def without_arguments(spec: JobSpec) -> JobSpec:
    """Return the kept part of a job that is over, without its arguments, which are no longer needed.

    Its hook stays: a request that comes twice is verified twice.
    """

    def bare(call: ToolCall) -> ToolCall:
        return ToolCall(tool_name=call.tool_name)

    nothing: dict[str, Any] = {"arguments": {}, "until": None, "failed_when": None}
    poll = None if spec.poll is None else spec.poll.model_copy(update=nothing)
    requests = tuple(bare(one) if isinstance(one, ToolCall) else one for one in spec.on_complete)
    start = None if spec.start is None else bare(spec.start)
    words: dict[str, Any] = {"message": None, "on_failure_message": None, "fills": False}
    return spec.model_copy(update={"start": start, "poll": poll, "on_complete": requests, **words})


def shown(spec: JobSpec, place: JobPosition, end: EndNote | None) -> Job:
    """Return a job as its creator sees it."""
    last = spec.poll or spec.start
    return Job(
        job_id=spec.job_id,
        state=place.state,
        name=spec.name,
        tool_name=None if last is None else last.tool_name,
        user_id=spec.user_id,
        conversation_id=spec.conversation.conversation_id,
        workflow_id=spec.workflow_id,
        schedule=spec.schedule,
        created_at=spec.created_at,
        deadline_at=spec.deadline_at,
        due_at=place.due_at,
        ended_at=None if end is None else end.ended_at,
        polls=max(place.step, 0),
        runs=None if spec.schedule is None or spec.schedule.max_runs is None else place.runs,
        result=None if end is None else end.result,
        error=None if end is None else end.error,
        error_code=None if end is None else end.error_code,
    )


def _then(spec: JobSpec, call_id: str, call: ToolCall, seal: Callable[[str], str]) -> str:
    # What the job itself was asked with does not belong to the call, which workers of earlier versions can read without it.
    alone = spec.model_copy(
        update={
            "start": None,
            "poll": None,
            "on_complete": (),
            "message": None,
            "on_failure_message": None,
            "fills": False,
            "schedule": None,
            "workflow_id": None,
            "hook": None,
            "deadline_at": spec.deadline_at + _THEN_SECONDS,
        }
    )
    text = seal(json_text.dump(ThenCall(call_id=call_id, spec=alone, call=call)))
    body: dict[str, str | bool] = {"job_id": spec.job_id, "step": call_id, "tool_name": call.tool_name, "call": text}
    if call.tool_name in spec.secret_tools:
        body["is_secret"] = True
    return json.dumps(body, separators=(",", ":"))


def _of_round(call: ToolCall, round_step: int | None) -> ToolCall:
    """Return the call as one round makes it: with a key of that round, since the next round's call would count as a repeat."""
    if round_step is None or not call.idempotency_key:
        return call
    return call.model_copy(update={"idempotency_key": f"{call.idempotency_key}:{round_step}"})


def without_secrets(spec: JobSpec, ended: EndedRound) -> EndedRound:
    """Return the end without the results and messages of tools with sensitive results."""
    if not spec.hides_results:
        return ended
    is_ours = ended.error is None or ended.error_code in OUR_WORDS
    return EndedRound(ended.state, None, ended.error if is_ours else _NOT_KEPT, ended.error_code)


def _kept(result: Any) -> Any:
    try:
        return result if len(json.dumps(result, allow_nan=False)) <= MAX_RESULT_BYTES else None
    except (ValueError, TypeError, RecursionError):
        return None
