"""Lists jobs of all users and cancels them, for an operator; each cancelling has its line in the audit."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Self

from toolfleet_registry.contracts.jobs import Job
from toolfleet_registry.settings import Settings
from toolfleet_tasks.background.job_service import worker_job_service
from toolfleet_tasks.jobs.service import JobService
from toolfleet_tasks.operations.change_trail import Actor, ChangeTrail


class JobChanges:
    """The jobs of all users, as `service` has them. Raises `FleetUnavailable` when Redis does not answer within 5 s."""

    def __init__(self, service: JobService, trail: ChangeTrail) -> None:
        self.service = service
        self._trail = trail

    @classmethod
    @asynccontextmanager
    async def of(cls, settings: Settings, by: Actor) -> AsyncGenerator[Self]:
        """Open the changes for the fleet of these settings. Raises `SettingsError` if they name none."""
        async with worker_job_service(settings) as service, ChangeTrail.of(settings, by) as trail:
            yield cls(service, trail)

    async def listed(self, user_id: str | None, workflow_id: str | None, limit: int, *, ended: bool) -> list[Job]:
        """Return jobs, the next due first; those of one user the newest first."""
        if user_id is not None:
            return await self.service.list(user_id, ended=ended, limit=limit, workflow_id=workflow_id)
        return await self.service.list_all(ended=ended, limit=limit, workflow_id=workflow_id)

    async def cancel(self, job_id: str) -> Job | None:
        """End any user's job. Returns it, or `None` if there is none."""
        async with self._trail.change("job_cancelled", job_id) as change:
            job = await self.service.cancel_any(job_id)
            change.refusal = "There is no such job." if job is None else None
            return job

    async def cancel_all(self, user_id: str | None, workflow_id: str | None) -> int:
        """End all of a user, of a workflow, or of both together. Returns how many were ended."""
        named = {"job_user": user_id, "workflow": workflow_id}
        facts: dict[str, str | int] = {name: value for name, value in named.items() if value is not None}
        async with self._trail.change("jobs_cancelled", "-", **facts) as change:
            change.facts["count"] = count = await self._cancelled(user_id, workflow_id)
        return count

    async def _cancelled(self, user_id: str | None, workflow_id: str | None) -> int:
        if workflow_id is None:
            return await self.service.cancel_all_of(str(user_id))
        if user_id is None:
            return await self.service.cancel_workflow_of_any(workflow_id)
        return await self.service.cancel_workflow(workflow_id, user_id)
