"""Lists, shows and cancels the jobs of all users."""

from contextlib import AbstractAsyncContextManager

from pydantic import Field

from toolfleet_registry.contracts.jobs import Job
from toolfleet_registry.errors import InvalidQuestion, NoSuchEntry
from toolfleet_registry.policy.call_faults import LONGEST
from toolfleet_registry.settings import Settings
from toolfleet_tasks.client.fleet import fleet_settings
from toolfleet_tasks.client.session import Session, worker_session
from toolfleet_tasks.resources.operation import AnswerModel, OperationRequest, QueryModel, operation
from toolfleet_tasks.wakeups.events import WakeupOutcome

_ALL, _ONE = "/operations/jobs", "/operations/jobs/{job_id}"


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
    """What became of a job's wake-ups."""

    wakeups: list[WakeupOutcome]
    """The latest twenty or so, oldest first: who accepted, read, gave up or dropped each, and when."""


class EndedJobs(AnswerModel):
    """What came of cancelling jobs of others."""

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


def _session(settings: Settings) -> AbstractAsyncContextManager[Session]:
    """Open a session, which asks no agent's gate. Raises `SettingsError` if the settings name no fleet."""
    return worker_session(fleet_settings(settings=settings))


def _there(job: Job | None) -> Job:
    if job is None:
        raise NoSuchEntry("There is no such job, or not any more.")
    return job
