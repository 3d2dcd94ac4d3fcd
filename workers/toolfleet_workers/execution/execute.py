"""Executes one call: claimed in the ledger, one attempt within the time left, perhaps a retry, one result.

A message is opened by `run`, its call claimed by `_claim`, and `Execution` makes the attempt, decides what follows it, and
ends the call. Below that stands what happens to calls that are not run here now. Before the claim nothing is run, and a
result that the ledger does not accept as the call's end is discarded.
"""

import asyncio
import math
from collections.abc import Mapping
from typing import Any, NoReturn, TypeAlias

from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded

from toolfleet_registry.contracts import Audit, EffectState, PublishedCall, Terms, ToolResult, calls
from toolfleet_registry.contracts.attempts import Attempt, Health, Outcome
from toolfleet_registry.contracts.call_context import report_to
from toolfleet_registry.errors import MessageRefused, NotPublished, ToolNotKnown
from toolfleet_registry.policy.hints import hint_for
from toolfleet_registry.policy.limits import fewest_retries, strictest
from toolfleet_registry.settings import HARD_LIMIT_MARGIN, Settings
from toolfleet_registry.system import fleet_clock, randomness
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.system.process import this_process
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.aio import end
from toolfleet_tasks.app import FleetApp
from toolfleet_tasks.ledger.claims import Claim
from toolfleet_tasks.ledger.contents import reason_of
from toolfleet_tasks.ledger.ledger import ANY_DATA, Ledger, NotClaimed, ResultNotStored, is_approved
from toolfleet_tasks.ledger.retry import MOST_DEATHS, Next, bounded, decide, is_away, settled, unattempted
from toolfleet_tasks.limits import Within, unnamed
from toolfleet_tasks.messages import fleet_results, json_text
from toolfleet_tasks.messages.envelope import DIED, begins_when_taken, deaths_of, opened
from toolfleet_tasks.messages.fleet_results import unapproved
from toolfleet_tasks.messages.ids import program_of
from toolfleet_tasks.messages.json_text import NewerMessage
from toolfleet_tasks.presence import live_workers
from toolfleet_tasks.queues import SOFT_LIMIT_MARGIN, lane_of, queue_of
from toolfleet_tasks.redis_connection import RedisConnectionClosed, RedisConnectionLost
from toolfleet_tasks.results import stored as results
from toolfleet_tasks.transport.leases import FetchedClaim, FetchedClaims, Leases
from toolfleet_tasks.transport.redis_publisher import evaluate_soon
from toolfleet_tasks.transport.reservations import quarantine
from toolfleet_tasks.turns import WorkerTurns
from toolfleet_tasks.worker_runtime import RunCall, RunningTask, WorkerRuntime
from toolfleet_workers.execution import accepted
from toolfleet_workers.execution.accepted import recall
from toolfleet_workers.execution.attempt_reports import AttemptLog, Reports, processed
from toolfleet_workers.execution.health_checks import checks_of
from toolfleet_workers.execution.running_task import Superseded, ledger_of, message_of, publish_again
from toolfleet_workers.runner import CallRunner, RunTicket

log = get_logger(__name__)

Known: TypeAlias = RunTicket | ToolResult | None
"""The ticket for a call's caller and tool, the end of a call whose tool no worker knows, or `None` if neither was asked for."""

_NEWER_SECONDS = 0.2  # until a call comes back that another worker is to have, of several perhaps
_FULL_SECONDS = 0.5  # until a call comes back whose module is at work on as many as it may be
_PAUSED_SECONDS = 0.2  # until a worker hears, most often, that a queue is paused from which it takes calls
_BEFORE_DEADLINE_SECONDS = 1.0  # a call that comes back so early still gets an answer of ours
_SHORTEST_WAIT_SECONDS = 0.2
_BRIEF = frozenset({"away", "early", "queued"})  # reasons for which a call may come again and again

_POLL_SECONDS = 1.0  # the ledger says whether it is time to ask the module

_AWAY_SECONDS = 0.2  # until a call comes again whose module could not be reached

_RECONCILE_SECONDS = 5.0  # for a module to say what happened, perhaps after a restart
# The same for one that has let its whole limit pass: if it is alive it knows at once, and the limit is to hold.
_RECONCILE_SECONDS_AFTER_SILENCE = 1.0
_ANSWERED = frozenset({Outcome.FAILED, Outcome.SERVER_ERROR})
_HARMLESS = frozenset({"read", "idempotent"})  # effects of which one attempt more does no harm


