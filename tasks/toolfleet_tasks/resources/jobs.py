"""Lists, shows and cancels jobs: those of all users, and a caller's own."""

from contextlib import AbstractAsyncContextManager

from pydantic import Field

from toolfleet_registry.access import UserName
from toolfleet_registry.contracts.jobs import Job
from toolfleet_registry.errors import InvalidQuestion
from toolfleet_registry.policy.call_faults import LONGEST
from toolfleet_registry.settings import Settings
from toolfleet_tasks.client.fleet import fleet_settings
from toolfleet_tasks.client.session import Session, worker_session
from toolfleet_tasks.resources.operation import AnswerModel, OperationRequest, QueryModel, absent, operation
from toolfleet_tasks.wakeups.events import WakeupOutcome

_ALL, _ONE, _WORKFLOW = "/operations/jobs", "/operations/jobs/{job_id}", "/workflows/{workflow_id}"
_LONGEST_WORKFLOW = 200  # characters, as of a `WorkflowId`


class OperatedJobQuery(QueryModel):
    """A query for jobs of all users."""

    user_id: str | None = Field(None, max_length=LONGEST, description="Only those of this user.")
    workflow_id: str | None = Field(None, max_length=200, description="Only those of this workflow.")
    ended: bool = Field(False, description="Whether those that are over are listed, too.")
    wakeups: bool = Field(False, description="Whether it is said what became of their wake-ups.")
    limit: int = Field(100, ge=1, le=1_000, description="How many at most.")


class CancelQuery(QueryModel):
    """A query with the jobs to end: of a user, of a workflow, or of both together."""

    user_id: str | None = Field(None, max_length=LONGEST, description="Of this user.")
    workflow_id: str | None = Field(None, max_length=200, description="Of this workflow.")


class OperatedJobList(AnswerModel):
    """Jobs of all users."""

    jobs: list[Job]
    """Those that are due next first; those of one user the newest first."""
    count: int
    """How many these are."""
    wakeups: dict[str, list[WakeupOutcome]] | None = None
    """By a job's id, what became of its wake-ups, oldest first; only if it is asked for."""


class JobWakeups(AnswerModel):
    """The outcomes of a job's wake-ups."""

    wakeups: list[WakeupOutcome]
    """The latest twenty or so, oldest first: who accepted, read, gave up or dropped each, and when."""


class EndedJobs(AnswerModel):
    """The outcome of cancelling jobs of others."""

    cancelled: int
    """How many were ended by it."""


@operation("GET", _ALL, role="viewer", answers="Those that are due next first.")
async def list_all_jobs(asked: OperationRequest[None, OperatedJobQuery]) -> OperatedJobList:
    """List the jobs of all users."""
    query, wakeups = asked.query, None
    async with _session(asked.settings) as session:
        if query.user_id is None:
            jobs = await session.jobs.list_all(ended=query.ended, limit=query.limit, workflow_id=query.workflow_id)
        else:
            jobs = await session.jobs.list(
                query.user_id, ended=query.ended, limit=query.limit, workflow_id=query.workflow_id
            )
        if query.wakeups:
            outcomes = await session.dead.events.outcomes([job.job_id for job in jobs])
            wakeups = {job_id: list(each) for job_id, each in outcomes.items()}
    return OperatedJobList(jobs=jobs, count=len(jobs), wakeups=wakeups)


@operation("GET", _ONE, role="viewer", answers="The job.", problems=(404,))
async def get_any_job(asked: OperationRequest[None, None]) -> Job:
    """Return a job of any user."""
    async with _session(asked.settings) as session:
        return _there(await session.jobs.get_any(asked.path["job_id"]))


@operation("GET", f"{_ONE}/wake-ups", role="viewer", answers="Those that have ended, oldest first.", problems=(404,))
async def list_wakeups_of_job(asked: OperationRequest[None, None]) -> JobWakeups:
    """List the outcomes of a job's wake-ups."""
    job_id = asked.path["job_id"]
    async with _session(asked.settings) as session:
        _there(await session.jobs.get_any(job_id))
        outcomes = await session.dead.events.outcomes([job_id])
    return JobWakeups(wakeups=list(outcomes.get(job_id, ())))


@operation("DELETE", _ONE, role="operator", answers="The job.", problems=(404,))
async def cancel_any_job(asked: OperationRequest[None, None]) -> Job:
    """Cancel a job of any user, without a wake-up."""
    job_id = asked.path["job_id"]
    async with _session(asked.settings) as session, asked.change("job_cancelled", job_id) as change:
        job = await session.jobs.cancel_any(job_id)
        change.refusal = "There is no such job." if job is None else None
    return _there(job)


