"""Executes one call: claimed in the ledger, one attempt within the time left, perhaps a retry, one result.

Until the claim stands nothing is run, and what the ledger does not take as the call's end is nobody's result.
"""

from collections.abc import Callable
from functools import partial

from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded

from toolfleet_registry.contracts import Audit, ToolResult, decisions
from toolfleet_registry.contracts.outcomes import Attempt, Health, Outcome
from toolfleet_registry.errors import MessageRefused, NotPublished
from toolfleet_registry.settings import HARD_LIMIT_MARGIN
from toolfleet_registry.system import randomness
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.time import fleet_clock
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.aio.greenlet_bridge import bridged
from toolfleet_tasks.calls.message_bounds import opened
from toolfleet_tasks.ledger.answering import is_away
from toolfleet_tasks.ledger.claims import Claim
from toolfleet_tasks.ledger.dead_letters import reason_of
from toolfleet_tasks.ledger.ledger import Ledger, NotClaimed, ResultNotStored
from toolfleet_tasks.ledger.retry import MOST_DEATHS, Next, bounded, decide, settled, unattempted
from toolfleet_tasks.messages import approval_results, fleet_results
from toolfleet_tasks.messages.deaths import deaths_of
from toolfleet_tasks.messages.json_text import NewerMessage
from toolfleet_tasks.ports import Runner
from toolfleet_tasks.publish.control_tasks import evaluate_soon
from toolfleet_tasks.queues import SOFT_LIMIT_MARGIN
from toolfleet_tasks.worker import accepted, ledgers, rejected
from toolfleet_tasks.worker.early_claim import EarlyClaim
from toolfleet_tasks.worker.health_checks import checks_of
from toolfleet_tasks.worker.paused_calls import PausedCalls
from toolfleet_tasks.worker.reconciliation import as_said, asked_so_far, is_asked, seconds_to_ask
from toolfleet_tasks.worker.refusals import refusal_of
from toolfleet_tasks.worker.reports.attempt_reports import AttemptReports
from toolfleet_tasks.worker.reports.audits import audit_of
from toolfleet_tasks.worker.republish import publish_again
from toolfleet_tasks.worker.returned import returned, stored_end
from toolfleet_tasks.worker.running_task import RunningTask, Superseded
from toolfleet_tasks.worker.spans.attempt_span import processed

log = get_logger(__name__)

_AWAY_SECONDS = 0.2  # until a call comes again whose module could not be reached
END = "toolfleet_end"
"""In a task's request: how the call has ended already, which its body only repeats."""


def body(task: RunningTask, message: str) -> str:
    """The body of Celery's task: it runs the call, or ends as the call has ended already."""
    end: Callable[[], str] | None = getattr(task.request, END, None)
    return end() if callable(end) else _bridged(task, message)  # a message's header of this name is only text


async def run(task: RunningTask, message: str) -> str:
    """Run a call's message for its `task`. Returns what Celery stores and shows.

    Raises `Ignore`, `Reject` and `Retry` as Celery's tracer understands them.
    """
    if (here := worker_runtime.current()) is not None:
        try:
            return await _run(task, message, ledgers.ledger_of(here, task.app.settings, task.request.hostname))
        except Ignore:
            here.part(PausedCalls).follow(task, message, run)
            raise
    async with ledgers.own_ledger(task.app.settings, task.request.hostname) as ledger:
        return await _run(task, message, ledger)


_bridged = bridged(run, is_limited=False)


