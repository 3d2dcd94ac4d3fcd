"""Starts, shows and cancels jobs, and ends those that wait for a request of an outside system."""

import builtins
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from toolfleet_registry.conditions import FROM, check_condition, check_filling, takes_from_start
from toolfleet_registry.config.webhook_settings import secret_fault
from toolfleet_registry.contracts import ErrorCode, ToolCall, ToolDefinition, ToolResult
from toolfleet_registry.contracts.artifacts import owner_for
from toolfleet_registry.contracts.attempts import UNBOUNDED, Lease, require_live
from toolfleet_registry.contracts.jobs import ENDED, HookSpec, Job, JobRefused, JobSpec, Poll
from toolfleet_registry.contracts.names import SCHEDULER
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.local.scheduler_tools import CHECK_URL
from toolfleet_registry.policy.call_faults import LONGEST, as_sent, fault_in_version
from toolfleet_registry.policy.redaction import has_sensitive_results, sensitive_paths
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock, randomness
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.calls.eval_gate import Evaluation, requires_gate
from toolfleet_tasks.calls.prepare import CallPreparation
from toolfleet_tasks.jobs import state_machine
from toolfleet_tasks.jobs.completion import end_events_of, end_note, shown
from toolfleet_tasks.jobs.engine import gate_mark, no_checker, no_gate, no_jobs_by_jobs, unknown_to_gate
from toolfleet_tasks.jobs.records import Found, JobChange, JobRecords
from toolfleet_tasks.jobs.state_machine import LONGEST_SECONDS, EndedRound, check_schedule, is_unknown, next_after
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.ids import RESUME, request_digest
from toolfleet_tasks.redis_connection import answered
from toolfleet_tasks.tracing import with_trace
from toolfleet_tasks.wakeups.events import has_places

log = get_logger(__name__)

_SHORTEST_POLL_SECONDS = 1.0  # a model that asks for less would have its module asked without a pause
_GATE_SECONDS = 2.0  # for the agent's gate to decide about one tool
_MOST_LISTED = 1_000
_ROUNDED_SECONDS = 0.001  # that a time in a record may be later than meant
_TRIES = 20  # to cancel a job that moves meanwhile
_MOST_REQUESTS = 10
_LONGEST_ID = 200  # characters
_MOST_CHARACTERS = 256_000  # of the whole job, as JSON: it waits in Redis's memory

_MOST_READ = 1_000
_HOOKS_TRIES = 20  # to end a job that moves meanwhile


