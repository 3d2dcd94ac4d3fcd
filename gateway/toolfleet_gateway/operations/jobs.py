"""Lists, shows and cancels the jobs of all users, for operators."""

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from toolfleet_gateway.http.answers import json_answer
from toolfleet_gateway.http.problems import invalid_request, not_found
from toolfleet_gateway.http.routes import Answer, AnyRoute, Route, RouteRequest
from toolfleet_gateway.operations.actors import actor_of
from toolfleet_gateway.roles import needing
from toolfleet_registry.contracts.jobs import Job
from toolfleet_registry.policy.identities import LONGEST
from toolfleet_registry.settings import Settings
from toolfleet_tasks.background.job_changes import JobChanges
from toolfleet_tasks.dead_letters.entries import DeadEntries
from toolfleet_tasks.wakeups.outcomes import WakeupOutcome

_LIST, _ONE = "/operations/jobs", "/operations/jobs/{job_id}"


class OperatedJobQuery(BaseModel):
    """A query for jobs of all users."""

    model_config = ConfigDict(extra="forbid")

    user_id: str | None = Field(None, max_length=LONGEST, description="Only those of this user.")
    workflow_id: str | None = Field(None, max_length=200, description="Only those of this workflow.")
    ended: bool = Field(False, description="Whether those that are over are listed, too.")
    wakeups: bool = Field(False, description="Whether it is said what became of their wake-ups.")
    limit: int = Field(100, ge=1, le=1_000, description="How many at most.")


class CancelQuery(BaseModel):
    """A query with the jobs to end: of a user, of a workflow, or of both together."""

    model_config = ConfigDict(extra="forbid")

    user_id: str | None = Field(None, max_length=LONGEST, description="Of this user.")
    workflow_id: str | None = Field(None, max_length=200, description="Of this workflow.")


class OperatedJobList(BaseModel):
    """Jobs of all users."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    jobs: list[Job]
    """Those that are due next first; those of one user the newest first."""
    count: int
    """How many these are."""
    wakeups: dict[str, list[WakeupOutcome]] | None = None
    """By a job's id, what became of its wake-ups, oldest first; only if it is asked for."""


class JobWakeups(BaseModel):
    """What became of a job's wake-ups."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    wakeups: list[WakeupOutcome]
    """The latest twenty or so, oldest first: who accepted, read, gave up or dropped each, and when."""


class EndedJobs(BaseModel):
    """What came of cancelling jobs of others."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    cancelled: int
    """How many were ended by it."""


def operated_job_routes(settings: Settings) -> list[AnyRoute]:
    """Return the routes of operators for jobs."""
    about = _AboutOperatedJobs(settings)
    return [*_routes_of_many(about), *_routes_of_one(about)]


def _routes_of_many(about: "_AboutOperatedJobs") -> list[AnyRoute]:
    return [
        Route(
            method="GET",
            path=_LIST,
            name="listAllJobs",
            summary="The jobs of all users; for viewers",
            handle=needing("viewer", about.listed),
            query=OperatedJobQuery,
            answers={200: Answer("Those that are due next first.", OperatedJobList)},
            tag="operations",
        ),
        Route(
            method="DELETE",
            path=_LIST,
            name="cancelJobsOfUser",
            summary="End all jobs of a user, or of a workflow; for operators",
            handle=needing("operator", about.many_cancelled),
            query=CancelQuery,
            answers={200: Answer("How many were ended.", EndedJobs)},
            tag="operations",
        ),
    ]


def _routes_of_one(about: "_AboutOperatedJobs") -> list[AnyRoute]:
    return [
        Route(
            method="GET",
            path=_ONE,
            name="getAnyJob",
            summary="A job, whoever's; for viewers",
            handle=needing("viewer", about.one),
            answers={200: Answer("The job.", Job)},
            problems=(404,),
            tag="operations",
        ),
        Route(
            method="GET",
            path=_ONE + "/wake-ups",
            name="listWakeupsOfJob",
            summary="What became of a job's wake-ups; for viewers",
            handle=needing("viewer", about.wakeups),
            answers={200: Answer("Those that have ended, oldest first.", JobWakeups)},
            problems=(404,),
            tag="operations",
        ),
        Route(
            method="DELETE",
            path=_ONE,
            name="cancelAnyJob",
            summary="End a job, whoever's, and tell nobody; for operators",
            handle=needing("operator", about.cancelled),
            answers={200: Answer("The job.", Job)},
            problems=(404,),
            tag="operations",
        ),
    ]


class _AboutOperatedJobs:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def listed(self, request: RouteRequest[None, OperatedJobQuery]) -> Response:
        query = request.query
        async with JobChanges.of(self._settings, actor_of(request.who)) as changes:
            jobs = await changes.listed(query.user_id, query.workflow_id, query.limit, ended=query.ended)
        if not query.wakeups:
            return json_answer(OperatedJobList(jobs=jobs, count=len(jobs)))
        async with DeadEntries.of(self._settings) as dead:
            outcomes = await dead.events.outcomes([job.job_id for job in jobs])
        wakeups = {job_id: list(each) for job_id, each in outcomes.items()}
        return json_answer(OperatedJobList(jobs=jobs, count=len(jobs), wakeups=wakeups))

    async def one(self, request: RouteRequest[None, None]) -> Response:
        async with JobChanges.of(self._settings, actor_of(request.who)) as changes:
            return json_answer(_there(await changes.service.get_any(request.path["job_id"])))

    async def wakeups(self, request: RouteRequest[None, None]) -> Response:
        job_id = request.path["job_id"]
        async with JobChanges.of(self._settings, actor_of(request.who)) as changes:
            _there(await changes.service.get_any(job_id))
        async with DeadEntries.of(self._settings) as dead:
            outcomes = await dead.events.outcomes([job_id])
        return json_answer(JobWakeups(wakeups=list(outcomes.get(job_id, ()))))

    async def cancelled(self, request: RouteRequest[None, None]) -> Response:
        async with JobChanges.of(self._settings, actor_of(request.who)) as changes:
            return json_answer(_there(await changes.cancel(request.path["job_id"])))

    async def many_cancelled(self, request: RouteRequest[None, CancelQuery]) -> Response:
        if request.query.user_id is None and request.query.workflow_id is None:
            raise invalid_request("Name a user_id or a workflow_id: not all jobs of the fleet are ended at once.")
        async with JobChanges.of(self._settings, actor_of(request.who)) as changes:
            count = await changes.cancel_all(request.query.user_id, request.query.workflow_id)
        return json_answer(EndedJobs(cancelled=count))


def _there(job: Job | None) -> Job:
    if job is None:
        raise not_found("There is no such job, or not any more.")
    return job