def install(app: FleetApp, runner: CallRunner) -> None:
    """Have a worker's app run calls, each attempt by `runner`."""
    app.runner, app.run_call = runner, run
    accepted.follow_revocations()


async def run(task: RunningTask, message: str) -> str:
    """Run a call's message for its `task`. Returns what Celery stores and shows.

    Raises `Ignore`, `Reject` and `Retry` as Celery's tracer understands them.
    """
    here, request = this_process().worker or worker_runtime.here(), task.request
    shared: _Shared = here.execution or here.part(_Shared, task.app, request.hostname)
    ledger, tag = shared.ledger, getattr(request, "delivery_tag", None) or _tag_of(request)
    fetched = shared.fetched.made.pop(tag, None)
    try:
        try:
            call = opened(message, task.app, task_id=request.id)
        except (MessageRefused, NewerMessage) as exc:
            shared.give_back(fetched, request)
            ended = await turn_away(task, ledger, exc)
            if (program_id := program_of(request.id)) is not None:
                await evaluate_soon(task, program_id)
            return _stored_end(task, ledger, ended)
        now = fleet_clock.now()
        is_due = call.deadline_at > now
        has_died = getattr(request, DIED, None) is not None
        deaths = (len(deaths_of(request)) if has_died else 0) if ledger.writes_results else None
        if fetched is not None and not (is_due and not deaths and shared.may_begin(fetched, call)):
            shared.give_back(fetched, request)
            fetched = None
        if is_due or (deaths is not None and deaths >= MOST_DEATHS):
            text = await _claim(task, shared, call, fetched, tag, deaths=deaths, now=now)
        else:
            text = _stored_end(task, ledger, await _end_at_deadline(task, ledger, call))
        if call.job_id is not None:
            await evaluate_soon(task, call.job_id)
    except Ignore:
        here.part(PausedCalls).follow(task, message, run)
        raise
    return text


class _Shared:
    """Holds what all calls of a worker share: its ledger, its health checks, and the claims that come with messages."""

    def __init__(self, here: WorkerRuntime, app: Any, hostname: str) -> None:
        self.ledger = ledger_of(here, app.settings, hostname)
        self.checks, self.fetched = checks_of(app, self.ledger), here.part(FetchedClaims)
        self._troubles, self._replica_for = self.checks.troubles, app.runner.replica_for
        self.turns = here.part(WorkerTurns, app)
        here.execution = self

    def may_begin(self, fetched: FetchedClaim, call: PublishedCall) -> bool:
        """Return whether a call that is due may start at once under the claim that came with its message.

        No module may be in trouble, as far as this worker knows, and the call's must have one address.
        """
        watches, queues = self._troubles
        is_same = fetched.call_id == call.call_id and begins_when_taken(call)
        return is_same and not (watches or queues or self._replica_for(call))

    async def claim_in_turn(
        self, task: RunningTask, call: PublishedCall, fetched: FetchedClaim | None, *, deaths: int | None
    ) -> Claim | NotClaimed:
        """Ask the ledger for a call that runs in its turn. Raises `Ignore` for one that waits: its message is kept elsewhere."""
        self.give_back(fetched, task.request)  # it is an older agent's
        claim = await self.checks.claim(call, deaths=deaths)
        if isinstance(claim, Claim) or claim.reason != "behind":
            return claim
        if await self.turns.wait(call, message_of(task)):
            log.info("tool_call_waits_for_turn", call_id=call.call_id, tool=call.tool_name)
            raise Ignore
        return await self.checks.claim(call, deaths=deaths)

    def give_back(self, fetched: FetchedClaim | None, request: Any) -> None:
        """Have the call as if its message had only been fetched."""
        if fetched is not None:
            self.fetched.give_back(fetched, str((request.delivery_info or {}).get("routing_key")))


