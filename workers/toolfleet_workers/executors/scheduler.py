"""Runs the calls of the module `scheduler`: what a model wants of its jobs, by the service that makes them."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Protocol

from pydantic import ValidationError

from toolfleet_registry.contracts import Conversation, ErrorCode, PublishedCall, ToolCall, ToolResult
from toolfleet_registry.contracts.attempts import UNBOUNDED, Attempt, Health, Lease, LeaseOver, Outcome, require_live
from toolfleet_registry.contracts.call_context import CONVERSATION_FIELDS
from toolfleet_registry.contracts.jobs import Job, JobRefused, JobSpec, Poll, Schedule, WakeupRequest
from toolfleet_registry.contracts.names import SCHEDULER
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.local.scheduler_tools import url_poll
from toolfleet_registry.system import fleet_clock
from toolfleet_workers.runner import too_late, unsuccessful

_ADD = f"{SCHEDULER}.add_job"
_LISTED = 20

_DAY = 86_400.0  # seconds: what a job has that does not say
_POLL = ("arguments", "interval_seconds", "backoff", "until", "failed_when", "max_seconds")
_EXPECTED = {"expected_status": "status", "expected_field": "field", "expected_value": "value"}
_WATCHES = {"interval_seconds", "backoff", "until", "failed_when"}  # one of these means more than one call


class JobPort(Protocol):
    """Makes, shows and cancels jobs. Every method raises `FleetUnavailable` when Redis does not answer."""

    async def start(self, spec: JobSpec, *, lease: Lease) -> Job:
        """Make a job on a live `lease`; with the id of one that exists, that one. Raises `JobRefused` and `LeaseOver`."""
        ...

    async def get(self, job_id: str, user_id: str | None) -> Job | None:
        """Return a job of this user; `None` if there is none of that id."""
        ...

    async def list(
        self, user_id: str | None, *, ended: bool = True, limit: int = 100, workflow_id: str | None = None
    ) -> "list[Job]":
        """Jobs of this user, or of one of their workflows, the newest first."""
        ...

    async def cancel(self, job_id: str, user_id: str | None) -> Job | None:
        """End a job of this user; one that has ended stays as it is."""
        ...

    async def cancel_workflow(self, workflow_id: str, user_id: str | None) -> int:
        """End the jobs of a workflow of this user. Returns how many."""
        ...


_Method = Callable[[JobPort, PublishedCall, Lease], Awaitable[Any]]


class SchedulerExecutor:
    """`service` opens the service of the running loop, or says `FleetUnavailable`. No job may last for `longest_seconds`.

    The service refuses a job that its creator could not do in person, and one that would make jobs.
    """

    def __init__(self, service: Callable[[], AbstractAsyncContextManager[JobPort]], *, longest_seconds: float) -> None:
        self._service = service
        self._longest_seconds = longest_seconds
        self._methods = {
            "add_job": self._add,
            "cancel_job": self._cancel,
            "cancel_workflow": self._cancel_workflow,
            "get_job": self._get,
            "list_jobs": self._list,
        }

    async def execute(self, call: PublishedCall, *, seconds: float, lease: Lease = UNBOUNDED) -> Attempt:
        """Make one attempt within `seconds`. Raises `TimeoutError` if they are over.

        When Redis does not answer, a job that was to be made may exist; the next attempt finds it.
        """
        method = self._methods.get(call.tool_name.removeprefix(f"{SCHEDULER}."))
        if method is None:
            return unsuccessful(call, Outcome.PERMANENT, "unknown_tool", f"Unknown tool: {call.tool_name}")
        if call.user_id is None:  # all callers without a user would share their jobs
            text = "Jobs belong to a user, and this call has none."
            return unsuccessful(call, Outcome.PERMANENT, "permission_denied", text)
        try:
            async with asyncio.timeout(seconds):
                return await self._ask_service(call, method, lease)
        except JobRefused as exc:
            return _refused(call, exc.result)
        except _Wrong as exc:
            return unsuccessful(call, Outcome.PERMANENT, "invalid_arguments", str(exc))

    async def reconcile(self, call: PublishedCall, *, seconds: float, lease: Lease = UNBOUNDED) -> Attempt | None:
        """Return the job that a lost call has made, if it has."""
        if call.tool_name != _ADD or lease.seconds_left() <= 0:
            return None
        try:
            async with asyncio.timeout(seconds), self._service() as service:
                job = await service.get(call.call_id, call.user_id)
        except (TimeoutError, FleetUnavailable):
            return None
        return None if job is None else Attempt(Outcome.SUCCESS, ToolResult.ok(call.tool_name, description_of(job)))

    async def probe(self, module: str, *, seconds: float) -> Health:
        """Return that it is well: it is in its worker."""
        del module, seconds
        return Health.WELL

    async def aclose(self) -> None:
        """Do nothing: another component owns the service."""

    async def _ask_service(self, call: PublishedCall, method: _Method, lease: Lease) -> Attempt:
        away: tuple[Outcome, ErrorCode] = (Outcome.NOT_SENT, "module_unreachable")
        try:
            async with self._service() as service:
                require_live(lease)
                if call.tool_name == _ADD:
                    away = (Outcome.UNKNOWN, "outcome_unknown")
                return Attempt(Outcome.SUCCESS, ToolResult.ok(call.tool_name, await method(service, call, lease)))
        except LeaseOver:
            return too_late(call)
        except FleetUnavailable as exc:
            return unsuccessful(call, *away, f"Tool execution error: {exc}")

    async def _add(self, service: JobPort, call: PublishedCall, lease: Lease) -> Any:
        try:
            spec = job_wanted(call, longest_seconds=self._longest_seconds)
        except ValueError as exc:
            raise _Wrong(str(exc)) from exc
        return description_of(await service.start(spec, lease=lease))

    async def _cancel(self, service: JobPort, call: PublishedCall, _: Lease) -> Any:
        return description_of(_own(await service.cancel(call.arguments["job_id"], call.user_id), call))

    async def _cancel_workflow(self, service: JobPort, call: PublishedCall, _: Lease) -> Any:
        return {"cancelled": await service.cancel_workflow(call.arguments["workflow_id"], call.user_id)}

    async def _get(self, service: JobPort, call: PublishedCall, _: Lease) -> Any:
        return description_of(_own(await service.get(call.arguments["job_id"], call.user_id), call), with_result=True)

    async def _list(self, service: JobPort, call: PublishedCall, _: Lease) -> Any:
        asked = call.arguments
        wanted = {"ended": asked.get("ended", False), "limit": asked.get("limit", _LISTED)}
        jobs = await service.list(call.user_id, **wanted, workflow_id=asked.get("workflow_id"))
        return {"jobs": [description_of(job) for job in jobs]}


class _Wrong(Exception):
    """The model's arguments are no valid job, or name none of its user's; the message says what to do."""


def _own(job: Job | None, call: PublishedCall) -> Job:
    if job is None:
        wanted = str(call.arguments["job_id"])[:60]
        raise _Wrong(
            f"There is no job {wanted!r} of this user, or not any more: {SCHEDULER}.list_jobs shows those there are."
        )
    return job


def _refused(call: PublishedCall, result: ToolResult) -> Attempt:
    """Return the service's refusal as this call's result; it is about the tool that the job would call."""
    answer = result.model_copy(update={"tool_name": call.tool_name, "effect_state": "none"})
    return Attempt(Outcome.PERMANENT, answer)


def job_wanted(call: PublishedCall, *, longest_seconds: float) -> JobSpec:
    """Return the job that a call of `add_job` asks for; a second attempt of that call asks for the same one.

    The user and the conversation are never the model's to choose: both come from the call. Raises `ValueError`, in one
    sentence, for an invalid job.
    """
    try:
        return _job(call.arguments, call, longest_seconds=longest_seconds)
    except ValidationError as exc:
        fault = exc.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, fault["loc"]))
        raise ValueError(f"{where}: {fault['msg']}." if where else f"{fault['msg']}.") from None


def description_of(job: Job, *, with_result: bool = False) -> dict[str, Any]:
    """Return a job as a model sees it: without the arguments of its tool, and with times that can be read."""
    schedule = job.schedule
    answer = {
        "job_id": job.job_id,
        "state": job.state,
        "name": job.name or None,
        "workflow_id": job.workflow_id,
        "tool_name": job.tool_name,
        "cron": schedule and schedule.cron,
        "timezone": schedule.timezone if schedule and schedule.cron else None,
        "created_at": _written(job.created_at),
        "due_at": _written(job.due_at),
        "deadline_at": _written(job.deadline_at),
        "ended_at": _written(job.ended_at),
        "calls": job.polls,
        "runs": job.runs,
        "max_runs": schedule and schedule.max_runs,
        "result": job.result if with_result else None,
        "error": job.error,
        "error_code": job.error_code,
    }
    return {name: value for name, value in answer.items() if value is not None}


def _job(wanted: Mapping[str, Any], call: PublishedCall, *, longest_seconds: float) -> JobSpec:
    now = call.published_at
    schedule = _schedule_in(wanted, now)
    if "tool_name" not in wanted and "poll_url" not in wanted and schedule is None:
        raise ValueError("Give `tool_name`, for a tool to call, or `at` or `cron` or `delay_seconds`, for a reminder.")
    start, poll = _steps_in(wanted, schedule)
    return JobSpec(
        job_id=call.call_id,
        caller=call.caller,
        user_id=call.user_id,
        conversation=Conversation(**{name: wanted.get(name) for name in CONVERSATION_FIELDS}, run_id=call.run_id),
        name=wanted.get("name", ""),
        message=wanted.get("message"),
        on_failure_message=wanted.get("on_failure_message"),
        workflow_id=wanted.get("workflow_id"),
        start=start,
        poll=poll,
        schedule=schedule,
        on_complete=_requests_in(wanted.get("on_complete", "resume_conversation")),
        created_at=now,
        deadline_at=_deadline(wanted, schedule, now=now, longest_seconds=longest_seconds),
        asked_by=call.asked_by,
    )


def _steps_in(wanted: Mapping[str, Any], schedule: Schedule | None) -> tuple[ToolCall | None, Poll | None]:
    """Return the job's calls: a tool that is polled, or, at a given time, one call."""
    said: dict[str, Any] = {name: wanted[name] for name in _POLL if name in wanted}
    if "poll_url" in wanted:
        return None, _url_poll_in(wanted, said)
    if extra := _EXPECTED.keys() & wanted.keys():
        raise ValueError(f"`{min(extra)}` is for `poll_url`, and there is none.")
    if "tool_name" not in wanted:
        if extra := said.keys() - {"max_seconds"}:
            raise ValueError(f"`{min(extra)}` needs `tool_name`, the tool that is to be called.")
        return None, None
    tool_name = wanted["tool_name"]
    if schedule is None or _WATCHES & said.keys():
        return None, Poll(tool_name=tool_name, **said)
    if schedule.cron is None:
        return ToolCall(tool_name=tool_name, arguments=said.get("arguments", {})), None
    return None, Poll(tool_name=tool_name, **said, until=None)


