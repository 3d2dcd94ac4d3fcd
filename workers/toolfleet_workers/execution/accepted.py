"""Follows calls that their modules go on with by themselves, or ask something about: they wait on without a slot."""

import asyncio
import contextlib
from typing import Any, NamedTuple

from celery.exceptions import Ignore, Reject

from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.contracts.attempts import (
    Attempt,
    Outcome,
    Question,
    Standing,
    StatusMissing,
    StillAtWork,
    UnboundedLease,
)
from toolfleet_registry.contracts.call_context import report_to
from toolfleet_registry.contracts.calls import MOST_RETRIES
from toolfleet_registry.errors import FleetError
from toolfleet_registry.system import fleet_clock
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.ledger.claims import AcceptedAttempt, Claim, Granted
from toolfleet_tasks.ledger.ledger import Ledger
from toolfleet_tasks.ledger.parameters import Ended, heard
from toolfleet_tasks.ledger.retry import MAX_ATTEMPTS
from toolfleet_tasks.ledger.waiting import CallEnded, NotEndedYet
from toolfleet_tasks.messages import fleet_results
from toolfleet_tasks.messages.envelope import TASK, opened, usual_text
from toolfleet_tasks.redis_connection import RedisConnectionLost
from toolfleet_tasks.scripts import END_CHECK_SECONDS
from toolfleet_tasks.turns import WorkerTurns
from toolfleet_tasks.worker_runtime import RunningTask
from toolfleet_workers.execution.attempt_reports import Reports
from toolfleet_workers.execution.health_checks import checks_of
from toolfleet_workers.execution.running_task import ledger_of, publish_again

log = get_logger(__name__)

_RETRIES = MOST_RETRIES + 1  # where a profile may have given a call more than one
_STATUS_SECONDS = 5.0  # for a module to say where a call is
_CANCEL_SECONDS = 3.0  # for a module to learn that a call is cancelled; it is not waited for
_OVER_PAUSES = (
    0.5,
    1.0,
    2.0,
    4.0,
    8.0,
    15.0,
    30.0,
)  # until a module is asked again whether a cancelled call that has its turn is over
_RECALL_PAUSES = (0.0, 0.3, 1.0)  # a cancelling client tells the workers and the ledger at once, in any order
_EARLY = 0.9  # of its time, from which on a call that comes back is not too early: two clocks tell it


def was_accepted(task: RunningTask, call: PublishedCall) -> bool:
    """Return whether this message is that of a call which its module continues."""
    retries = getattr(task.request, "retries", 0) or 0
    is_single = call.retry is None or call.retry.max_retries < MAX_ATTEMPTS
    return retries >= (MAX_ATTEMPTS if is_single else _RETRIES)


def granted_to(task: RunningTask, claim: Claim) -> Granted:
    """Return what the claim is good for, unless one attempt more does no harm: then it is good for that.

    If Redis has lost that the module continues the call, its state is unknown. Starting it again may do it twice: it is asked for
    as after any attempt whose end was not seen.
    """
    if claim.granted == "accepted":
        return "unknown" if claim.accepted is None else "accepted"
    if claim.granted != "go" or claim.attempts != 1:
        return claim.granted
    return "unknown" if was_accepted(task, claim.call) else "go"


async def begin(task: RunningTask, ledger: Ledger, claim: Claim, attempt: Attempt, *, begun_at: float) -> None:
    """Have a call come back that was accepted just now, or wait for its answer. Returns only if it is others' by now."""
    seconds = fleet_clock.now() - begun_at
    if attempt.question is not None:
        await _ask(task, ledger, claim, attempt.question, seconds)
        return
    if (acceptance := attempt.acceptance) is None:
        return
    accepted = AcceptedAttempt.of(acceptance, begun_at=begun_at)
    log.info("tool_call_accepted", call_id=claim.call.call_id, tool=claim.call.tool_name)
    await _park(task, ledger, claim, accepted, heard("accepted", seconds))


class End(NamedTuple):
    """The end of an attempt that started at `begun_at`.

    `is_left_behind`: the process that had it is gone, with its answer.
    """

    attempt: Attempt
    begun_at: float
    is_left_behind: bool = False


async def ask(task: RunningTask, ledger: Ledger, claim: Claim) -> End | None:
    """Ask the module where the call is, and return how it has ended. Where it goes on, returns only if it is others' by now."""
    call, accepted, began_at = claim.call, claim.accepted, fleet_clock.now()
    if accepted is None:  # `granted_to` has said so
        return None
    reports = Reports(call, task.app.settings)
    report_to(reports.take)
    found = await _status(task, claim, accepted)
    if isinstance(found, Attempt) and found.question is not None:
        await _ask(task, ledger, claim, found.question, fleet_clock.now() - began_at, accepted.answered())
        return None
    if isinstance(found, Attempt):
        reports.is_over = True
        return End(await _known_end(task, claim, found), accepted.begun_at)
    if isinstance(found, StatusMissing) and found.is_gone:
        reports.is_over = True
        log.warning("tool_call_left_behind", call_id=call.call_id, tool=call.tool_name)
        lost = fleet_results.outcome_unknown(call.tool_name, "the process that had begun it is gone.")
        return End(Attempt(Outcome.UNKNOWN, lost), accepted.begun_at, is_left_behind=True)
    if isinstance(found, StatusMissing) and found.is_unreached:
        await checks_of(task.app, ledger).missed(call)
    seconds = fleet_clock.now() - began_at
    is_away = isinstance(found, StatusMissing) and found.is_silent
    is_heard = isinstance(found, StillAtWork) or is_away
    ended = heard("accepted", seconds, int(is_away)) if is_heard else Ended()
    await _park(task, ledger, claim, accepted.after(found), ended)
    return None