@operation("DELETE", _ALL, role="operator", answers="How many were ended.")
async def cancel_jobs_of_user(asked: OperationRequest[None, CancelQuery]) -> EndedJobs:
    """Cancel all jobs of a user, of a workflow, or of both together."""
    user_id, workflow_id = asked.query.user_id, asked.query.workflow_id
    if user_id is None and workflow_id is None:
        raise InvalidQuestion("Name a user_id or a workflow_id: not all jobs of the fleet are ended at once.")
    named = {"job_user": user_id, "workflow": workflow_id}
    facts = {name: value for name, value in named.items() if value is not None}
    async with _session(asked.settings) as session, asked.change("jobs_cancelled", "-", **facts) as change:
        if workflow_id is None:
            count = await session.jobs.cancel_all_of(str(user_id))
        elif user_id is None:
            count = await session.jobs.cancel_workflow_of_any(workflow_id)
        else:
            count = await session.jobs.cancel_workflow(workflow_id, user_id)
        change.facts["count"] = count
    return EndedJobs(cancelled=count)


class JobList(AnswerModel):
    """Jobs of one user."""

    jobs: list[Job]
    """The newest first."""
    count: int
    """How many these are."""


class CancelledJobs(AnswerModel):
    """The outcome of cancelling jobs."""

    cancelled: int
    """How many were ended by it."""


class OfUserQuery(QueryModel):
    """A query for the jobs of one user."""

    user_id: UserName | None = Field(None, description="Whose, for keys that act for others.")


class JobQuery(OfUserQuery):
    """A query for jobs."""

    ended: bool = Field(True, description="Whether those that are over are listed, too.")
    workflow_id: str | None = Field(None, max_length=200, description="Only those of this workflow.")
    limit: int = Field(100, ge=1, le=1_000, description="How many at most.")


@operation("GET", "/jobs", role="none", answers="The newest first.")
async def list_jobs(asked: OperationRequest[None, JobQuery]) -> JobList:
    """List the caller's jobs."""
    query, caller, fleet = asked.query, asked.operator.caller_for(asked.query.user_id), await asked.fleet()
    return _listed(await fleet.jobs.list(caller, ended=query.ended, limit=query.limit, workflow_id=query.workflow_id))


@operation("GET", "/jobs/{job_id}", role="none", answers="The job.", problems=(404,))
async def get_job(asked: OperationRequest[None, OfUserQuery]) -> Job:
    """Return one of the caller's jobs."""
    caller = asked.operator.caller_for(asked.query.user_id)
    return _there(await (await asked.fleet()).jobs.get(asked.path["job_id"], caller))


@operation("DELETE", "/jobs/{job_id}", role="none", answers="The job.", problems=(404,))
async def cancel_job(asked: OperationRequest[None, OfUserQuery]) -> Job:
    """End a job without a notice; one that has ended stays as it is."""
    caller = asked.operator.caller_for(asked.query.user_id)
    return _there(await (await asked.fleet()).jobs.cancel(asked.path["job_id"], caller))


@operation("GET", _WORKFLOW, role="none", answers="The newest first.", tag="jobs")
async def get_workflow(asked: OperationRequest[None, OfUserQuery]) -> JobList:
    """List the jobs of one of the caller's workflows."""
    caller, workflow_id = asked.operator.caller_for(asked.query.user_id), _workflow_id(asked)
    return _listed(await (await asked.fleet()).jobs.list(caller, limit=1_000, workflow_id=workflow_id))


@operation("DELETE", _WORKFLOW, role="none", answers="How many were ended.", tag="jobs")
async def cancel_workflow(asked: OperationRequest[None, OfUserQuery]) -> CancelledJobs:
    """End all jobs of a workflow."""
    caller = asked.operator.caller_for(asked.query.user_id)
    return CancelledJobs(cancelled=await (await asked.fleet()).jobs.cancel_workflow(_workflow_id(asked), caller))


def _listed(jobs: list[Job]) -> JobList:
    return JobList(jobs=jobs, count=len(jobs))


def _workflow_id(asked: OperationRequest[None, OfUserQuery]) -> str:
    workflow_id = asked.path["workflow_id"]
    if len(workflow_id) > _LONGEST_WORKFLOW:
        raise absent("job")
    return workflow_id


def _session(settings: Settings) -> AbstractAsyncContextManager[Session]:
    """Open a session, which asks no agent's gate. Raises `SettingsError` if the settings name no fleet."""
    return worker_session(fleet_settings(settings=settings))


def _there(job: Job | None) -> Job:
    if job is None:
        raise absent("job")
    return job
