"""Handles messages that are not executed: rejected, expired, or requeued because another worker holds the claim."""

import asyncio
import math
from typing import NoReturn, TypeAlias

from celery.exceptions import Ignore, Reject

from toolfleet_registry.contracts import PublishedCall, Terms, ToolResult
from toolfleet_registry.errors import MessageRefused, ToolNotKnown
from toolfleet_registry.system import randomness
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.time import fleet_clock
from toolfleet_tasks.ledger.ledger import ANY_DATA, Ledger, NotClaimed
from toolfleet_tasks.ledger.retry import MOST_DEATHS
from toolfleet_tasks.messages import fleet_results, json_text
from toolfleet_tasks.presence.fleet_versions import live_workers
from toolfleet_tasks.queues import lane_of, queue_of
from toolfleet_tasks.redis.connection import RedisConnectionClosed, RedisConnectionLost
from toolfleet_tasks.results import stored as results
from toolfleet_tasks.transport.quarantine import quarantine
from toolfleet_tasks.worker.accepted import recall
from toolfleet_tasks.worker.republish import publish_again
from toolfleet_tasks.worker.running_task import RunningTask

Known: TypeAlias = Terms | ToolResult | None
"""What a worker knows of a tool's terms, or how a call ends of whose tool nobody knows anything."""

log = get_logger(__name__)

_NEWER_SECONDS = 0.2  # until a call comes back that another worker is to have, of several perhaps
_FULL_SECONDS = 0.5  # until a call comes back whose module is at work on as many as it may be
_PAUSED_SECONDS = 0.2  # until a worker hears, most often, that a queue is paused from which it takes calls
_BEFORE_DEADLINE_SECONDS = 1.0  # a call that comes back so early still gets an answer of ours
_SHORTEST_WAIT_SECONDS = 0.2
_BRIEF = frozenset({"away", "early", "queued"})  # reasons for which a call may come again and again


async def turn_away(task: RunningTask, ledger: Ledger, why: MessageRefused | json_text.NewerMessage) -> str:
    """End a call whose message this worker cannot open, or leave it to others."""
    if isinstance(why, MessageRefused):
        return await refuse(task, ledger, why)
    return await leave_to_newer(task, ledger, why)


async def unclaimed(
    task: RunningTask, ledger: Ledger, call: PublishedCall, answer: NotClaimed, *, deaths: int | None
) -> str:
    """Return what is stored of a call that has ended; any other comes back."""
    if answer.reason != "done":
        await put_off(task, call, answer)
    await recall(task, ledger, call)
    if deaths is not None and deaths >= MOST_DEATHS:
        await bury(ledger, call, answer.result)
    return answer.result


async def refuse(task: RunningTask, ledger: Ledger, why: MessageRefused) -> str:
    """End a call whose message is not one that its agent may have sent; the true one, if it has been here, is left alone."""
    log.error("message_refused", call_id=task.request.id, reason=str(why))
    ended = await ledger.refuse(task.request.id, fleet_results.message_refused(task.request.shadow or "", why))
    if ended is None:
        raise Ignore
    return ended


async def end_at_deadline(task: RunningTask, ledger: Ledger, call: PublishedCall) -> str:
    """End a call that has come too late. One that was delivered, or tried, before may have had a record, which Redis has lost."""
    is_first = not (task.request.retries or (task.request.delivery_info or {}).get("redelivered"))
    data_id = ANY_DATA if is_first else ""
    while True:
        try:
            ended = await ledger.end(call, fleet_results.at_deadline(call), data_id=data_id)
        except RedisConnectionLost as exc:
            data_id = ""
            if isinstance(exc, RedisConnectionClosed):
                raise
            await ledger.connected()
        else:
            await recall(task, ledger, call)
            return ended


async def bury(ledger: Ledger, call: PublishedCall, stored: str) -> None:
    """Keep a dead letter of a call with which two workers have died, and which has ended meanwhile, without success."""
    result = results.read_stored(stored, call.tool_name) if stored else None
    if result is not None and not result.success:
        await ledger.bury(call, fleet_results.workers_died(call.tool_name, result.effect_state))


async def leave_to_newer(task: RunningTask, ledger: Ledger, newer: json_text.NewerMessage) -> str:
    """Have a call come back for a worker of a newer version, or end it, and keep its message, if there is none."""
    settings, call_id, queue = task.app.settings, task.request.id, task.request.delivery_info["routing_key"]
    lane = lane_of(queue.removeprefix(queue_of("")), task.app.modules.settings)
    workers = await live_workers(settings, lane)
    if any(worker.version > json_text.VERSION for worker in workers):
        await _again(task, _NEWER_SECONDS, call_id=call_id, tool=task.request.shadow, reason=str(newer))
    log.error("message_too_new", call_id=call_id, queue=queue, reason=str(newer))
    await quarantine(settings, queue, str(newer), str(task.request.args[0]))
    ended = await ledger.refuse(call_id, fleet_results.message_too_new(task.request.shadow or "", str(newer)))
    if ended is None:
        raise Ignore
    return ended


async def put_off(task: RunningTask, call: PublishedCall, answer: NotClaimed) -> NoReturn:
    """Have a call come back that cannot be run now. A message that another one has replaced is dropped."""
    if answer.reason == "stale":
        log.info("tool_call_message_stale", call_id=call.call_id, tool=call.tool_name)
        raise Ignore
    if answer.reason == "paused":
        await _leave(call)
    seconds = answer.rest_seconds or _FULL_SECONDS
    await _again(task, seconds, call_id=call.call_id, tool=call.tool_name, reason=answer.reason)


async def _leave(call: PublishedCall) -> NoReturn:
    """Leave a call in its queue, where it stood, which an operator has paused. It comes back at once where a worker has not heard of that."""
    log.debug("tool_call_put_off", call_id=call.call_id, tool=call.tool_name, reason="paused")
    await asyncio.sleep(_PAUSED_SECONDS)
    raise Reject(requeue=True)


async def known_terms(task: RunningTask, call: PublishedCall) -> Known:
    """What the worker knows of the terms of a call's tool. Where it knows nothing, the call comes back, and is no attempt.

    It does within its deadline, the last time just before it. Then the result is the end of the call.
    """
    try:
        terms: Terms | None = await task.app.runner.terms(call)
    except ToolNotKnown as exc:
        most = call.deadline_at - fleet_clock.now() - _BEFORE_DEADLINE_SECONDS
        if most >= _SHORTEST_WAIT_SECONDS:
            name = call.tool_name
            await _again(task, exc.seconds, call_id=call.call_id, tool=name, reason="not_known", most=most)
        return fleet_results.not_known(call.tool_name, exc.seconds)
    return terms


async def _again(
    task: RunningTask, seconds: float, *, call_id: str, tool: str | None, reason: str, most: float = math.inf
) -> NoReturn:
    # Jittered, for all those that wait for the same thing; not longer than the broker holds a message.
    # What waits briefly comes again and again, perhaps: nobody wants to read that.
    tell = log.debug if reason in _BRIEF else log.info
    jitter = randomness.random() * min(seconds, _FULL_SECONDS)  # spreads load
    delay = min(seconds + jitter, most, task.app.settings.lease_seconds / 2)
    tell("tool_call_put_off", call_id=call_id, tool=tool, reason=reason, delay=delay)
    try:
        await publish_again(task, delay, retries=task.request.retries)
    except Exception as exc:  # PublishUnconfirmed among them: a second message of a call does no harm
        log.warning("call_not_put_off", call_id=call_id, error=str(exc))
        raise Reject(requeue=True) from exc
    raise Ignore