async def _run(task: RunningTask, message: str, ledger: Ledger) -> str:
    early = EarlyClaim(task)
    try:
        call = opened(message, task.app, task_id=task.request.id)
    except (MessageRefused, NewerMessage) as exc:
        early.give_back()
        return stored_end(task, await rejected.turn_away(task, ledger, exc))
    deaths = len(deaths_of(task.request)) if task.app.settings.is_fast else None
    early.keep_if_plain(task, ledger, call, deaths=deaths)
    is_deadly = deaths is not None and deaths >= MOST_DEATHS
    if call.deadline_at <= fleet_clock.now() and not is_deadly:
        early.give_back()
        text = stored_end(task, await rejected.end_at_deadline(task, ledger, call))
    else:
        with early:
            known: rejected.Known = None
            if not is_deadly:
                known = await rejected.known_terms(task, call)  # first: what waits for that is no attempt
                call = bounded(call, task.app.runner.retry_terms(call))  # afterwards: now its tool is known
            claim = early.begin(ledger, call) or await checks_of(task.app, ledger).claim(call, deaths=deaths)
        if isinstance(claim, Claim):
            text = await _claimed(task, ledger, claim, known)
        else:
            text = stored_end(task, await rejected.unclaimed(task, ledger, call, claim, deaths=deaths))
    if call.job_id is not None:
        await evaluate_soon(task, call.job_id)
    return text


async def _claimed(task: RunningTask, ledger: Ledger, claim: Claim, known: rejected.Known) -> str:
    claim.granted = accepted.granted_to(task, claim)
    with ledger.claims.holding(claim):
        execution = _Execution(task, ledger, claim, known)
        return await (execution.run() if task.app.tracing is None else processed(task, claim, execution))


