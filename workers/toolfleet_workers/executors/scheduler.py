"""Runs the calls of the module `scheduler`: what a model wants of its jobs, by the service that makes them."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from toolfleet_registry.contracts import ErrorCode, PublishedCall, ToolResult
from toolfleet_registry.contracts.jobs import Job, JobRefused, JobSpec
from toolfleet_registry.contracts.names import SCHEDULER
from toolfleet_registry.contracts.outcomes import Attempt, Health, Outcome
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.time.lease import UNBOUNDED, Lease, LeaseOver, require_live
from toolfleet_workers.executors.job_requests import description_of, job_wanted
from toolfleet_workers.runner import too_late, unsuccessful

_ADD = f"{SCHEDULER}.add_job"
_LISTED = 20


class JobPort(Protocol):
    """Makes, shows and cancels jobs. Every method raises `FleetUnavailable` when Redis does not answer."""

    async def start(self, spec: JobSpec, *, lease: Lease) -> Job:
        """Make a job on a live `lease`; with the id of one that exists, that one. Raises `JobRefused` and `LeaseOver`."""
        ...

    async def get(self, job_id: str, user_id: str | None) -> Job | None:
        """A job of this user; `None` if there is none of that id."""
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
        """One attempt within `seconds`. Raises `TimeoutError` if they are over.

        When Redis does not answer, a job that was to be made may exist; whoever is next finds it.
        """
        method = self._methods.get(call.tool_name.removeprefix(f"{SCHEDULER}."))
        if method is None:
            return unsuccessful(call, Outcome.PERMANENT, "unknown_tool", f"Unknown tool: {call.tool_name}")
        if call.user_id is None:  # all who are nobody would share their jobs
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
        """The job that a lost call has made, if it has."""
        if call.tool_name != _ADD or lease.seconds_left() <= 0:
            return None
        try:
            async with asyncio.timeout(seconds), self._service() as service:
                job = await service.get(call.call_id, call.user_id)
        except (TimeoutError, FleetUnavailable):
            return None
        return None if job is None else Attempt(Outcome.SUCCESS, ToolResult.ok(call.tool_name, description_of(job)))

    async def probe(self, module: str, *, seconds: float) -> Health:
        """It is where its worker is."""
        del module, seconds
        return Health.WELL

    async def aclose(self) -> None:
        """The service belongs to somebody else."""

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
    """What the model wrote is no job, or names none of its user's; the message says what to do."""


def _own(job: Job | None, call: PublishedCall) -> Job:
    if job is None:
        wanted = str(call.arguments["job_id"])[:60]
        raise _Wrong(
            f"There is no job {wanted!r} of this user, or not any more: {SCHEDULER}.list_jobs shows those there are."
        )
    return job


def _refused(call: PublishedCall, result: ToolResult) -> Attempt:
    """The service's refusal as this call's result: it is about the tool that the job would call."""
    answer = result.model_copy(update={"tool_name": call.tool_name, "effect_state": "none"})
    return Attempt(Outcome.PERMANENT, answer)
