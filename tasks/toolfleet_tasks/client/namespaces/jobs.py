"""Starts, shows and cancels jobs (`fleet.jobs`), and ends them from outside (`fleet.hooks`)."""

import builtins
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from toolfleet_registry.contracts import Caller, Conversation, ErrorCode, ToolCall, ToolResult
from toolfleet_registry.contracts.jobs import Completion, HookSpec, Job, JobRefused, JobSpec, Poll, Schedule
from toolfleet_registry.policy.call_faults import resolved
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks.calls.audit_trail import asked_by_here
from toolfleet_tasks.client.sessions import Sessions
from toolfleet_tasks.client.sync_face import SyncFace, blocking
from toolfleet_tasks.jobs.service import HookEnd
from toolfleet_tasks.jobs.state_machine import LONGEST_SECONDS, EndedRound
from toolfleet_tasks.messages.ids import job_id_for

_NO_DEADLINE_SECONDS = 7 * 86_400  # of a job without a given one: longer than anything that is still waited for
_LONGEST_NAME = 200
_FAILED: ErrorCode = "module_error"  # as when a poll's result says that the work has failed


class FleetJobs:
    """The jobs of a caller's user: long work that is polled until it is over."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def start(
        self,
        start: ToolCall | None = None,
        poll: Poll | None = None,
        on_complete: Completion | Sequence[Completion] = "resume_conversation",
        conversation: Conversation | None = None,
        deadline: float | None = None,
        *,
        caller: Caller,
        name: str = "",
        message: str | None = None,
        on_failure_message: str | None = None,
        schedule: Schedule | None = None,
        idempotency_key: str | None = None,
        workflow_id: str | None = None,
        hook: HookSpec | None = None,
    ) -> Job:
        """Start long work, poll it, and do `on_complete` once at its end, whatever stops meanwhile.

        `start` is its first call, made at once (or at `schedule.at`) by a worker; then `poll` until it says that the
        work is over, or until `hook`'s signed request reaches a gateway; without these it is a reminder. All ends in
        `deadline` seconds, and each call is made with the caller's present rights. If it fails, the other jobs of its
        user's `workflow_id` are cancelled. `idempotency_key`, or that of `start`, names the job: for its user it is the
        same then, and another one a `conflict`.

        Raises `JobRefused` if it could not run or its end would reach no one; `FleetUnavailable` when Redis does not
        answer: it may exist then, and asked for again under its key it is one.
        """
        session, key = await self._sessions.opened(), idempotency_key or (start.idempotency_key if start else None)
        said = dict[str, Any](message=message, on_failure_message=on_failure_message, workflow_id=workflow_id)
        said |= {"hook": hook, "name": name[:_LONGEST_NAME], "conversation": conversation or Conversation()}
        spec = _spec(
            session.settings,
            deadline,
            job_id=job_id_for(caller.user_id, key),
            caller=caller,
            on_complete=(on_complete,) if isinstance(on_complete, str | ToolCall) else on_complete,
            plan=(start, poll, schedule),
            **said,
        )
        return await session.jobs.start(spec, by_key=bool(key))

    async def get(self, job_id: str, caller: Caller) -> Job | None:
        """Return a job of the caller's user; `None` if there is none, or not any more. Raises `FleetUnavailable`."""
        return await (await self._sessions.opened()).jobs.get(job_id, caller.user_id)

    async def list(
        self, caller: Caller, *, ended: bool = True, limit: int = 100, workflow_id: str | None = None
    ) -> builtins.list[Job]:
        """List at most `limit` jobs of the caller's user, the newest first; with `ended` those that are over, too; or of one workflow."""
        service = (await self._sessions.opened()).jobs
        return await service.list(caller.user_id, ended=ended, limit=limit, workflow_id=workflow_id)

    async def cancel(self, job_id: str, caller: Caller) -> Job | None:
        """End a job of the caller's user, and send no wake-up. A call of it that runs is left to end. `None`: no such job."""
        return await (await self._sessions.opened()).jobs.cancel(job_id, caller.user_id)

    async def cancel_workflow(self, workflow_id: str, caller: Caller) -> int:
        """End all jobs of a workflow of the caller's user, as `cancel`. Returns how many; those that have ended stay as they are."""
        return await (await self._sessions.opened()).jobs.cancel_workflow(workflow_id, caller.user_id)


class SyncFleetJobs(SyncFace[FleetJobs]):
    """`FleetJobs` with plain methods."""

    start = blocking(FleetJobs.start)
    get = blocking(FleetJobs.get)
    list = blocking(FleetJobs.list)
    cancel = blocking(FleetJobs.cancel)
    cancel_workflow = blocking(FleetJobs.cancel_workflow)


def _spec(
    settings: Settings,
    deadline: float | None,
    *,
    caller: Caller,
    plan: tuple[ToolCall | None, Poll | None, Schedule | None],
    **fields: Any,
) -> JobSpec:
    """Build the specification. Raises `JobRefused` for a value of a wrong type: the first fault, and where."""
    (start, poll, schedule), now = plan, fleet_clock.now()
    schedule = None if schedule is None else schedule.counted_from(now)
    seconds = _default_seconds(poll, schedule, LONGEST_SECONDS) if deadline is None else deadline
    fields |= {"created_at": now, "deadline_at": now + seconds, "start": start, "poll": poll, "schedule": schedule}
    fields["asked_by"] = asked_by_here(caller.user_id)
    try:
        return JobSpec(caller=resolved(caller, settings.default_guest_modules), user_id=caller.user_id, **fields)
    except ValidationError as exc:
        fault = exc.errors(include_url=False, include_context=False, include_input=False)[0]
        text = f"The job is refused: {'.'.join(map(str, fault['loc']))}: {fault['msg']}."
        raise JobRefused(ToolResult.refused("", "invalid_arguments", text)) from None


def _default_seconds(poll: Poll | None, schedule: Schedule | None, longest: float) -> float:
    """A recurring job lasts as long as a job may; one that begins later has its time from then on."""
    if schedule is not None and schedule.cron is not None:
        return longest
    ahead = max((schedule.at or 0) - fleet_clock.now(), 0) if schedule is not None else 0
    return min(ahead + max(_NO_DEADLINE_SECONDS, 2 * poll.max_seconds if poll is not None else 0), longest)


class FleetHooks:
    """The hooks of jobs, for gateways, which verify the sender. Raises `FleetUnavailable`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def of_job(self, job_id: str) -> HookSpec | None:
        """Return the hook of any user's job; `None` for one without a hook, or that there is not."""
        return await (await self._sessions.opened()).jobs.hooks.of_job(job_id)

    async def complete(self, job_id: str, delivery: str, result: Any) -> HookEnd | None:
        """End a job as completed, once; `delivery` is the request's id. `None`: there is no such job with a hook."""
        return await self._end(job_id, delivery, EndedRound("completed", result))

    async def fail(self, job_id: str, delivery: str, error: str) -> HookEnd | None:
        """End the job as `complete` does, as failed: `error` is the outside system's message."""
        text = f"The job has failed: its hook says: {error}"
        return await self._end(job_id, delivery, EndedRound("failed", error=text, error_code=_FAILED))

    async def _end(self, job_id: str, delivery: str, said: EndedRound) -> HookEnd | None:
        return await (await self._sessions.opened()).jobs.hooks.end(job_id, delivery, said)