def _as_ticket_says(call: PublishedCall, ticket: RunTicket | None) -> PublishedCall:
    """Return the call with as few retries as its message and its agent's profile say, and with its turn.

    An agent of an older version, or of an older tool, knows of no turn.
    """
    from toolfleet_registry.policy.turns import turn_of  # hardly any tool has a key

    call = bounded(call, fewest_retries(call.retry, None if ticket is None else ticket.retry))
    if ticket is None or ticket.in_turn is None or call.turn is not None:
        return call
    return call.model_copy(update={"turn": turn_of(ticket.in_turn, call.arguments, call.user_id)})


def _tag_of(request: Any) -> str:
    """Return the tag of the message that has brought a task, from Celery's own request."""
    properties = getattr(request, "properties", None)
    return str(properties.get("delivery_tag")) if isinstance(properties, dict) else ""


async def _claim(
    task: RunningTask,
    shared: _Shared,
    call: PublishedCall,
    fetched: FetchedClaim | None,
    tag: str,
    *,
    deaths: int | None,
    now: float,
) -> str:
    """Claim a call, or take over the claim that came with its message, and run it."""
    ledger, runner = shared.ledger, task.app.runner
    known: Known = None
    try:
        if deaths is None or deaths < MOST_DEATHS:
            known = runner.ticket(call)
            if known is None:
                known, now = await ticket_of(task, call), fleet_clock.now()  # what waits for it is no attempt
            ticket = known if isinstance(known, RunTicket) else None
            if call.retry is not None or (ticket and (ticket.retry is not None or ticket.in_turn is not None)):
                call = _as_ticket_says(call, ticket)
        if call.turn is not None:
            claim, now = await shared.claim_in_turn(task, call, fetched, deaths=deaths), fleet_clock.now()
        elif fetched is None:
            claim, now = await shared.checks.claim(call, deaths=deaths), fleet_clock.now()
        else:
            claim, fetched = ledger.claimed(call, fetched.token, fetched.sent_at), None
    except BaseException:
        shared.give_back(fetched, task.request)
        raise
    if isinstance(claim, Claim):
        return await claimed(task, ledger, claim, known, shared.fetched.ending, tag, started_at=now)
    return _stored_end(task, ledger, await unclaimed(task, ledger, call, claim, deaths=deaths))


async def ticket_of(task: RunningTask, call: PublishedCall) -> RunTicket | ToolResult:
    """Return the worker's ticket for a call. If it does not know the tool, the call comes back, which is no attempt.

    It does within its deadline, the last time just before it. Then the result is the end of the call.
    """
    try:
        ticket: RunTicket = await task.app.runner.decide(call)
    except ToolNotKnown as exc:
        most = call.deadline_at - fleet_clock.now() - _BEFORE_DEADLINE_SECONDS
        if most >= _SHORTEST_WAIT_SECONDS:
            name = call.tool_name
            await _again(task, exc.seconds, call_id=call.call_id, tool=name, reason="not_known", most=most)
        return fleet_results.not_known(call.tool_name, exc.seconds)
    return ticket


async def claimed(
    task: RunningTask,
    ledger: Ledger,
    claim: Claim,
    known: Known,
    leases: Leases | None = None,
    tag: str = "",
    *,
    started_at: float | None = None,
) -> str:
    """Run a claimed call to its end or to its retry, as an `Execution` of these."""
    if claim.granted != "go" or claim.call.effect not in _HARMLESS:
        claim.granted = accepted.granted_to(task, claim)
    ledger.claims.hold(claim)
    try:
        execution = Execution(task, ledger, claim, known, leases, tag, started_at=started_at)
        return await (execution.run() if task.app.tracing is None else processed(task, claim, execution))
    finally:
        ledger.claims.leave(claim)


