"""The task that runs one call: time left, one attempt, perhaps the one retry, exactly one result."""

import time

import structlog
from celery import Celery, Task
from celery.exceptions import Retry, SoftTimeLimitExceeded

from toolfleet_registry.contracts import Audit, EffectState, PublishedCall, ToolResult
from toolfleet_registry.errors import NotPublished
from toolfleet_registry.outcomes import Attempt, Outcome
from toolfleet_tasks import endings, wire
from toolfleet_tasks.bridge import bridged
from toolfleet_tasks.envelope import TASK
from toolfleet_tasks.ports import Runner
from toolfleet_tasks.retry import MAX_ATTEMPTS, combined, retry_delay, settled
from toolfleet_tasks.second_attempt import publish_again

log = structlog.get_logger(__name__)


def register(app: Celery) -> None:
    """Give the app the task: acked when its result is stored, tried at most twice, limits from the message."""
    app.task(name=TASK, bind=True, acks_late=True, max_retries=MAX_ATTEMPTS - 1)(_body)


@bridged
async def _body(task: Task, message: str) -> str:
    call = wire.load(PublishedCall, message)
    so_far = _effect_so_far(task, call)
    started_at = time.time()
    attempt = await _attempt(task, call)
    result = settled(attempt, call.effect, so_far)
    delay = retry_delay(
        attempt,
        call.effect,
        attempts=task.request.retries + 1,
        seconds_left=call.deadline_at - time.time(),
        longest=task.app.settings.lease_seconds / 2,
    )
    if delay is not None:
        log.info("tool_call_retried", call_id=call.call_id, tool=call.tool_name, outcome=attempt.outcome, delay=delay)
        again = call.model_copy(update={"effect_so_far": combined(so_far, attempt.result.effect_state)})
        result = await _retry(task, again, delay, result)
    return wire.dump(result.model_copy(update={"audit": _audit(task, call, started_at)}))


def _effect_so_far(task: Task, call: PublishedCall) -> EffectState:
    """What may have happened before this delivery: of one that the broker took for lost, nobody knows."""
    redelivered = (task.request.delivery_info or {}).get("redelivered")
    return "unknown" if redelivered else call.effect_so_far


async def _attempt(task: Task, call: PublishedCall) -> Attempt:
    """One attempt within the limit and the time left. The one place that words a limit."""
    seconds = min(call.limit_seconds, call.deadline_at - time.time())
    if seconds <= 0:
        return Attempt(Outcome.PERMANENT, endings.expired(call.tool_name))
    try:
        runner: Runner = task.app.runner
        return await runner.run(call, seconds=seconds)
    except (TimeoutError, SoftTimeLimitExceeded):
        return Attempt(Outcome.UNKNOWN, endings.timed_out(call.tool_name, seconds))


async def _retry(task: Task, call: PublishedCall, delay: float, result: ToolResult) -> ToolResult:
    """Publish the call again and raise `Retry`.

    Where that fails, returns how the call ends instead: with the first attempt's `result` if the message was surely
    not sent, else as unknown, for the retry may be in the queue and run.
    """
    try:
        await publish_again(task, call, delay)
    except NotPublished as exc:
        log.warning("retry_not_published", call_id=call.call_id, tool=call.tool_name, error=str(exc))
        return result
    except Exception as exc:  # noqa: BLE001 - PublishUnconfirmed, and our own soft limit
        log.warning("retry_not_confirmed", call_id=call.call_id, tool=call.tool_name, error=str(exc))
        return endings.outcome_unknown(call.tool_name, "the queue did not confirm its retry.")
    raise Retry(result.error, when=delay)


def _audit(task: Task, call: PublishedCall, started_at: float) -> Audit:
    now, request = time.time(), task.request
    return Audit(
        call_id=call.call_id,
        tool=call.tool_name,
        ts=now,
        attempts=request.retries + 1,
        queued_ms=round(max(started_at - call.published_at, 0) * 1000, 1),  # an agent's clock may be ahead of ours
        duration_ms=round((now - started_at) * 1000, 1),
        worker=request.hostname,
    )
