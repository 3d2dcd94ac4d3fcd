"""The task that runs one call: claimed in the ledger, one attempt within the time left, perhaps the one retry, one result.

Until the claim stands nothing is run, and what the ledger does not take as the call's end is nobody's result.
"""

import random
import time
from asyncio import CancelledError
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog
from celery import Celery, Task
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded
from celery.states import SUCCESS

from toolfleet_registry import decisions
from toolfleet_registry.contracts import Audit, ToolResult
from toolfleet_registry.errors import MessageRefused, NotPublished
from toolfleet_registry.hints import hint_for
from toolfleet_registry.outcomes import Attempt, Outcome
from toolfleet_registry.progress import report_to
from toolfleet_registry.settings import HARD_LIMIT_MARGIN
from toolfleet_registry.terms import strictest
from toolfleet_tasks import endings, ledgers, lines, results, unrun
from toolfleet_tasks.bridge import bridged
from toolfleet_tasks.canvas import CallTask, go_on, is_followed
from toolfleet_tasks.claims import Claim
from toolfleet_tasks.envelope import TASK
from toolfleet_tasks.job_ids import EVALUATE
from toolfleet_tasks.kicks import kick
from toolfleet_tasks.ledger import Ledger, NotClaimed, ResultRefused
from toolfleet_tasks.ports import Runner
from toolfleet_tasks.progress_board import Reports
from toolfleet_tasks.queues import SOFT_LIMIT_MARGIN
from toolfleet_tasks.retry import MAX_ATTEMPTS, Next, decide, settled
from toolfleet_tasks.second_attempt import publish_again

log = structlog.get_logger(__name__)

END = "toolfleet_end"
"""In a task's request: how the call has ended already, which its body only repeats."""

_REQUEST = "toolfleet_tasks.request:FleetRequest"  # Celery's own shows arguments and results to whoever asks
_RECONCILE_SECONDS = 5.0  # for a module to say what happened
_EVALUATE_SECONDS = 20.0  # for its job to hear of a call's end


def register(app: Celery) -> None:
    """Give the app the task: acked when its result is stored, tried at most twice, limits from the message."""
    app.task(name=TASK, base=CallTask, bind=True, acks_late=True, max_retries=MAX_ATTEMPTS - 1, Request=_REQUEST)(_body)


def _body(task: Task, message: str) -> str:  # one function for all apps: Celery warns of two with the same name
    end: Callable[[], str] | None = getattr(task.request, END, None)
    return end() if callable(end) else _bridged(task, message)  # a message's header of this name is only text


async def run(task: Any, message: str) -> str:
    """Run a call's message for its `task`, Celery's own or what stands for it. Returns what Celery stores and shows.

    Raises `Ignore`, `Reject` and `Retry` as Celery's tracer understands them.
    """
    here, settings = lines.current(), task.app.settings
    if here is not None:
        return await _run(task, message, ledgers.ledger_of(here, settings))
    async with ledgers.own_ledger(settings) as ledger:
        return await _run(task, message, ledger)


_bridged = bridged(run, is_limited=False)


async def _run(task: Any, message: str, ledger: Ledger) -> str:
    try:
        call = task.app.seal.open(message, task_id=task.request.id)
    except MessageRefused as exc:
        return _stored(task, await unrun.refuse(task, ledger, str(exc)))
    if call.deadline_at <= time.time():
        text = _stored(task, await unrun.end_at_deadline(task, ledger, call))
    elif isinstance(claim := await ledger.claim(call), NotClaimed):
        if claim.reason != "done":
            await unrun.put_off(task, call, claim)
        text = _stored(task, claim.result)
    else:
        with ledger.claims.holding(claim):
            text = await _Execution(task, ledger, claim).run()
    if call.job_id is not None:
        await _evaluated_soon(task, call.job_id)
    return text


async def _evaluated_soon(task: Task, job_id: str) -> None:
    """Have the call's job looked at: in this worker, where it has a loop, else by any. Where that gets lost, the sweep finds it."""
    here, keeper = lines.current(), task.app.jobs
    if here is None or keeper is None:
        await kick(task.app, task.app.settings, here, EVALUATE, job_id)
    else:  # the call's message is not held for that
        here.later(keeper.evaluate(job_id, seconds=_EVALUATE_SECONDS))