class _Execution:
    """One claimed call, from here to its end or to the retry."""

    def __init__(self, task: RunningTask, ledger: Ledger, claim: Claim, known: rejected.Known) -> None:
        self._task = task
        self._ledger = ledger
        self._claim = claim
        self._known = known
        self._call = claim.call
        self._decisions = decisions.collecting(self._call.decisions)
        self._runner: Runner = task.app.runner
        self._started_at = fleet_clock.now()
        self.came_to: ToolResult | None = None
        self._attempts = claim.attempts - (claim.granted == "go")  # those that have met the runner

    async def run(self) -> str:
        claim, tool_name = self._claim, self._call.tool_name
        if claim.granted in {"go", "accepted"}:
            return await (self._go() if claim.granted == "go" else self._ask())
        if claim.granted == "killed":
            return await self._killed()
        if claim.granted in {"open", "unapproved"}:
            away = fleet_results.module_away(tool_name, claim.rest_seconds, why=claim.why)
            refusal = away if claim.granted == "open" else approval_results.unapproved(tool_name)
            return await self._finish(self._settled(refusal))
        if claim.granted == "exhausted" and claim.last is not None:
            return await self._finish(self._settled(claim.last))
        if (happened := await self._reconciled()) is not None:
            return await self._finish(as_said(happened, self._call))
        lost = fleet_results.outcome_unknown(tool_name, "the worker that ran it was lost.")
        return await self._finish(self._settled(lost))

    async def _killed(self) -> str:
        """End a call with which two workers have died. That is said of it unless its module knows of a success."""
        so_far = self._claim.so_far
        happened = None if so_far == "none" else await self._reconcile()
        if happened is not None and happened.result.success:
            return await self._finish(as_said(happened, self._call))
        if happened is not None and happened.outcome is Outcome.NOT_SENT:
            so_far = asked_so_far(self._call)
        log.error("call_killed_workers", call_id=self._call.call_id, tool=self._call.tool_name, effect_state=so_far)
        return await self._finish(fleet_results.workers_died(self._call.tool_name, so_far))

    async def _go(self) -> str:
        lost = list[bool]()
        self._claim.on_lost = lambda: lost.append(True)  # before we wait for anything
        refusal = await refusal_of(self._ledger, self._claim, self._known, self._decisions, self._task.app.settings)
        if lost:  # it was taken back, say, or Redis was away for longer than the lease
            raise self._late()
        if refusal is not None:
            return await self._finish(self._settled(refusal))
        if self._call.deadline_at <= fleet_clock.now():  # claiming has waited for Redis
            late = fleet_results.at_deadline(self._call)
            return await self._finish(self._settled(late.unbegun if self._claim.so_far == "none" else late.unknown))
        await self._on_lease()
        return await self._follow(await self._attempt(), seconds=fleet_clock.now() - self._started_at)

    async def _ask(self) -> str:
        """Ask where the call is that its module goes on with. It comes back, or it has ended."""
        await self._on_lease()
        if (end := await accepted.ask(self._task, self._ledger, self._claim)) is None:
            raise self._late()
        attempt, self._started_at = end.attempt, end.begun_at
        seconds, follows = fleet_clock.now() - self._started_at, self._decide(attempt)
        if end.is_left_behind and follows.delay is not None:
            return await self._retry(attempt, follows, follows.delay, seconds)
        return await self._finish(as_said(attempt, self._call), attempt=attempt, seconds=seconds)

    async def _left(self, attempt: Attempt) -> Ignore | Reject:
        """Have the call come back, whose module goes on with it."""
        await accepted.begin(self._task, self._ledger, self._claim, attempt, begun_at=self._started_at)
        return self._late()

    async def _on_lease(self) -> None:
        """Hold the call for sure. After a pause, or while Redis was away, the lease may have run out before it was used."""
        if self._claim.seconds_left() <= 0 and not await self._ledger.claims.renewed(self._claim):
            raise self._late()

    async def _attempt(self) -> Attempt:
        """One attempt within the limit and the time left. The one place that words a limit."""
        seconds = min(self._call.limit_seconds, self._call.deadline_at - fleet_clock.now())
        reports = AttemptReports(self._call, self._task.app.settings)
        try:
            # The nets around the request, by the limit that was signed: the message's headers were not.
            with self._task.limits(
                self._call.limit_seconds + SOFT_LIMIT_MARGIN, self._call.limit_seconds + HARD_LIMIT_MARGIN
            ) as interrupt:
                self._claim.on_lost = lambda: interrupt(Superseded())
                self._attempts = self._claim.attempts
                return await self._runner.run(self._call, seconds=seconds, lease=self._claim)
        except Superseded:
            raise self._late() from None
        except (TimeoutError, SoftTimeLimitExceeded):
            return Attempt(Outcome.UNKNOWN, fleet_results.timed_out(self._call.tool_name, seconds))
        finally:
            await reports.end()

    async def _follow(self, attempt: Attempt, *, seconds: float) -> str:
        """What the table says: the retry, or the end. Where that would be unknown, the module is asked before."""
        if attempt.goes_on:
            raise await self._left(attempt)
        if attempt.unreached is not None:  # to be known before others may take the retry
            await checks_of(self._task.app, self._ledger).missed(self._call, attempt.unreached, attempt.why)
        if is_away(attempt, self._call, seconds=seconds):
            checks_of(self._task.app, self._ledger).doubt(self._call)
        follows = self._decide(attempt)
        if attempt.unreached is Health.AWAY and follows.delay is None and self._claim.patience_seconds > seconds:
            # The last attempt that it may have was none: nothing was sent, and its module may soon be back.
            self._ledger.claims.drop(self._claim)
            self._ledger.claims.give_back(self._claim)
            await rejected.put_off(self._task, self._call, NotClaimed("away", rest_seconds=_AWAY_SECONDS))
        if follows.delay is not None:
            return await self._retry(attempt, follows, follows.delay, seconds)
        happened = None
        if is_asked(attempt, follows.result):
            # Until the module has said something, it is this that holds: for whoever cannot wait so long.
            self._ledger.note(self._claim, follows.result.model_copy(update={"audit": self._audit()}))
            happened = await self._reconciled(attempt)
        result = follows.result if happened is None else as_said(happened, self._call)
        return await self._finish(result, attempt=attempt, seconds=seconds)

    def _decide(self, attempt: Attempt) -> Next:
        if attempt.outcome is Outcome.SUCCESS:  # nearly every call: nobody is asked
            return Next(None, attempt.result)
        return decide(
            attempt,
            self._call.effect,
            attempts=self._claim.attempts,
            seconds_left=self._call.deadline_at - fleet_clock.now(),
            so_far=self._claim.so_far,
            longest_delay=self._task.app.settings.lease_seconds / 2,
            jitter=randomness.random(),  # spreads load, guards nothing
            retries_undeclared=self._call.effect is None and self._retries_undeclared(),
            terms=self._call.retry,
            answered=self._claim.answer_before,
        )

    def _retries_undeclared(self) -> bool:
        return self._task.app.settings.retry_undeclared or self._runner.retries_undeclared(self._call.tool_name)

    async def _reconciled(self, attempt: Attempt | None = None) -> Attempt | None:
        """What the call came to; where its module goes on with it, it comes back."""
        happened = await self._reconcile(attempt)
        if happened is not None and happened.goes_on:
            raise await self._left(happened)
        return happened

    async def _reconcile(self, attempt: Attempt | None = None) -> Attempt | None:
        if seconds_to_ask(self._call, attempt, now=fleet_clock.now()) <= 0:
            return None
        await self._on_lease()
        seconds = seconds_to_ask(self._call, attempt, now=fleet_clock.now())
        return await self._runner.reconcile(self._call, seconds=seconds, lease=self._claim)

    async def _retry(self, attempt: Attempt, follows: Next, delay: float, seconds: float) -> str:
        """Close the attempt, then publish the call again. Where that surely fails, the call ends as the attempt has."""
        call, so_far, self.came_to = self._call, follows.result.effect_state, attempt.result
        if not await self._ledger.close(self._claim, attempt, seconds=seconds, so_far=so_far):
            raise self._late()
        log.warning("tool_call_failed_retrying", tool=call.tool_name, error=reason_of(call, attempt.result))
        log.info("tool_call_retried", call_id=call.call_id, tool=call.tool_name, outcome=attempt.outcome, delay=delay)
        try:
            await publish_again(self._task, delay, retries=self._claim.attempts)
        except NotPublished as exc:
            log.warning("retry_not_published", call_id=call.call_id, tool=call.tool_name, error=str(exc))
            return await self._finish(follows.result)
        except Exception as exc:  # PublishUnconfirmed: delivered twice it would still be one attempt
            log.warning("retry_not_confirmed", call_id=call.call_id, tool=call.tool_name, error=str(exc))
            raise Reject(requeue=True) from exc
        raise Retry(attempt.result.error_code, when=delay)  # not in a module's words: Flower shows it

    def _settled(self, result: ToolResult) -> ToolResult:
        """An end without an attempt of ours, which claims no less than earlier ones may have done, or have been answered."""
        answered = self._claim.answer_before
        attempt = unattempted(result) if answered is None else Attempt(Outcome.FAILED, answered)
        return settled(attempt, self._call.effect, self._claim.so_far)

    async def _finish(self, result: ToolResult, *, attempt: Attempt | None = None, seconds: float = 0) -> str:
        result = result.model_copy(update={"audit": self._audit()})
        finish = partial(self._ledger.finish, self._claim, attempt=attempt, seconds=seconds, decisions=self._decisions)
        try:
            text = await finish(result)
        except ResultNotStored as exc:
            log.error("result_refused", call_id=self._call.call_id, error=str(exc))  # noqa: TRY400 - the error says all
            result = fleet_results.result_refused(result, str(exc))
            text = await finish(result)
        if text is None:
            raise self._late()
        self.came_to = result
        return returned(self._task, text, result)

    def _late(self) -> Ignore | Reject:
        """Nobody waits for what this attempt came to: the call has ended, or another worker has it.

        Where others follow it, the message comes again, to see to them: whoever has ended it may not have.
        """
        log.warning("result_late", call_id=self._call.call_id, tool=self._call.tool_name)
        return Reject(requeue=True) if self._task.is_followed else Ignore()

    def _audit(self) -> Audit:
        return audit_of(self._task, self._call, attempts=self._attempts, started_at=self._started_at)
