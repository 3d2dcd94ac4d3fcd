"""The task that runs one call: time left, one attempt, perhaps the one retry, exactly one result."""

import asyncio
import time
from typing import Any, NoReturn

import structlog
from celery import Celery, Task
from celery.exceptions import Retry, SoftTimeLimitExceeded

from toolfleet_registry.contracts import Audit, PublishedCall, ToolResult
from toolfleet_registry.outcomes import Attempt, Outcome
from toolfleet_tasks import endings, wire
from toolfleet_tasks.bridge import bridged
from toolfleet_tasks.ports import Runner
from toolfleet_tasks.retry import MAX_ATTEMPTS, is_repeatable, retry_delay

TASK = "toolfleet.execute"

log = structlog.get_logger(__name__)


def register(app: Celery) -> None:
    """Give the app the task: acked when its result is stored, tried at most twice, limits from the message."""
    app.task(name=TASK, bind=True, acks_late=True, max_retries=MAX_ATTEMPTS - 1)(_body)


@bridged
async def _body(task: Task, message: str) -> str:
    call = wire.load(PublishedCall, message)
    started_at = time.time()
    attempt = await _attempt(task, call)
    delay = retry_delay(
        attempt,
        call.effect,
        attempts=task.request.retries + 1,
        seconds_left=call.deadline_at - time.time(),
        longest=task.app.settings.visibility_timeout / 2,
    )
    if delay is not None and await _is_republished(task, delay):
        _retry(call, attempt, delay)
    return wire.dump(_final(task, call, attempt, started_at))


async def _attempt(task: Task, call: PublishedCall) -> Attempt:
    """One attempt within the limit and the time left. The one place that words a limit."""
    seconds = min(call.limit_seconds, call.deadline_at - time.time())
    if seconds <= 0:
        ending = endings.expired_again if _may_have_begun(task) else endings.expired
        return Attempt(Outcome.PERMANENT, ending(call.tool_name))
    try:
        runner: Runner = task.app.runner
        return await runner.run(call, seconds=seconds)
    except (TimeoutError, SoftTimeLimitExceeded):
        return Attempt(Outcome.UNKNOWN, endings.timed_out(call.tool_name, seconds))


def _may_have_begun(task: Task) -> bool:
    """Whether another attempt came before this one: our own retry, or a delivery that the broker took for lost."""
    return bool(task.request.retries or (task.request.delivery_info or {}).get("redelivered"))


async def _is_republished(task: Task, delay: float) -> bool:
    """Publish the retry, in a thread, as kombu would block the loop. If that fails, the first attempt's end stands."""
    again: Any = task.signature_from_request(
        countdown=delay, retries=task.request.retries + 1, argsrepr=task.request.argsrepr, kwargsrepr="{}"
    )
    try:
        await asyncio.to_thread(again.apply_async)
    except Exception as exc:  # noqa: BLE001 - whatever kombu and its transports raise
        log.warning("retry_not_published", error=str(exc))
        return False
    return True


def _retry(call: PublishedCall, attempt: Attempt, delay: float) -> NoReturn:
    log.info("tool_call_retried", call_id=call.call_id, tool=call.tool_name, outcome=attempt.outcome, delay=delay)
    raise Retry(attempt.result.error, when=delay)


def _final(task: Task, call: PublishedCall, attempt: Attempt, started_at: float) -> ToolResult:
    now = time.time()
    audit = Audit(
        call_id=call.call_id,
        tool=call.tool_name,
        ts=now,
        attempts=task.request.retries + 1,
        queued_ms=round((started_at - call.published_at) * 1000, 1),
        duration_ms=round((now - started_at) * 1000, 1),
        worker=task.request.hostname,
    )
    repeatable = attempt.result.retryable or is_repeatable(attempt, call.effect)
    return attempt.result.model_copy(update={"audit": audit, "retryable": repeatable})
