"""What becomes of a call's message that is not run now: refused, too late, or put off because others have the call."""

import random
from typing import NoReturn

import structlog
from celery import Task
from celery.exceptions import Ignore, Reject

from toolfleet_registry.contracts import PublishedCall
from toolfleet_tasks import endings
from toolfleet_tasks.ledger import Ledger, NotClaimed
from toolfleet_tasks.line import LineClosed, LineLost
from toolfleet_tasks.second_attempt import publish_again

log = structlog.get_logger(__name__)

_FULL_SECONDS = 0.5  # until a call comes back whose module is at work on as many as it may be


async def refuse(task: Task, ledger: Ledger, reason: str) -> str:
    """End a call whose message is not what its caller sent; the true one, if it has been here, is left alone."""
    log.error("message_refused", call_id=task.request.id, reason=reason)
    tool_name = task.request.shadow or ""
    ended = await ledger.refuse(task.request.id, endings.message_refused(tool_name, reason))
    if ended is None:
        raise Ignore
    return ended


async def end_at_deadline(task: Task, ledger: Ledger, call: PublishedCall) -> str:
    """End a call that has come too late. One that was delivered before may have had a record, which Redis has lost."""
    trust = not (task.request.delivery_info or {}).get("redelivered")
    while True:
        try:
            return await ledger.end(call, endings.at_deadline(call), trust_absence=trust)
        except LineLost as exc:
            trust = False
            if isinstance(exc, LineClosed):
                raise
            await ledger.connected()


async def put_off(task: Task, call: PublishedCall, answer: NotClaimed) -> NoReturn:
    """Have a call come back that cannot be run now."""
    # Jittered, for all those that wait for the same thing; not longer than the broker holds a message.
    delay = (answer.rest_seconds or _FULL_SECONDS) + random.random() * _FULL_SECONDS  # noqa: S311 - spreads load
    delay = min(delay, task.app.settings.lease_seconds / 2)
    log.info("tool_call_put_off", call_id=call.call_id, tool=call.tool_name, reason=answer.reason, delay=delay)
    try:
        await publish_again(task, delay, retries=task.request.retries)
    except Exception as exc:  # PublishUnconfirmed among them: a second message of a call does no harm
        log.warning("call_not_put_off", call_id=call.call_id, error=str(exc))
        raise Reject(requeue=True) from exc
    raise Ignore