class Execution:
    """One claimed call, from here to its end or to the retry, by what is `known` of its tool.

    `leases`: those of its message, by its `tag`, if the end of its call can forget it: unless what follows is published afterwards.
    `came_to`: its end, or what its attempt came to before a retry; `None` if it goes on elsewhere.
    """

    __slots__ = (
        "_attempts", "_call", "_claim", "_decisions", "_known", "_leases", "_ledger", "_runner", "_started_at", "_tag", "_task",
        "came_to",
    )  # fmt: skip

    def __init__(
        self,
        task: RunningTask,
        ledger: Ledger,
        claim: Claim,
        known: Known,
        leases: Leases | None = None,
        tag: str = "",
        *,
        started_at: float | None = None,
    ) -> None:
        self._task = task
        self._leases, self._tag = None if task.is_followed else leases, tag
        self._ledger = ledger
        self._claim = claim
        self._known = known
        self._call = claim.call
        self._decisions = calls.collecting(self._call.decisions)
        self._runner: CallRunner = task.app.runner
        self._started_at = fleet_clock.now() if started_at is None else started_at
        self.came_to: ToolResult | None = None
        self._attempts = claim.attempts - (claim.granted == "go")  # those that have met the runner

    async def run(self) -> str:
        """Run it: raises as Celery's tracer understands."""
        claim, call = self._claim, self._call
        if claim.granted != "go":
            return await self._without_attempt()
        now = self._started_at
        known = self._known.terms if isinstance(self._known, RunTicket) else self._known
        if known is not None or call.terms is not None or call.approval is not None:
            lost = list[bool]()
            claim.on_lost = lambda: lost.append(True)
            refusal = await refusal_of(self._ledger, claim, known, self._decisions, self._task.app.settings)
            if lost:  # it was cancelled, say, or Redis was away for longer than the lease
                raise self._late()
            if refusal is not None:
                return await self._finish(self._settled(refusal))
            now = fleet_clock.now()
        seconds = call.deadline_at - now
        if seconds <= 0:  # claiming has waited for Redis
            late = fleet_results.at_deadline(call)
            return await self._finish(self._settled(late.unbegun if claim.so_far == "none" else late.unknown))
        if claim.begin_by[1] <= now:
            await self._on_lease()
            seconds = call.deadline_at - fleet_clock.now()
        attempt = await self._attempt(min(call.limit_seconds, seconds))
        if attempt.hides_results:
            self._hide_results()
        now = fleet_clock.now()
        seconds = now - self._started_at
        result, goes_on = attempt.result, attempt.acceptance is not None or attempt.question is not None
        if attempt.outcome is Outcome.SUCCESS and result.effect_state != "unknown" and not goes_on:  # nearly every call
            return await self._finish(result, attempt=attempt, seconds=seconds, now=now)
        return await self._follow(attempt, seconds)

    async def _without_attempt(self) -> str:
        """Ask where a call is that its module goes on with, or end one that must not run, or not now."""
        claim, tool_name = self._claim, self._call.tool_name
        if claim.granted == "accepted":
            return await self._ask()
        if claim.granted == "killed":
            return await self._killed()
        if claim.granted in {"open", "unapproved"}:
            away = fleet_results.module_away(tool_name, claim.rest_seconds, why=claim.why)
            refusal = away if claim.granted == "open" else fleet_results.unapproved(tool_name)
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
            so_far = _asked_so_far(self._call)
        log.error("call_killed_workers", call_id=self._call.call_id, tool=self._call.tool_name, effect_state=so_far)
        return await self._finish(fleet_results.workers_died(self._call.tool_name, so_far))

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
        """Have a call come back that its module continues."""
        await accepted.begin(self._task, self._ledger, self._claim, attempt, begun_at=self._started_at)
        return self._late()

    async def _on_lease(self) -> None:
        """Hold the call for sure. After a pause, or while Redis was away, the lease may have run out before it was used."""
        if self._claim.seconds_left() <= 0 and not await self._ledger.claims.renewed(self._claim):
            raise self._late()

    async def _attempt(self, seconds: float) -> Attempt:
        """One attempt within the limit and the time left. The one place that words a limit."""
        call, settings = self._call, self._task.app.settings
        reports = Reports(call, settings)
        report_to(reports.take)
        messages = None if call.log_level is None else AttemptLog(call, call.log_level, settings)
        try:
            # The nets around the request, by the limit that was signed: the message's headers were not.
            with self._task.limits(
                call.limit_seconds + SOFT_LIMIT_MARGIN, call.limit_seconds + HARD_LIMIT_MARGIN
            ) as interrupt:
                self._claim.on_lost = lambda: interrupt(Superseded())
                self._attempts = self._claim.attempts
                ticket = self._known if isinstance(self._known, RunTicket) else None
                return await self._runner.run(call, seconds=seconds, lease=self._claim, ticket=ticket)
        except Superseded:
            raise self._late() from None
        except (TimeoutError, SoftTimeLimitExceeded):
            return Attempt(Outcome.UNKNOWN, fleet_results.timed_out(call.tool_name, seconds))
        finally:
            reports.is_over = True
            if messages is not None:
                await messages.end()

    async def _follow(self, attempt: Attempt, seconds: float) -> str:
        """Follow the retry table: the retry, or the end. If that would be unknown, the module is asked before."""
        if attempt.goes_on:
            raise await self._left(attempt)
        if attempt.unreached is not None:  # to be known before others may take the retry
            await checks_of(self._task.app, self._ledger).missed(self._call, attempt.why)
        if is_away(attempt, self._call, seconds=seconds):
            checks_of(self._task.app, self._ledger).doubt(self._call)
        follows = self._decide(attempt)
        if attempt.unreached is Health.AWAY and follows.delay is None and self._claim.patience_seconds > seconds:
            # The last attempt that it may have was none: nothing was sent, and its module may soon be back.
            self._ledger.claims.drop(self._claim)
            self._ledger.claims.give_back(self._claim)
            await put_off(self._task, self._call, NotClaimed("away", rest_seconds=_AWAY_SECONDS))
        if follows.delay is not None:
            return await self._retry(attempt, follows, follows.delay, seconds)
        happened = None
        if is_asked(attempt, follows.result):
            # Until the module has said something, this holds: for clients that cannot wait so long.
            self._ledger.note(self._claim, follows.result.model_copy(update={"audit": self._audit()}))
            happened = await self._reconciled(attempt)
        result = follows.result if happened is None else as_said(happened, self._call)
        return await self._finish(result, attempt=attempt, seconds=seconds)

    def _decide(self, attempt: Attempt) -> Next:
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
        """Return the call's outcome from its module; if its module continues it, it comes back."""
        happened = await self._reconcile(attempt)
        if happened is not None and happened.goes_on:
            raise await self._left(happened)
        return happened

    async def _reconcile(self, attempt: Attempt | None = None) -> Attempt | None:
        if seconds_to_ask(self._call, attempt, now=fleet_clock.now()) <= 0:
            return None
        await self._on_lease()
        seconds = seconds_to_ask(self._call, attempt, now=fleet_clock.now())
        happened: Attempt | None = await self._runner.reconcile(self._call, seconds=seconds, lease=self._claim)
        if happened is not None and happened.hides_results:
            self._hide_results()
        return happened

    def _hide_results(self) -> None:
        """Keep the result as that of a tool with sensitive results: in no contents, artifact, dead letter or log."""
        self._call = self._claim.call = self._call.model_copy(update={"hides_results": True})

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

    async def _finish(
        self, result: ToolResult, *, attempt: Attempt | None = None, seconds: float = 0, now: float | None = None
    ) -> str:
        result = result.model_copy(update={"audit": self._audit(now)})
        if result.success and self._task.app.keep_artifacts is not None:
            result = await self._task.app.keep_artifacts(self._call, result)
        leases, tag, ledger, claim = self._leases, self._tag, self._ledger, self._claim
        message, text = None if leases is None else leases.end(tag), None
        facts: dict[str, Any] = {
            "attempt": attempt,
            "seconds": seconds,
            "message": message,
            "decisions": self._decisions,
        }
        try:
            text = await ledger.finish(claim, result, **facts)
        except ResultNotStored as exc:
            log.error("result_refused", call_id=self._call.call_id, error=str(exc))  # noqa: TRY400 - the error says all
            result = fleet_results.result_refused(result, str(exc))
            text = await ledger.finish(claim, result, **facts)
        finally:
            if leases is not None:
                leases.ended(tag, is_forgotten=text is not None)
        if text is None:
            raise self._late()
        self.came_to = result
        if self._call.turn is not None:
            worker_runtime.here().part(WorkerTurns, self._task.app).passed()
        return returned(self._task, self._ledger, text, result)

    def _late(self) -> Ignore | Reject:
        """Return the exception for an outdated attempt: the call has ended, or another worker has it.

        If links follow it, the message comes again, to publish them: the process that has ended it may not have.
        """
        log.warning("result_late", call_id=self._call.call_id, tool=self._call.tool_name)
        return Reject(requeue=True) if self._task.is_followed else Ignore()

    def _audit(self, now: float | None = None) -> Audit:
        """Return the audit of the call, if it ends now: its attempts that have reached the runner, and the last one's start."""
        now, call = fleet_clock.now() if now is None else now, self._call
        return Audit(
            call_id=call.call_id,
            tool=call.tool_name,
            ts=now,
            attempts=self._attempts,
            queued_ms=round(max(self._started_at - call.published_at, 0) * 1000, 1),  # an agent's clock may be ahead
            duration_ms=round((now - self._started_at) * 1000, 1),
            worker=self._task.request.hostname,
        )


