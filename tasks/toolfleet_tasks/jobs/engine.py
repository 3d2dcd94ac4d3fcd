"""Moves one job: publishes its next call, or takes the result of the last one.

Nothing here waits for a call. A worker that dies on the way leaves a job that is processed again, and a call that has
the same id when it is published again.
"""

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from toolfleet_registry.conditions import filled, takes_from_start, values_for
from toolfleet_registry.contracts import PublishedCall, ToolCall, ToolDefinition, ToolResult
from toolfleet_registry.contracts.calls import collecting, note
from toolfleet_registry.contracts.jobs import ENDED, JobSpec
from toolfleet_registry.contracts.names import RUN_PROGRAM, SCHEDULER
from toolfleet_registry.errors import BegunBefore, FleetError, PublishUnconfirmed
from toolfleet_registry.local.scheduler_tools import CHECK_URL
from toolfleet_registry.policy.call_faults import as_sent
from toolfleet_registry.settings import Settings
from toolfleet_registry.spans import Tracing
from toolfleet_registry.system import fleet_clock, randomness
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.admission import Refusal
from toolfleet_tasks.calls.audit_trail import AuditTrail
from toolfleet_tasks.calls.dispatcher import Dispatcher
from toolfleet_tasks.calls.prepare import CallPreparation, Step
from toolfleet_tasks.jobs import state_machine
from toolfleet_tasks.jobs.completion import end_events_of, end_note, unfilled
from toolfleet_tasks.jobs.records import Found, JobChange, JobRecords
from toolfleet_tasks.jobs.state_machine import MARGIN_SECONDS, JobPosition, Transition
from toolfleet_tasks.ledger.ledger import ANY_DATA, Ledger
from toolfleet_tasks.messages import fleet_results
from toolfleet_tasks.messages.fleet_results import CallEnding, at_deadline, taken_back
from toolfleet_tasks.messages.ids import is_program, step_call_id
from toolfleet_tasks.tracing import of_job

log = get_logger(__name__)

_MOST_WAITING = 250  # calls in a module's queue, where jobs add to it: an agent's own call comes after them

_EARLY_SECONDS = 0.005  # that a job may be claimed before it is due: its score has whole milliseconds
_REST_SECONDS = 1.0  # before a call that could not be published again is tried once more
_POLL_SECONDS = 30.0  # between two looks at a call that is under way: the word that it has ended may get lost
_JOINED_POLL_SECONDS = 2.0  # the same for another client's call, whose end is not reported
_AGAIN_SECONDS = 60.0  # a call without a record is not published again sooner: it waits in its queue, or was lost there
_RECORD_SECONDS = 60.0  # beyond its deadline, at least, for which a call's record is kept

_MOST_UNFILLED = 1_000  # jobs of whose messages is known what was said


@dataclass(frozen=True, slots=True)
class JobCallState:
    """The result of a step that needs no publishing: its call is known already, as `call_id`, or by another call that stands for it."""

    call_id: str


