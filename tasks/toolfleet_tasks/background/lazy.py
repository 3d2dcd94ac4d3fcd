"""Loads what keeps jobs going in a worker when the first job or beat's first tick asks for it: a worker is up the sooner."""

import asyncio
from typing import TYPE_CHECKING

from toolfleet_tasks.app import FleetApp

if TYPE_CHECKING:
    from toolfleet_tasks.background.job_poller import WorkerJobs


class LazyJobs:
    """Does the work of jobs for the workers of `app`: `WorkerJobs`, with the agent's session and the HTTP client, loaded on first use."""

    def __init__(self, app: FleetApp) -> None:
        self._app = app
        self._jobs: WorkerJobs | None = None

    async def resume(self, *, seconds: float) -> None:
        """Implements `FleetApp.resume_jobs`."""
        await (await self._loaded()).resume(seconds=seconds)

    async def evaluate(self, job_id: str, *, seconds: float) -> None:
        """Implements `FleetApp.evaluate_job`."""
        await (await self._loaded()).evaluate(job_id, seconds=seconds)

    async def _loaded(self) -> "WorkerJobs":
        if self._jobs is None:
            kind = await asyncio.to_thread(_load)  # a tenth of a second, for which no call shall wait
            self._jobs = self._jobs or kind(self._app)
        return self._jobs


def _load() -> "type[WorkerJobs]":
    from toolfleet_tasks.background.job_poller import WorkerJobs  # noqa: PLC0415 - that is what this file is for

    return WorkerJobs