class JobService:
    """The jobs of one fleet. Every method raises `FleetUnavailable` when Redis does not answer within 5 s.

    `gate` asks the agent's; without it tools that require one are refused. `control` runs one of our own tasks: due
    work is done at once.
    """

    def __init__(
        self,
        records: JobRecords,
        preparation: CallPreparation,
        settings: Settings,
        *,
        gate: Evaluation | None,
        control: Callable[[str], Awaitable[None]],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._records = records
        self._preparation = preparation
        self._settings = settings
        self._gate = gate
        self._control = control
        self._spawn = spawn
        self.hooks = JobHooks(records, settings, on_end=lambda: self._spawn(self._kicked()))

    async def start(self, spec: JobSpec, *, by_key: bool = False, lease: Lease = UNBOUNDED) -> Job:
        """Make a job and start it; with the id of an existing one, return that. Raises `JobRefused`.

        On a `lease` that is over by then it makes none, and raises `LeaseOver`: a call on it is to make the job.
        `by_key`: its id is that of a key of its user's, which stands for one request only.
        """
        if fault := fault_in(spec, self._settings):
            raise _refused(spec, "invalid_arguments", fault)
        digest = request_digest(spec) if by_key else None
        caller = as_sent(spec.caller, self._settings.default_guest_modules)
        spec = await _without_personal_data(spec.model_copy(update={"caller": caller}), self._preparation)
        spec = (await self._judged(spec)).model_copy(update={"wish": digest})
        spec = with_trace(spec, is_traced=self._settings.traces is not False)
        now = fleet_clock.now()
        shift = now - spec.created_at  # judging may have taken its time
        spec = spec.model_copy(
            update={
                "created_at": round(now, 3),
                "deadline_at": round(spec.deadline_at + shift, 3),
            }
        )
        place = state_machine.first_place(spec, now=now, jitter=randomness.uniform(-1, 1))  # spreads load
        require_live(lease)
        made = await answered(self._records.create(spec, place, limit=self._settings.jobs_per_user))
        if isinstance(made, int):
            text = f"The job is refused: its user has {made} jobs that have not ended. It may be made when one of them has."
            raise _refused(spec, "busy", text)
        if made.spec.user_id != spec.user_id:
            raise _refused(spec, "conflict", "The job is refused: its id is that of another user's.")
        if made.spec.wish != digest:
            raise _refused(spec, "conflict", "The job is refused: its key stands for another one, with other calls.")
        if made.place.due_at is not None and made.place.due_at <= now + _ROUNDED_SECONDS:
            self._spawn(self._kicked())
        return shown(made.spec, made.place, made.end)

    async def get(self, job_id: str, user_id: str | None) -> Job | None:
        """Return a job of the user; `None` if they have none of that id, or if it is no longer kept."""
        job = await answered(self._records.get(job_id))
        return None if job is None or job.spec.user_id != user_id else shown(job.spec, job.place, job.end)

    async def list(
        self, user_id: str | None, *, ended: bool = True, limit: int = 100, workflow_id: str | None = None
    ) -> builtins.list[Job]:
        """Return at most `limit` jobs of this user (of one workflow), the newest first; without `ended` only those that are not over."""
        asked = self._records.of_user(user_id, ended=ended, limit=_bounded(limit), workflow_id=workflow_id)
        found = await answered(asked)
        return [shown(job.spec, job.place, job.end) for job in found]

    async def cancel(self, job_id: str, user_id: str | None) -> Job | None:
        """End this user's job without reporting it.

        One that has ended stays as it is; a poll under way is left to end.
        """
        return await answered(self._cancel(job_id, lambda job: job.spec.user_id == user_id))

    async def list_all(
        self, *, ended: bool = False, limit: int = 100, workflow_id: str | None = None
    ) -> builtins.list[Job]:
        """Return at most `limit` jobs of all users, for operators: the next due first; of ended ones, the latest first."""
        found = await answered(self._records.of_all(ended=ended, limit=_bounded(limit), workflow_id=workflow_id))
        return [shown(job.spec, job.place, job.end) for job in found]

    async def get_any(self, job_id: str) -> Job | None:
        """Return a job as `get` does, of any user: for operators."""
        job = await answered(self._records.get(job_id))
        return None if job is None else shown(job.spec, job.place, job.end)

    async def cancel_any(self, job_id: str) -> Job | None:
        """Cancel a job as `cancel` does, of any user: for operators."""
        return await answered(self._cancel(job_id, lambda _: True))

    async def cancel_all_of(self, user_id: str) -> int:
        """Cancel all of a user's jobs: for operators, when that user loses rights. Returns how many there were."""
        return await self._cancel_each(lambda: self.list(user_id, ended=False, limit=_MOST_LISTED))

    async def cancel_workflow(self, workflow_id: str, user_id: str | None) -> int:
        """Cancel all jobs of a workflow of this user, also those that are made meanwhile.

        Returns how many there were.
        """
        return await self._cancel_each(
            lambda: self.list(user_id, ended=False, limit=_MOST_LISTED, workflow_id=workflow_id)
        )

    async def cancel_workflow_of_any(self, workflow_id: str) -> int:
        """Cancel a workflow's jobs as `cancel_workflow` does, of all users: for operators."""
        return await self._cancel_each(lambda: self.list_all(ended=False, limit=_MOST_LISTED, workflow_id=workflow_id))

    async def _cancel_each(self, listed: Callable[[], Awaitable[builtins.list[Job]]]) -> int:
        """Cancel until none is left; jobs that ended otherwise meanwhile do not count."""
        cancelled = 0
        while jobs := await listed():
            found = [await self.cancel_any(job.job_id) for job in jobs]
            if not any(found):  # gone meanwhile
                break
            cancelled += sum(job is not None and job.state == "cancelled" for job in found)
        return cancelled

    async def _cancel(self, job_id: str, is_theirs: Callable[[Found], bool]) -> Job | None:
        for _ in range(_TRIES):
            job = await self._records.get(job_id)
            if job is None or not is_theirs(job):
                return None
            if job.place.state in ENDED:
                return shown(job.spec, job.place, job.end)
            move, now = state_machine.cancelled(job.place), fleet_clock.now()
            end = end_note(job.spec, move, now)
            if await self._records.move(job, JobChange(move.place, end=end)) is not None:
                log.info("job_cancelled", job_id=job_id)
                return shown(job.spec, move.place, end)
        raise FleetUnavailable(f"The job {job_id!r} moves all the time: try again.")

    async def _judged(self, spec: JobSpec) -> JobSpec:
        """Return the job as its tools and the agent's gate allow it. Raises `JobRefused`."""
        gated, secret, hides = set[str](), set[str](), False
        before_end = sum(step is not None for step in (spec.start, spec.poll))
        for number, call in enumerate(steps_of(spec)):
            if call.tool_name.partition(".")[0] == SCHEDULER:
                raise JobRefused(no_jobs_by_jobs(call.tool_name))
            tool = self._preparation.tool_of(call, spec.caller)
            if isinstance(tool, ToolResult):
                has_nobody = call.tool_name == CHECK_URL and is_unknown(tool)
                raise JobRefused(no_checker(tool) if has_nobody else tool)
            if (mark := await self._let_pass(spec, call, tool)) is not None:
                gated.add(mark)
            if number < before_end:
                hides = hides or has_sensitive_results(tool)
            elif sensitive_paths(tool):
                secret.add(call.tool_name)
        found = {"gated": tuple(sorted(gated)), "secret_tools": tuple(sorted(secret)), "hides_results": hides}
        found["fills"] = has_places(spec.message, spec.on_failure_message)
        return spec.model_copy(update=found)

    async def _let_pass(self, spec: JobSpec, call: ToolCall, tool: ToolDefinition) -> str | None:
        """Return the call's mark if its tool requires a gate and the gate lets it pass. Raises `JobRefused`."""
        around = self._preparation.ruled(tool, spec.caller, spec.conversation)
        is_required = requires_gate(tool, around)
        if may_be_filled(call) and is_required:
            raise JobRefused(unknown_to_gate(tool.name))
        judged = self._preparation.judge(call, spec.caller, spec.conversation)
        if isinstance(judged, ToolResult):
            if judged.error_code == "invalid_arguments" and may_be_filled(call):
                return None  # they are unknown yet
            raise JobRefused(judged)
        arguments = judged.arguments
        if not may_be_filled(call):  # else its artifacts are unknown yet, too
            owner = owner_for(spec.user_id, spec.asked_by)
            bound = await self._preparation.bound(tool, arguments, spec.caller, owner)
            if isinstance(bound, ToolResult):
                raise JobRefused(bound)
            arguments = bound[0]
        if not is_required:
            return None
        if self._gate is None:
            raise JobRefused(no_gate(tool.name))
        refusal = await self._gate.refusal(tool, arguments, spec.user_id, around, seconds=_GATE_SECONDS)
        if refusal is not None:
            raise JobRefused(refusal)
        return gate_mark(tool.name, arguments)

    async def _kicked(self) -> None:
        try:
            await self._control(RESUME)
        except Exception as exc:  # noqa: BLE001 - beat's next tick will do
            log.warning("kick_not_published", task=RESUME, error=str(exc) or repr(exc))


def _refused(spec: JobSpec, code: ErrorCode, text: str) -> JobRefused:
    tool_name = next((call.tool_name for call in steps_of(spec)), "")
    result = ToolResult.refused(tool_name, code, text)
    return JobRefused(result.model_copy(update={"retryable": True}) if code == "busy" else result)


def _bounded(limit: int) -> int:
    return min(max(limit, 1), _MOST_LISTED)


async def _without_personal_data(spec: JobSpec, preparation: CallPreparation) -> JobSpec:
    """Return the job with personal data hidden. Raises `JobRefused` if the profile blocks such data."""
    if not preparation.has_profile(spec.caller):
        return spec

    async def hidden(call: ToolCall) -> ToolCall:
        found = await preparation.hidden(call, spec.caller)
        if isinstance(found, ToolResult):
            raise JobRefused(found)
        return found

    poll = spec.poll
    if poll is not None:
        poll = poll.model_copy(update={"arguments": (await hidden(poll.call_with(poll.arguments))).arguments})
    ends = [await hidden(end) if isinstance(end, ToolCall) else end for end in spec.on_complete]
    start = None if spec.start is None else await hidden(spec.start)
    return spec.model_copy(update={"start": start, "poll": poll, "on_complete": tuple(ends)})


def fault_in(spec: JobSpec, settings: Settings) -> str | None:
    """Return why the job cannot be made, or `None`.

    Does not check whether its tools exist and its creator may call them.
    """
    try:
        _check(spec, settings)
    except (ValueError, RecursionError) as exc:
        return f"The job is refused: {str(exc).partition(chr(10))[0]}"
    return None


def steps_of(spec: JobSpec) -> Iterator[ToolCall]:
    """Return the calls that a job may make: its start, its poll, and those of its end."""
    if spec.start is not None:
        yield spec.start
    if spec.poll is not None:
        yield spec.poll.call_with(spec.poll.arguments)
    yield from (request for request in spec.on_complete if isinstance(request, ToolCall))


def may_be_filled(call: ToolCall) -> bool:
    """Return whether the call's arguments are unknown before the job has started: a poll's may be."""
    return isinstance(call.arguments, dict) and takes_from_start(call.arguments)


def _check(spec: JobSpec, settings: Settings) -> None:
    if not spec.job_id or len(spec.job_id) > _LONGEST_ID:
        raise ValueError(f"Its id has 1 to {_LONGEST_ID} characters.")
    for name, said in spec.conversation:
        if said is not None and len(said) > LONGEST:
            raise ValueError(f"The `{name}` of its conversation has more than {LONGEST} characters.")
    _check_calls(spec)
    _check_times(spec)
    if spec.poll is not None:
        _check_poll(spec.poll, settings, has_start=spec.start is not None)
    if spec.hook is not None:
        _check_hook(spec, spec.hook)
    _check_ends(spec, settings)
    if len(json_text.dump(spec)) > _MOST_CHARACTERS:
        raise ValueError(f"It has more than {_MOST_CHARACTERS:,} characters as JSON.")


def _check_calls(spec: JobSpec) -> None:
    if spec.user_id is None and any(call.user_id is not None for call in steps_of(spec)):
        raise ValueError("A call of it has a `user_id` and its caller has none: nobody could look at it, or cancel it.")
    for call in steps_of(spec):  # also of one whose arguments are unknown yet, which is judged when it is made
        if fault := fault_in_version(call.tool_version):
            raise ValueError(fault)
    ends = [request for request in spec.on_complete if isinstance(request, ToolCall)]
    if any(map(may_be_filled, ends if spec.start is None else [spec.start, *ends])):
        raise ValueError(
            f"{FROM!r} stands for a value of the start's result, which only its poll's arguments can have."
        )


def _check_times(spec: JobSpec) -> None:
    seconds, longest = spec.deadline_at - spec.created_at, LONGEST_SECONDS
    if spec.schedule is not None:
        check_schedule(spec.schedule)
        if spec.schedule.at is not None and spec.schedule.at > fleet_clock.now() + longest:
            raise ValueError(f"It begins more than {longest} s ahead.")
    if not math.isfinite(seconds) or seconds <= 0:
        raise ValueError("Its deadline must lie in the future: `deadline` is a number of seconds, above 0.")
    if seconds > longest * 1.001:  # clocks differ, and floats round
        raise ValueError(f"Its deadline is more than {longest} s ahead.")
    if spec.schedule is None:
        if spec.start is None and spec.poll is None and spec.hook is None:
            raise ValueError("It needs a `start`, a `poll`, a `hook` or a `schedule`.")
        return
    if spec.schedule.cron is not None and spec.start is not None:
        raise ValueError("With a cron schedule give the call as `poll`, with `until` null: `start` is made once.")
    first_at = spec.schedule.at if spec.schedule.cron is None else next_after(spec.schedule, fleet_clock.now())
    if first_at is not None and first_at >= fleet_clock.now() + seconds:
        raise ValueError("Its schedule begins after its deadline.")


def _check_poll(poll: Poll, settings: Settings, *, has_start: bool) -> None:
    shortest = min(_SHORTEST_POLL_SECONDS, settings.jobs_interval_seconds)  # what is due is looked for no more often
    if poll.interval_seconds < shortest:
        raise ValueError(f"`interval_seconds` must be at least {shortest:g}.")
    for condition in (poll.until, poll.failed_when):
        if condition is not None:
            check_condition(condition)
    check_filling(poll.arguments)
    if not has_start and takes_from_start(poll.arguments):
        raise ValueError("Its poll takes arguments from the start's result, and it has no `start`.")


def _check_hook(spec: JobSpec, hook: HookSpec) -> None:
    if spec.poll is not None or spec.schedule is not None:
        raise ValueError("With a `hook` it has neither `poll` nor `schedule`: the hook's request ends it.")
    for secret in hook.secrets:
        if (fault := secret_fault(secret)) is not None:
            raise ValueError(f"A secret of its hook {fault}.")


def _check_ends(spec: JobSpec, settings: Settings) -> None:
    if len(spec.on_complete) > _MOST_REQUESTS:
        raise ValueError(f"`on_complete` has at most {_MOST_REQUESTS} entries.")
    if not spec.on_complete:
        raise ValueError("`on_complete` is empty: nobody would hear of its end.")
    is_announced = any(not isinstance(request, ToolCall) for request in spec.on_complete)
    if is_announced and settings.core_url is None and spec.conversation.conversation_id is None:
        raise ValueError(
            "Nobody would hear of its end: it needs a `conversation` with an id, or the fleet a core (TOOLFLEET_CORE_URL)."
        )


@dataclass(frozen=True, slots=True)
class HookEnd:
    """A job that has ended, and whether this request has ended it, now or when it came before."""

    job: Job
    is_its_end: bool


class JobHooks:
    """The hooks of jobs.

    Every method raises `FleetUnavailable` when Redis does not answer within 5 s. `on_end` is called when there are
    events.
    """

    def __init__(self, records: JobRecords, settings: Settings, *, on_end: Callable[[], object]) -> None:
        self._records = records
        self._has_core = settings.core_url is not None
        self._on_end = on_end

    async def of_job(self, job_id: str) -> HookSpec | None:
        """Return the hook of a job; `None` for a job without one, or that does not exist (any more)."""
        job = await answered(self._records.get(job_id))
        return None if job is None else job.spec.hook

    async def without_job_id(self) -> list[str]:
        """Return the ids of jobs with hooks that take requests without a job's name, among 1,000 that have not ended."""
        found = await answered(self._records.of_all(ended=False, limit=_MOST_READ))
        hooks = {job.spec.job_id: job.spec.hook for job in found}
        return [job_id for job_id, hook in hooks.items() if hook is not None and not hook.requires_job_id]

    async def end(self, job_id: str, delivery: str, said: EndedRound) -> HookEnd | None:
        """End a job as the request with the id `delivery` says, and send its events once; `None` if it has no hook.

        One that has ended stays as it is. One past its deadline has timed out, regardless of the request.
        """
        return await answered(self._end(job_id, delivery, said))

    async def _end(self, job_id: str, delivery: str, said: EndedRound) -> HookEnd | None:
        for _ in range(_HOOKS_TRIES):
            job = await self._records.get(job_id)
            if job is None or job.spec.hook is None:
                return None
            if job.place.state in ENDED:
                is_its_end = job.end is not None and job.end.delivery == delivery
                return HookEnd(shown(job.spec, job.place, job.end), is_its_end)
            live = await self._records.read(job_id)  # knows also what else of its workflow has failed
            if live is not None and (ended := await self._ended(live, delivery, said)) is not None:
                return ended
        raise FleetUnavailable(f"The job {job_id!r} moves all the time: try again.")

    async def _ended(self, job: Found, delivery: str, said: EndedRound) -> HookEnd | None:
        """End the job; return `None` if it was moved meanwhile."""
        spec, place, now = job.spec, job.place, job.now
        if place.state in ENDED:
            return None
        if job.stopped_by is not None:
            move = state_machine.stopped(place, job.stopped_by)
        else:
            move = state_machine.after_hook(spec, place, said, now=now)
        is_its_end = move.ended is said
        end = end_note(spec, move, now)
        if end is not None and is_its_end:
            end = end.model_copy(update={"delivery": delivery})
        events = end_events_of(spec, move, now, has_core=self._has_core, seal=self._records.sealed)
        if await self._records.move(job, JobChange(move.place, end=end, events=events)) is None:
            return None
        log.info("job_ended", job_id=spec.job_id, state=move.place.state, delivery=delivery)
        self._on_end()
        return HookEnd(shown(spec, move.place, end), is_its_end)