async def refusal_of(
    ledger: Ledger, claim: Claim, known: Terms | ToolResult | None, decided: Mapping[str, str], settings: Settings
) -> ToolResult | None:
    """Return why a claimed call is not started, by what is `known` of its tool; `None` if it may be.

    `decided` has earlier decisions about it.
    """
    if isinstance(known, ToolResult):
        calls.note("permission", "not_known")
        return known
    if known is not None and known.requires_gate and "gate" not in decided:
        calls.note("gate", "missing")
    if claim.call.approval is not None:
        holds = is_approved(claim, settings)
        calls.note("approval", "approved" if holds else "missing")
        if not holds:
            return unapproved(claim.call.tool_name)
    terms = strictest(claim.call.terms, known)
    if terms is None:
        return None
    return unnamed(claim.call.tool_name, terms, Within.of(claim.call)) or await ledger.take(claim, terms)


def is_asked(attempt: Attempt, result: ToolResult) -> bool:
    """Return whether to ask the module before the call ends with `result`, after its last `attempt`."""
    return result.effect_state == "unknown" and attempt.outcome not in _ANSWERED


def seconds_to_ask(call: PublishedCall, attempt: Attempt | None, *, now: float) -> float:
    """Return for how long the module may be asked, within the call's deadline; 0 or less: not at all.

    `attempt`: the last one, `None` if it was another worker's.
    """
    is_silent = attempt is not None and attempt.result.error_code == "timed_out"
    return min(_RECONCILE_SECONDS_AFTER_SILENCE if is_silent else _RECONCILE_SECONDS, call.deadline_at - now)


