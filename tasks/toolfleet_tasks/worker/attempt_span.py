"""Surrounds an attempt in a worker with its CONSUMER span: a child of the message's, with links to earlier attempts."""

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore, Reject, Retry

from toolfleet_registry import spans
from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.spans import OpenSpan, Started, TraceContext, Tracing, attempt_span_id, carry
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks.ledger.claims import Claim
from toolfleet_tasks.queues import queue_for
from toolfleet_tasks.tracing import message_attributes, system_of, trace_of
from toolfleet_tasks.worker.running_task import RunningTask

if TYPE_CHECKING:
    from toolfleet_tasks.worker.execute import Execution


def processed(task: RunningTask, claim: Claim, execution: "Execution") -> Coroutine[Any, Any, str]:
    """Run a claimed call of `task` in the span of its attempt, or directly if it is not recorded."""
    parent = trace_of(task.request.get)
    place = task.app.tracing.unrecorded(parent)
    if place is None:
        return _recorded(task, claim, execution, parent)
    carry(place)  # for good: each call has a context of its own
    return execution.run()


async def _recorded(task: RunningTask, claim: Claim, execution: "Execution", parent: TraceContext | None) -> str:
    tracing, request = task.app.tracing, task.request
    started = _start(tracing, request, claim, parent, system_of(task.app.settings.broker))
    with tracing.within(started):
        if isinstance(started, TraceContext):
            return await execution.run()
        try:
            return await execution.run()
        except Retry:
            raise
        except (Ignore, Reject):
            _go_on(started, execution)
            raise
        except BaseException as exc:
            started.fail(type(exc).__name__)
            raise
        finally:
            _say(started, execution.came_to)
            started.end()


def _start(tracing: Tracing, request: Any, claim: Claim, parent: TraceContext | None, system: str) -> Started:
    call = claim.call
    queue, is_attempt = queue_for(call), claim.granted == "go"
    own_id = attempt_span_id(call.call_id, claim.attempts) if is_attempt else 0
    started = tracing.start(
        spans.process_name(queue),
        "consumer",
        {
            spans.MESSAGING_SYSTEM: system,
            spans.MESSAGING_OPERATION_NAME: "process",
            spans.MESSAGING_OPERATION_TYPE: "process",
            spans.MESSAGING_DESTINATION: queue,
        },
        parent=parent,
        links=_links(tracing, claim, parent),
        span_id=own_id,
    )
    if not isinstance(started, TraceContext):
        started.note(message_attributes(call))
        started.note(
            {
                spans.MESSAGING_CLIENT_ID: getattr(request, "hostname", None),
                spans.GEN_AI_TOOL_NAME: call.tool_name,
                spans.ATTEMPT: claim.attempts,
                spans.FENCING_TOKEN: claim.token,
                spans.GRANTED: claim.granted,
                spans.QUEUED_SECONDS: round(max(fleet_clock.now() - call.published_at, 0), 6),
            }
        )
    return started


def _links(tracing: Tracing, claim: Claim, parent: TraceContext | None) -> list[tuple[TraceContext, str]]:
    """Return links to the message's creation, and to the attempt before: one that was retried, or whose worker has died, or that continues."""
    if parent is None:
        return []
    links = [(parent, "creation")]
    earlier = claim.attempts - (claim.granted == "go")
    if earlier > 0 and tracing.has_attempt_ids:
        is_lost = claim.granted not in {"go", "accepted"} or f"{earlier} never_closed" in claim.log
        word = "accepted_attempt" if claim.granted == "accepted" else "lost_attempt" if is_lost else "retried_attempt"
        links.append((parent.at(attempt_span_id(claim.call.call_id, earlier)), word))
    return links


def _go_on(span: OpenSpan, execution: "Execution") -> None:
    """Note the state of an attempt without an end here: another worker has the call, or its module continues it, or asks."""
    if execution.came_to is None:
        span.note({spans.EFFECT_STATE: "unknown"})


def _say(span: OpenSpan, result: ToolResult | None) -> None:
    if result is None:
        return
    span.note({spans.EFFECT_STATE: result.effect_state})
    if not result.success:
        span.fail(result.error_code or spans.OTHER_ERROR)