class JobSteps:
    """The steps of jobs in one session. `ask_people` has a call wait for an approval. Belongs to the session's loop."""

    def __init__(
        self,
        preparation: CallPreparation,
        dispatcher: Dispatcher,
        ask_people: Callable[[PublishedCall], Awaitable[ToolResult | Refusal | None]],
        trail: AuditTrail,
        settings: Settings,
        tracing: Tracing | None = None,
        *,
        ledger: Ledger,
    ) -> None:
        self._tracing = tracing
        self._ledger = ledger
        self._preparation = preparation
        self._ask_people = ask_people
        self._dispatcher = dispatcher
        self._trail = trail
        self._settings = settings

    async def prepare(
        self, spec: JobSpec, call: ToolCall, call_id: str, *, deadline_at: float | None = None
    ) -> PublishedCall | ToolResult:
        """Return the step as it may be published, or its refusal.

        Its deadline is that of any call, or the job's if that is earlier.

        Costs no round trip. A refusal has its audit line.
        """
        makes_jobs = call.tool_name.partition(".")[0] == SCHEDULER and not is_program(spec.job_id)
        if makes_jobs or call.tool_name == RUN_PROGRAM:
            noted = collecting(self._preparation.facts_of(spec.caller, spec.user_id, spec.conversation))
            refusal = no_jobs_by_jobs(call.tool_name) if makes_jobs else no_program_inside()
            return self._trail.refused(call, spec.caller, refusal, noted)
        caller = as_sent(spec.caller, self._settings.default_guest_modules)
        ends_by = deadline_at or spec.deadline_at
        step = Step(call_id, spec.job_id, spec.user_id, ends_by, partial(_gate_refusal, spec), spec.asked_by)
        return await self._preparation.prepare(call, caller, spec.conversation, step=step)

    async def forget(self, spec: JobSpec, ids: Sequence[str]) -> None:
        """Delete artifacts of a job's steps, which nothing names. Raises nothing: they expire."""
        from toolfleet_tasks.artifacts import forget_artifacts  # of a fleet that has a store

        with contextlib.suppress(FleetError):
            await forget_artifacts(self._settings, spec.user_id, ids, asked_by=spec.asked_by)

    async def publish(
        self,
        call: PublishedCall,
        spec: JobSpec | None = None,
        *,
        first_step: int | None = None,
        again: bool = False,
    ) -> ToolResult | JobCallState | None:
        """Publish a step of this job.

        Returns its result if it is surely not in its queue; `None` if it is, or is too late.

        If many calls wait for its module it is `busy`. Raises `PublishUnconfirmed` if it may or may not be there. Twice
        does no harm: it has one id, under which the ledger has it run once. One that needs an approval waits for it.
        `first_step`: as of `of_job`. `again`: it may have been published before; at a Redis it is then in its queue once.
        """
        left = call.deadline_at - fleet_clock.now()
        if again and not self._settings.has_redis_broker and call.approval is None and left > _AGAIN_SECONDS:
            return None  # RabbitMQ would have it twice: it waits there, or was lost, which its last minute is early enough for
        if left <= 0:
            return None
        publishing = self._publish(call, () if spec is None else spec.asked_by, again=again)
        if self._tracing is None or spec is None:
            return await publishing
        return await of_job(self._tracing, spec, publishing, first_step=first_step)

    async def _publish(
        self, call: PublishedCall, asked_by: tuple[str, ...], *, again: bool
    ) -> ToolResult | JobCallState | None:
        try:
            if call.approval is not None:
                answer = await self._ask_people(call.model_copy(update={"asked_by": asked_by}))
            else:
                answer = await self._dispatcher.detach(call, most_waiting=_MOST_WAITING, again=again)
        except BegunBefore:
            return JobCallState(call.call_id)
        return JobCallState(answer.call_id) if isinstance(answer, Refusal) else answer

    def unpublished(self, call: PublishedCall, result: ToolResult) -> ToolResult:
        """Return the result of a step that is in no queue and will not be published again, once its audit line is sent."""
        return self._trail.unpublished(call, result)

    async def end(self, call: PublishedCall, *, data_id: str) -> None:
        """End a step whose deadline has passed, unless it has ended.

        `data_id`: as of `Ledger.end`. Raises `RedisConnectionLost` and `ResponseError`.
        """
        await self._ledger.end(call, at_deadline(call), data_id=data_id)

    async def withdraw(self, call_id: str, call: PublishedCall | ToolResult, *, data_id: str) -> bool:
        """End a step as cancelled that no worker has begun, also one that waits for people or its turn: return whether it has an end.

        `call`: the step as it was prepared again, or its refusal. `data_id`: as of `Ledger.end`. Raises
        `RedisConnectionLost` and `ResponseError`.
        """
        if isinstance(call, PublishedCall):
            return await self._ledger.withdraw(call, taken_back(call), data_id=data_id) is not None
        # Its caller may not make it any more.
        return await self.refuse(call_id, fleet_results.cancelled(call.tool_name, effect_state="none"))

    async def refuse(
        self, call_id: str, refusal: ToolResult, *, call: PublishedCall | None = None, is_late: bool = False
    ) -> bool:
        """End a step with its refusal, unless a worker has begun it: return whether it has this end, or had one.

        `call`: the step, if it was prepared. `is_late`: its deadline has passed, so that a begun one ends as unknown.
        Raises `RedisConnectionLost` and `ResponseError`.
        """
        if call is not None:
            ending = CallEnding(refusal, refusal, refusal)
            return await self._ledger.withdraw(call, ending, data_id=ANY_DATA) is not None
        begun = fleet_results.outcome_unknown(refusal.tool_name, "nothing was heard of its end.") if is_late else None
        return await self._ledger.refuse(call_id, refusal, begun=begun) is not None


def until_of(call: PublishedCall) -> float:
    """Return the latest end of a step, in seconds since the epoch: an approval may take its time, and then the call has its own."""
    terms = call.approval
    return call.deadline_at if terms is None else call.deadline_at + terms.expires_seconds