def _asked_so_far(call: PublishedCall) -> EffectState:
    """Return what the call may have done before its module asked for the answer that it brings; `none` without one."""
    return "none" if call.inputs is None else call.inputs.so_far


def as_said(happened: Attempt, call: PublishedCall) -> ToolResult:
    """The end of a call as its module says, when asked. One that has not executed it will refuse this call's id from now on.

    So its word counts for all attempts since it was answered last, also for a request that is still on its way; and no further one
    is made.
    """
    effect, so_far = call.effect, _asked_so_far(call)
    if happened.outcome is not Outcome.NOT_SENT:
        return settled(happened, effect, "none")
    if so_far != "none":
        return settled(happened, effect, so_far)
    result = happened.result.model_copy(update={"effect_state": "none", "retryable": True})
    return result.model_copy(update={"hint": hint_for(result, effect)})


def _stored_end(task: RunningTask, ledger: Ledger, stored: str) -> str:
    """The result of a call that has ended, for Celery."""
    if not stored:  # its result has expired
        raise Ignore
    text = results.text_of(stored)
    needs_result = ledger.writes_results or task.is_followed
    return returned(task, ledger, text, results.read_stored(text, "") if needs_result else None)


def returned(task: RunningTask, ledger: Ledger, text: str, result: ToolResult | None) -> str:
    """Return the value for Celery: a word if the ledger has stored the result, for Celery shows it to Flower.

    Raises the errors of `RunningTask.pass_on`.
    """
    shown = text
    if ledger.writes_results and result is not None:
        task.request.is_stored = True
        shown = results.word_of(result)
    if result is not None and task.is_followed:
        task.pass_on(text, result)
    return shown


async def turn_away(task: RunningTask, ledger: Ledger, why: MessageRefused | json_text.NewerMessage) -> str:
    """End a call whose message this worker cannot open, or leave it to others."""
    if isinstance(why, MessageRefused):
        return await refuse(task, ledger, why)
    return await _leave_to_newer(task, ledger, why)


async def refuse(task: RunningTask, ledger: Ledger, why: MessageRefused) -> str:
    """End a call with a message that its agent cannot have sent; a genuine call of this id, if there was one, is left alone."""
    log.error("message_refused", call_id=task.request.id, reason=str(why))
    ended = await ledger.refuse(task.request.id, fleet_results.message_refused(task.request.shadow or "", why))
    if ended is None:
        raise Ignore
    return ended