def _stored(task: Task, stored: str) -> str:
    """The result of a call that has ended, for Celery."""
    if not stored:  # its result has expired
        raise Ignore
    text = results.text_of(stored)
    needs_result = task.app.settings.is_fast or is_followed(task.request)
    return _returned(task, text, results.read_stored(text, "") if needs_result else None)


def _returned(task: Task, text: str, result: ToolResult | None) -> str:
    """What Celery gets to see: where the result stands already, a word, for Celery shows it to Flower.

    Raises `LinkFailed` where others follow the call and must not be called; its own result is stored before.
    """
    if task.app.settings.is_fast and result is not None:
        task.request.is_stored = True
        text = results.word_of(result)
    elif result is not None and not result.success and is_followed(task.request):
        task.backend.store_result(task.request.id, text, SUCCESS, request=task.request)
    if result is not None:
        go_on(task.request, result)
    return text


class _Execution:
    """One claimed call, from here to its end or to the retry."""

    def __init__(self, task: CallTask, ledger: Ledger, claim: Claim) -> None:
        self._task = task
        self._ledger = ledger
        self._claim = claim
        self._call = claim.call
        self._decisions = decisions.collecting(self._call.decisions)
        self._runner: Runner = task.app.runner
        self._started_at = time.time()
        self._attempts = claim.attempts - (claim.granted == "go")  # those that have met the runner

    async def run(self) -> str:
        claim, tool_name = self._claim, self._call.tool_name
        if claim.granted == "go":
            return await self._go()
        if claim.granted == "open":
            away = endings.module_away(tool_name, claim.rest_seconds, so_far=claim.so_far)
            return await self._finish(self._settled(away))
        if claim.granted == "exhausted" and claim.last is not None:
            return await self._finish(self._settled(claim.last))
        happened = await self._reconcile()
        if happened is not None:
            return await self._as_said(happened)
        lost = endings.outcome_unknown(tool_name, "the worker that ran it was lost.")
        return await self._finish(self._settled(lost))

    async def _go(self) -> str:
        lost = list[bool]()
        self._claim.on_lost = lambda: lost.append(True)  # before we wait for anything
        refusal = await self._limited()
        if lost:  # it was taken back, say, or Redis was away for longer than the lease
            raise self._late()
        if refusal is not None:
            return await self._finish(self._settled(refusal))
        if self._call.deadline_at <= time.time():  # claiming has waited for Redis
            late = endings.at_deadline(self._call)
            return await self._finish(self._settled(late.unbegun if self._claim.so_far == "none" else late.unknown))
        return await self._follow(await self._attempt(), seconds=time.time() - self._started_at)

    async def _limited(self) -> ToolResult | None:
        """The refusal of a call that has reached a limit; its agent may not have looked, or not known of it."""
        known = await self._runner.terms(self._call)
        if known is not None and known.requires_gate and "gate" not in self._decisions:
            decisions.note("gate", "missing")
        terms = strictest(self._call.terms, known)
        return None if terms is None else await self._ledger.take(self._claim, terms)

    async def _attempt(self) -> Attempt:
        """One attempt within the limit and the time left. The one place that words a limit."""
        seconds = min(self._call.limit_seconds, self._call.deadline_at - time.time())
        reports = Reports(self._call, self._task.app.settings)
        report_to(reports.take)
        try:
            # The nets around the request, by the limit that was signed: the message's headers were not.
            with self._task.limits(
                self._call.limit_seconds + SOFT_LIMIT_MARGIN, self._call.limit_seconds + HARD_LIMIT_MARGIN
            ) as interrupt:
                self._claim.on_lost = lambda: interrupt(_Superseded())
                self._attempts = self._claim.attempts
                return await self._runner.run(self._call, seconds=seconds)
        except _Superseded:
            raise self._late() from None
        except (TimeoutError, SoftTimeLimitExceeded):
            return Attempt(Outcome.UNKNOWN, endings.timed_out(self._call.tool_name, seconds))
        finally:
            reports.end()

    async def _follow(self, attempt: Attempt, *, seconds: float) -> str:
        """What the table says: the retry, or the end. Where that would be unknown, the module is asked before."""
        follows = self._decide(attempt)
        if follows.delay is None and follows.result.effect_state == "unknown" and attempt.outcome is not Outcome.FAILED:
            happened = await self._reconcile()
            if happened is not None:
                return await self._as_said(happened, attempt=attempt, seconds=seconds)
        if follows.delay is None:
            return await self._finish(follows.result, attempt=attempt, seconds=seconds)
        return await self._retry(attempt, follows, follows.delay, seconds)

    def _decide(self, attempt: Attempt) -> Next:
        return decide(
            attempt,
            self._call.effect,
            attempts=self._claim.attempts,
            seconds_left=self._call.deadline_at - time.time(),
            so_far=self._claim.so_far,
            longest_delay=self._task.app.settings.lease_seconds / 2,
            jitter=random.random(),  # noqa: S311 - spreads load, guards nothing
        )

    async def _reconcile(self) -> Attempt | None:
        seconds = min(_RECONCILE_SECONDS, self._call.deadline_at - time.time())
        return await self._runner.reconcile(self._call, seconds=seconds) if seconds > 0 else None

    async def _as_said(self, happened: Attempt, *, attempt: Attempt | None = None, seconds: float = 0) -> str:
        """End the call as its module says. One that has not executed it will refuse this call's id from now on.

        So its word counts for all attempts, also for a request that is still on its way; and no further one is made.
        """
        result = happened.result
        if happened.outcome is Outcome.NOT_SENT:
            result = result.model_copy(update={"effect_state": "none", "retryable": True})
            result = result.model_copy(update={"hint": hint_for(result)})
        else:
            result = settled(happened, self._call.effect, "none")
        return await self._finish(result, attempt=attempt, seconds=seconds)

    async def _retry(self, attempt: Attempt, follows: Next, delay: float, seconds: float) -> str:
        """Close the attempt, then publish the call again. Where that surely fails, the call ends as the attempt has."""
        call, so_far = self._call, follows.result.effect_state
        if not await self._ledger.close(self._claim, attempt, seconds=seconds, so_far=so_far):
            raise self._late()
        log.info("tool_call_retried", call_id=call.call_id, tool=call.tool_name, outcome=attempt.outcome, delay=delay)
        try:
            await publish_again(self._task, delay, retries=self._task.request.retries + 1)
        except NotPublished as exc:
            log.warning("retry_not_published", call_id=call.call_id, tool=call.tool_name, error=str(exc))
            return await self._finish(follows.result)
        except Exception as exc:  # PublishUnconfirmed: delivered twice it would still be one attempt
            log.warning("retry_not_confirmed", call_id=call.call_id, tool=call.tool_name, error=str(exc))
            raise Reject(requeue=True) from exc
        raise Retry(attempt.result.error_code, when=delay)  # not in a module's words: Flower shows it

    def _settled(self, result: ToolResult) -> ToolResult:
        """An end without an attempt of ours, which claims no less than earlier ones may have done."""
        outcome = Outcome.NOT_SENT if result.effect_state == "none" else Outcome.UNKNOWN
        wish = result.retry_after_seconds
        return settled(Attempt(outcome, result, wish), self._call.effect, self._claim.so_far)

    async def _finish(self, result: ToolResult, *, attempt: Attempt | None = None, seconds: float = 0) -> str:
        result = result.model_copy(update={"audit": self._audit()})
        finish = partial(self._ledger.finish, self._claim, attempt=attempt, seconds=seconds, decisions=self._decisions)
        try:
            text = await finish(result)
        except ResultRefused as exc:
            log.error("result_refused", call_id=self._call.call_id, error=str(exc))  # noqa: TRY400 - the error says all
            result = endings.result_refused(result, str(exc))
            text = await finish(result)
        if text is None:
            raise self._late()
        return _returned(self._task, text, result)

    def _late(self) -> Ignore | Reject:
        """Nobody waits for what this attempt came to: the call has ended, or another worker has it.

        Where others follow it, the message comes again, to see to them: whoever has ended it may not have.
        """
        log.warning("result_late", call_id=self._call.call_id, tool=self._call.tool_name)
        return Reject(requeue=True) if is_followed(self._task.request) else Ignore()

    def _audit(self) -> Audit:
        now, call, request = time.time(), self._call, self._task.request
        return Audit(
            call_id=call.call_id,
            tool=call.tool_name,
            ts=now,
            attempts=self._attempts,
            queued_ms=round(max(self._started_at - call.published_at, 0) * 1000, 1),  # an agent's clock may be ahead
            duration_ms=round((now - self._started_at) * 1000, 1),
            worker=request.hostname,
        )


class _Superseded(CancelledError):
    """The call is in others' hands: what this attempt still does is for nobody."""