def gate_mark(tool_name: str, arguments: Mapping[str, Any]) -> str:
    """Return the job's mark of a call that its creator's gate approved: another call of that tool is not covered by it."""
    written = json.dumps([tool_name, arguments], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(written.encode()).hexdigest()[:32]


def no_jobs_by_jobs(tool_name: str) -> ToolResult:
    """Return the refusal of a job that makes jobs: it would have no end."""
    text = f"Tool call refused: no job may call {tool_name!r}, for a job must not make jobs."
    return ToolResult.refused(tool_name, "invalid_arguments", text)


def no_program_inside() -> ToolResult:
    """Return the refusal of a program that a job or a program makes: it would wait for itself, or have no end."""
    text = f"Tool call refused: neither a job nor a program may call {RUN_PROGRAM!r}."
    return ToolResult.refused(RUN_PROGRAM, "invalid_arguments", text)


def no_gate(tool_name: str) -> ToolResult:
    """Return the refusal of a call if its agent's gate cannot be asked."""
    text = f"Tool call blocked: {tool_name!r} requires the agent's gate, which cannot be asked here."
    return ToolResult.refused(tool_name, "blocked_by_gate", text)


def no_checker(refusal: ToolResult) -> ToolResult:
    """Return the refusal of a job that polls an address in a fleet without a tool that fetches it."""
    text = f"The job is refused: an address is polled by the tool {CHECK_URL!r} of the module 'research', which this fleet does not have."
    return refusal.model_copy(update={"error": text, "hint": None})


def unknown_to_gate(tool_name: str) -> ToolResult:
    """Return the refusal of a call with arguments that the agent's gate would have to approve before they are known."""
    text = f"Tool call blocked: {tool_name!r} requires the agent's gate, which is not asked about arguments from a job's start."
    return ToolResult.refused(tool_name, "blocked_by_gate", text)


def _gate_refusal(spec: JobSpec, tool: ToolDefinition, arguments: Mapping[str, Any]) -> ToolResult | None:
    """Return the refusal of a step that requires a gate: the gate decided when the job was made."""
    is_gated = gate_mark(tool.name, arguments) in spec.gated
    note("gate", "asked_for_job" if is_gated else "missing")
    return None if is_gated else no_gate(tool.name)


class JobEngine:
    """The engine of jobs. `steps` publishes calls, opened on first use; `on_end` is called when there are events.

    A claimed or started job is processed again after `lease_seconds`, if it has no news. `is_crowded` is set when a
    call was put off because many wait for its module already; the user of the engine resets it.
    """

    def __init__(
        self,
        records: JobRecords,
        steps: Callable[[], Awaitable[JobSteps]],
        settings: Settings,
        *,
        lease_seconds: float,
        on_end: Callable[[], None],
    ) -> None:
        self._records = records
        self._steps = steps
        self._has_core = settings.core_url is not None
        self._kept_seconds = settings.result_ttl_seconds
        self._lease_seconds = lease_seconds
        self._on_end = on_end
        self._reading = asyncio.Lock()  # results are large, at times
        self._unfilled = set[str]()  # jobs of whose messages it was said
        self.is_crowded = False

    async def go_on(self, job: Found) -> None:
        """Take the due step of a claimed job.

        Raises the errors of Redis and the steps: it is due again after its lease.
        """
        place, spec = job.place, job.spec
        if place.state in ENDED:  # our own code leaves no ended job among the due ones
            log.error("ended_job_was_due", job_id=spec.job_id)
        elif job.stopped_by is not None:
            await self._apply(job, state_machine.stopped(place, job.stopped_by))
        elif place.is_under_way:
            await self._follow_up(job)
        elif (over := state_machine.over_due(spec, place, now=job.now)) is not None:
            await self._apply(job, over)
        elif place.due_at is not None and place.due_at > job.now + _EARLY_SECONDS:
            await self._records.move(job, JobChange(place, due_at=place.due_at))
        elif state_machine.next_step(spec, place) == "hook":  # it is due with its deadline, a moment from now
            await self._records.move(job, JobChange(place, due_at=spec.deadline_at))
        elif state_machine.next_step(spec, place) == "nothing":
            await self._apply(job, state_machine.reminded(spec, place, now=job.now))
        else:
            await self._begin(job)

    async def evaluate(self, job: Found) -> None:
        """Take the result of a job's call, if it is known; otherwise do nothing now."""
        if job.place.is_under_way and job.call_state == "done" and job.stopped_by is None:
            await self._follow_up(job)

    async def _begin(self, job: Found) -> None:
        spec, steps = job.spec, await self._steps()
        call = _next_call(job)
        number = state_machine.next_number(spec, job.place)
        prepared = await steps.prepare(spec, call, step_call_id(spec.job_id, number))
        if isinstance(prepared, ToolResult):
            place = state_machine.begun(spec, job.place, now=job.now, call_until=job.now)
            off = state_machine.put_off(spec, job.place, prepared, now=job.now, jitter=_jitter())
            await self._apply(job, self._after(job, place, prepared) if off is None else off)
            return
        before = job.place
        place = state_machine.begun(spec, before, now=job.now, call_until=until_of(prepared))
        # First noted, then published: a call without a note would be made again under another id.
        moved = await self._records.move(job, JobChange(place, due_at=job.now + self._lease_seconds))
        if moved is not None:
            await self._publish(steps, moved, prepared, before)

    async def _follow_up(self, job: Found) -> None:
        """Go on with a job that has, or had, a call under way."""
        call_until = job.place.call_until or 0
        if job.result is None and job.call_state == "done":
            async with self._reading:
                found = await self._records.read(job.spec.job_id)
            if found is None or found.at != job.at:
                return
            job = found
        elif job.result is None and job.now < call_until + MARGIN_SECONDS:
            if job.call_state == "begun" or job.now >= call_until or _may_wait(job):
                await self._confirm(job)
            else:
                await self._publish_again(job)
            return
        result = job.result or self._unheard(job)
        await self._apply(job, self._after(job, job.place, result), result)

    async def _publish_again(self, job: Found) -> None:
        """Publish a call again that has no record: the message was lost, or waits.

        Twice in its queue it still runs once.
        """
        steps, spec, place = await self._steps(), job.spec, job.place
        before = place.model_copy(update={"step": place.step - 1})
        call = _next_call(replace(job, place=before))
        call_id = step_call_id(spec.job_id, place.step)
        prepared = await steps.prepare(spec, call, call_id, deadline_at=place.call_until)
        if isinstance(prepared, ToolResult) and state_machine.is_unknown(prepared):
            await self._confirm(job)
        elif isinstance(prepared, ToolResult):
            await self._apply(job, self._after(job, place, prepared))
        else:
            await self._publish(steps, job, prepared, None)

    async def _publish(self, steps: JobSteps, job: Found, call: PublishedCall, before: JobPosition | None) -> None:
        """Publish the next call. `before` is the job's position, if the call is published for the first time."""
        try:
            answer = await steps.publish(call, job.spec, first_step=job.place.first)
        except PublishUnconfirmed as exc:  # looked at again after the lease: what has no record then is published again
            log.warning("job_step_not_confirmed", call_id=call.call_id, reason=str(exc))
            return
        if not isinstance(answer, ToolResult):
            await self._published(job, answer)
            return
        self.is_crowded |= answer.error_code == "busy"
        off = state_machine.put_off(job.spec, before or job.place, answer, now=job.now, jitter=_jitter())
        if off is None:
            answer = steps.unpublished(call, answer)
            await self._apply(job, self._after(job, job.place, answer))
        elif before is None:  # the first message may still be somewhere
            await self._records.move(job, JobChange(job.place, due_at=job.now + _REST_SECONDS))
        else:
            await self._apply(job, off)

    async def _published(self, job: Found, standing: JobCallState | None) -> None:
        place = job.place
        if standing is None or standing.call_id == step_call_id(job.spec.job_id, place.step):
            await self._confirm(job, is_sent=True)
        else:  # its key stands for another call of its user's, whose end is the job's matter, too
            place = place.model_copy(update={"call_id": standing.call_id})
            await self._records.move(job, JobChange(place, due_at=job.now + _JOINED_POLL_SECONDS))

    async def _confirm(self, job: Found, *, is_sent: bool = False) -> None:
        """Note that the call is published.

        Its end is usually announced; it is checked now and then, until its deadline has passed.
        """
        rest = _POLL_SECONDS if job.place.call_id is None else _JOINED_POLL_SECONDS
        due_at = min((job.place.call_until or job.now) + MARGIN_SECONDS, job.now + rest)
        await self._records.move(job, JobChange(job.place, due_at=due_at, is_sent=is_sent))

    def _unheard(self, job: Found) -> ToolResult:
        """Return the result of a call without an available end.

        That it was never started is known while its record would be there.
        """
        spec = job.spec
        call = spec.start if job.place.state == "starting" else spec.poll
        tool_name = "" if call is None else call.tool_name
        if job.call_state == "" and job.place.call_id is None and job.now < self._known_until(job):
            return fleet_results.expired(tool_name)
        reason = "its result has expired." if job.call_state == "done" else "nobody has heard of its end."
        return fleet_results.outcome_unknown(tool_name, reason)

    def _known_until(self, job: Found) -> float:
        """Return until when a record would be there if the call was ever started: no worker may have looked for hours, as all were away."""
        after_deadline = (job.place.call_until or 0) + _RECORD_SECONDS
        # Of its time from its end on, half: it may have been confirmed to be in its queue some time after it was.
        return after_deadline if job.sent_at is None else max(after_deadline, job.sent_at + self._kept_seconds / 2)

    def _after(self, job: Found, place: JobPosition, result: ToolResult) -> Transition:
        spec, now = job.spec, job.now
        if place.state != "starting":
            return state_machine.after_poll(spec, place, result, now=now, jitter=_jitter())
        move = state_machine.after_start(spec, place, result, now=now, jitter=_jitter())
        if result.success and spec.poll is not None and takes_from_start(spec.poll.arguments):
            fault = values_for(spec.poll.arguments, result.result).fault
            return move if fault is None else state_machine.failed(spec, place, fault)
        return move

    async def _apply(self, job: Found, move: Transition, result: ToolResult | None = None) -> None:
        spec, now, poll_values = job.spec, job.now, None
        if result is not None and result.artifacts and move.ended is not None and move.ended.result is not None:
            from toolfleet_registry.previews import previewed  # of a fleet that has a store

            if (shown := previewed(result).result) is not result.result:  # else only files are kept
                move = replace(move, ended=replace(move.ended, shown=shown))
        is_started = job.place.state == "starting" and result is not None and result.success and not move.is_over
        if is_started and result is not None and spec.poll is not None and takes_from_start(spec.poll.arguments):
            poll_values = dict(values_for(spec.poll.arguments, result.result).values)
        end = end_note(spec, move, now)
        events = end_events_of(spec, move, now, has_core=self._has_core, seal=self._records.sealed)
        change = JobChange(
            move.place,
            due_at=None if end is not None else move.place.due_at,
            poll_values=poll_values,
            end=end,
            events=events,
        )
        if await self._records.move(job, change) is None:
            return
        if result is not None and result.artifacts and move.ended is None:
            await self._forget(job, result)
        if move.place.missing is not None and move.place.missing != job.place.missing:
            log.warning("job_condition_finds_nothing", job_id=spec.job_id, path=move.place.missing)
        if names := unfilled(spec, move):
            self._say_unfilled(spec.job_id, names)
        if move.reason is not None:
            log.info("job_stopped", job_id=spec.job_id, failed_job_id=job.stopped_by)
        if move.ended is not None:
            log.info("job_ended" if end is not None else "job_round_ended", job_id=spec.job_id, state=move.ended.state)
            self._on_end()

    async def _forget(self, job: Found, result: ToolResult) -> None:
        """Delete what a poll has left that no one is told of."""
        begin = f"{step_call_id(job.spec.job_id, job.place.step)}."  # not of another call that stands for it
        ids = [each.id for each in result.artifacts if each.id.startswith(begin)]
        if ids and job.place.state != "starting":
            await (await self._steps()).forget(job.spec, ids)

    def _say_unfilled(self, job_id: str, names: tuple[str, ...]) -> None:
        """Log the unfilled places once, also of a job with many rounds, as far as is known here."""
        if job_id not in self._unfilled:
            if len(self._unfilled) >= _MOST_UNFILLED:
                self._unfilled.clear()
            self._unfilled.add(job_id)
            log.warning("job_message_not_filled", job_id=job_id, places=names)


def _next_call(job: Found) -> ToolCall:
    spec = job.spec
    if spec.start is not None and state_machine.next_step(spec, job.place) == "start":
        return spec.start
    if spec.poll is None:
        raise ValueError(f"The job {spec.job_id!r} has nothing to call.")
    return spec.poll.call_with(filled(spec.poll.arguments, job.poll_values))


def _may_wait(job: Found) -> bool:
    """Return whether a call without a record is probably in its queue and not lost: for a minute, and half of its time."""
    if job.place.call_id is not None:
        return True
    if job.sent_at is None or job.place.call_until is None:
        return False
    return job.now < job.sent_at + max(_AGAIN_SECONDS, (job.place.call_until - job.sent_at) / 2)


def _jitter() -> float:
    return randomness.uniform(-1, 1)  # spreads load, guards nothing