async def _leave_to_newer(task: RunningTask, ledger: Ledger, newer: json_text.NewerMessage) -> str:
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


async def _end_at_deadline(task: RunningTask, ledger: Ledger, call: PublishedCall) -> str:
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


async def unclaimed(
    task: RunningTask, ledger: Ledger, call: PublishedCall, answer: NotClaimed, *, deaths: int | None
) -> str:
    """Return the stored result of a call that has ended; any other call comes back."""
    if answer.reason != "done":
        await put_off(task, call, answer)
    await recall(task, ledger, call)
    if deaths is not None and deaths >= MOST_DEATHS:
        await bury(ledger, call, answer.result)
    return answer.result


async def bury(ledger: Ledger, call: PublishedCall, stored: str) -> None:
    """Keep a dead letter of a call with which two workers have died, and which has ended meanwhile, without success."""
    result = results.read_stored(stored, call.tool_name) if stored else None
    if result is not None and not result.success:
        await ledger.bury(call, fleet_results.workers_died(call.tool_name, result.effect_state))


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


async def _again(
    task: RunningTask, seconds: float, *, call_id: str, tool: str | None, reason: str, most: float = math.inf
) -> NoReturn:
    # Jittered, for all those that wait for the same thing; not longer than the broker holds a message.
    # A call that waits briefly may come again and again: that would fill the log.
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


class PausedCalls:
    """A worker's, on its loop.

    The worker that asked last goes on asking. Should it die, or end, they are asked about when the queue is
    resumed.
    """

    def __init__(self, here: WorkerRuntime) -> None:
        self._here = here
        self._following = dict[str, asyncio.Task[None]]()  # by call id
        here.settle.append(self.aclose)

    def follow(self, task: RunningTask, message: str, run: RunCall) -> None:
        """Run the message of a call that waits for its module again and again, until its queue is resumed, or the call has ended."""
        if not getattr(task.request, "is_parked", False) or task.is_followed or not task.app.settings.has_redis_broker:
            return  # with RabbitMQ it is Celery that stores a result, and here is none of its tasks
        call_id, queue = task.request.id, task.request.delivery_info["routing_key"]
        if call_id in self._following or not self._here.is_paused(queue):
            return
        following = self._here.loop.create_task(self._follow(_Aside(task), message, run), name="toolfleet-paused-call")
        self._following[call_id] = following
        following.add_done_callback(lambda _: self._following.pop(call_id, None))

    async def aclose(self) -> None:
        """Ask no more."""
        await end([*self._following.values()])

    async def _follow(self, task: "_Aside", message: str, run: RunCall) -> None:
        while self._here.is_paused(task.request.delivery_info["routing_key"]):
            await asyncio.sleep(_POLL_SECONDS)
            try:
                await run(task, message)
            except (Ignore, Reject):
                continue
            except Retry:  # its message waits in the queue
                return
            except Exception:  # it is asked about once more when the queue is resumed
                log.exception("paused_call_not_followed", call_id=task.request.id)
                return
            return


class _Aside:
    """Implements `RunningTask` for a task that has ended.

    Nothing is published for it: its message waits in the queue.
    """

    is_followed = False
    links = None
    is_aside = True

    def __init__(self, task: RunningTask) -> None:
        self.app = task.app
        self.request = _Said(task.request)

    def limits(self, soft: float | None, hard: float | None) -> NoReturn:
        """Implements `RunningTask.limits`. No attempt is started in a paused queue."""
        del soft, hard
        raise Reject(requeue=True)

    def pass_on(self, text: str, result: ToolResult) -> None:
        """Implements `RunningTask.pass_on`: nothing follows it."""


class _Said:
    """The values of the task's request, kept after its end."""

    _NAMES = (DIED, "args", "argsrepr", "delivery_info", "hostname", "id", "reply_to", "retries", "shadow", "timelimit")

    def __init__(self, request: Any) -> None:
        self._said: Mapping[str, Any] = {name: getattr(request, name, None) for name in self._NAMES}
        self.is_stored = self.is_parked = False

    def __getattr__(self, name: str) -> Any:
        return self._said.get(name)