async def _ask(
    task: RunningTask,
    ledger: Ledger,
    claim: Claim,
    question: Question,
    seconds: float,
    accepted: AcceptedAttempt | None = None,
) -> None:
    """Have the call wait for its answer. `accepted`: its module goes on with it, and is told if the call ends before."""
    call = claim.call
    text = usual_text(str(task.request.args[0]), task.app, task_id=call.call_id)
    ended = heard("input_required", seconds)
    try:
        if not await ledger.waiting.ask(claim, question, ended, text=text, accepted=accepted):
            return
    except CallEnded:
        if accepted is not None:  # otherwise no worker is executing it
            worker_runtime.here().later(_recall(task.app, ledger, call))
        raise Ignore from None
    log.info("tool_call_asks", call_id=call.call_id, tool=call.tool_name)
    if accepted is not None:
        await _come_back(task, call, min(END_CHECK_SECONDS, task.app.settings.lease_seconds / 2))
    raise Ignore


async def recall(task: RunningTask, ledger: Ledger, call: PublishedCall) -> None:
    """Tell the module in the background that a call was ended from outside and is no longer wanted."""
    if was_accepted(task, call):
        worker_runtime.here().later(_recall(task.app, ledger, call))


def follow_revocations() -> None:
    """Tell modules of calls whose messages workers drop because their agents have cancelled them."""
    if _on_dropped not in worker_runtime.dropped:
        worker_runtime.dropped.append(_on_dropped)


def _retries(call: PublishedCall) -> int:
    """Return a count of retries that only such a call's message has: if its record is lost, this tells it."""
    return MAX_ATTEMPTS if call.retry is None else _RETRIES


async def _status(task: RunningTask, claim: Claim, accepted: AcceptedAttempt) -> Standing:
    seconds = min(_STATUS_SECONDS, claim.call.deadline_at - fleet_clock.now())
    if seconds <= 0:
        return StatusMissing()
    standing: Standing = await task.app.runner.status(claim.call, accepted.handle, seconds=seconds, lease=claim)
    return standing


async def _known_end(task: RunningTask, claim: Claim, found: Attempt) -> Attempt:
    """Return the call's end.

    For a call that its module does not know, `/reconcile` may tell: but not that it was never started.
    """
    call = claim.call
    seconds = min(_STATUS_SECONDS, call.deadline_at - fleet_clock.now())
    if found.result.error_code != "outcome_unknown" or seconds <= 0:
        return found
    happened: Attempt | None = await task.app.runner.reconcile(call, seconds=seconds, lease=claim)
    is_known = happened is not None and happened.outcome in {Outcome.SUCCESS, Outcome.FAILED}
    return happened if happened is not None and is_known else found


async def _park(task: RunningTask, ledger: Ledger, claim: Claim, accepted: AcceptedAttempt, ended: Ended) -> None:
    call, settings = claim.call, task.app.settings
    delay = accepted.delay(call.deadline_at - fleet_clock.now(), longest=settings.lease_seconds / 2)
    try:
        if not await ledger.waiting.park(claim, accepted, ended, seconds=delay * _EARLY):
            return
    except CallEnded:
        log.info("tool_call_recalled", call_id=call.call_id, tool=call.tool_name)
        is_first = claim.accepted is None
        worker_runtime.here().later(
            _cancel(task.app, call, accepted.handle, claim.replica) if is_first else _recall(task.app, ledger, call)
        )
        return
    await _come_back(task, call, delay)
    raise Ignore


async def _come_back(task: RunningTask, call: PublishedCall, delay: float) -> None:
    """Publish the call's message for later."""
    task.request.is_parked = True
    try:
        await publish_again(task, delay, retries=_retries(call), forgets_deaths=True)
    except Exception as exc:  # PublishUnconfirmed among them: a second message of the call comes too early, and waits
        log.warning("call_not_put_off", call_id=call.call_id, error=str(exc))
        raise Reject(requeue=True) from exc


def _on_dropped(request: Any) -> None:
    here, app = worker_runtime.current(), request.task.app
    if here is None or request.task.name != TASK or (request.request_dict.get("retries") or 0) < MAX_ATTEMPTS:
        return
    with contextlib.suppress(FleetError, ValueError, LookupError, TypeError):  # no call, or a newer one
        call = opened(request.args[0], app, task_id=request.id)
        here.later(_recall(app, ledger_of(here, app.settings), call))


async def _recall(app: Any, ledger: Ledger, call: PublishedCall) -> None:
    for pause in _RECALL_PAUSES:
        await asyncio.sleep(pause)
        try:
            recalled = await ledger.waiting.recall(call.call_id)
        except NotEndedYet:
            continue
        except RedisConnectionLost:
            return
        if recalled is not None:
            log.info("tool_call_recalled", call_id=call.call_id, tool=call.tool_name)
            await _cancel(app, call, recalled[0].handle, recalled[1])
        return


async def _cancel(app: Any, call: PublishedCall, handle: str, replica: str) -> None:
    lease = UnboundedLease(replica)
    for pause in _OVER_PAUSES:
        is_first = pause == _OVER_PAUSES[0]
        standing = await app.runner.status(call, handle, seconds=_CANCEL_SECONDS, lease=lease, cancel=is_first)
        if call.turn is None:
            return
        if isinstance(standing, Attempt):  # others of its line may run
            await worker_runtime.here().part(WorkerTurns, app).leave(call)
            return
        await asyncio.sleep(pause)
