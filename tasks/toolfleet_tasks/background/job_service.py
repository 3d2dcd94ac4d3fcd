"""Opens the service for jobs in a worker. It has no agent, so no gate can be asked: tools that require one are refused."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from toolfleet_registry.settings import Settings
from toolfleet_tasks.background.session import worker_session
from toolfleet_tasks.jobs.service import JobService


@asynccontextmanager
async def worker_job_service(settings: Settings) -> AsyncGenerator[JobService]:
    """The service of this worker's loop; elsewhere, and under a pool without a loop, one for this use. Raises `FleetUnavailable`."""
    async with worker_session(settings) as session:
        yield session.jobs