def _url_poll_in(wanted: Mapping[str, Any], said: dict[str, Any]) -> Poll:
    if extra := {"tool_name", "arguments", "until", "failed_when"} & wanted.keys():
        raise ValueError(
            f"Give `poll_url` or `{max(extra)}`, not both: `expected_status`, `expected_field` and `expected_value` say when it is over."
        )
    expected = {name: wanted[key] for key, name in _EXPECTED.items() if key in wanted}
    return url_poll(wanted["poll_url"], **expected, **said)


def _requests_in(said: Any) -> tuple[WakeupRequest | ToolCall, ...]:
    requests: list[Any] = said if isinstance(said, list) else [said]
    return tuple(ToolCall(**request) if isinstance(request, dict) else request for request in requests)


def _schedule_in(wanted: Mapping[str, Any], now: float) -> Schedule | None:
    """`now`: when the job was asked for, from which a delay counts; a second attempt of that call means the same time."""
    said = [name for name in ("at", "delay_seconds", "cron") if wanted.get(name) is not None]
    if len(said) > 1:
        raise ValueError(f"Give `{said[0]}` or `{said[1]}`, not both.")
    if "cron" in said:
        rounds = {name: wanted[name] for name in ("timezone", "max_runs") if name in wanted}
        return Schedule(cron=wanted["cron"], **rounds)
    if "timezone" in wanted:
        raise ValueError("`timezone` is that of `cron`; `at` has an offset of its own.")
    if "max_runs" in wanted:
        raise ValueError("`max_runs` counts the rounds of `cron`: give `cron`, too.")
    if "delay_seconds" in said:
        due = Schedule(delay_seconds=wanted["delay_seconds"]).counted_from(now)
        # It may have waited in its queue for longer than that.
        return due if due.at is None else Schedule(at=max(due.at, fleet_clock.now()))
    return Schedule(at=_moment(wanted["at"])) if "at" in said else None


def _moment(text: str) -> float:
    form = "`at` must be a time with an offset, such as 2027-03-01T09:00:00+01:00"
    try:
        at = datetime.fromisoformat(text)
        seconds = at.timestamp()
    except (ValueError, OverflowError):
        raise ValueError(f"{form}, not {text[:60]!r}.") from None
    if at.tzinfo is None:
        now = fleet_clock.utc_now().isoformat(timespec="seconds")
        raise ValueError(f"{form}: {text[:60]!r} has none, and it is {now} now.")
    return seconds


def _deadline(wanted: Mapping[str, Any], schedule: Schedule | None, *, now: float, longest_seconds: float) -> float:
    if schedule is not None and schedule.cron is not None:
        return now + longest_seconds
    begins_at = now if schedule is None else max(schedule.at or now, now)
    return begins_at + float(wanted.get("max_seconds", _DAY))


def _written(at: float | None) -> str | None:
    if at is None:
        return None
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
    except (ValueError, OverflowError, OSError):  # no time that a calendar has
        return None
