"""Asks Redis for the jobs of all users, and has them cancelled."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from toolfleet_cli.console.output import progress
from toolfleet_registry.contracts.jobs import Job

if TYPE_CHECKING:
    from toolfleet_tasks.background.job_changes import JobChanges
    from toolfleet_tasks.wakeups.outcomes import WakeupOutcome

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RedisJobs:
    """The jobs in Redis, for one who types; `by` is their name in the audit."""

    by: str | None = None

    def listed(self, user: str | None, workflow: str | None, limit: int, *, ended: bool) -> list[Job]:
        """Return jobs, the next due first; those of one user the newest first."""
        return self._asked(lambda changes: changes.listed(user, workflow, limit, ended=ended))

    def shown(self, job_id: str) -> Job | None:
        """One job."""
        return self._asked(lambda changes: changes.service.get_any(job_id))

    def wakeups(self, job_id: str) -> "Sequence[WakeupOutcome]":
        """Return the outcomes of its wake-ups, oldest first."""
        from toolfleet_tasks.client.fleet_settings import fleet_settings
        from toolfleet_tasks.dead_letters.entries import DeadEntries

        async def ask() -> "Sequence[WakeupOutcome]":
            async with progress("Asking Redis"), DeadEntries.of(fleet_settings()) as dead:
                return (await dead.events.outcomes([job_id])).get(job_id, ())

        return asyncio.run(ask())

    def cancelled(self, job_id: str) -> Job | None:
        """The job, which has ended."""
        return self._asked(lambda changes: changes.cancel(job_id))

    def all_cancelled(self, user: str | None, workflow: str | None) -> int:
        """Cancel all, and return how many were ended."""
        return self._asked(lambda changes: changes.cancel_all(user, workflow))

    def _asked(self, work: "Callable[[JobChanges], Awaitable[T]]") -> T:
        # They take a second to load, which `--help` should not.
        from toolfleet_tasks.background.job_changes import JobChanges
        from toolfleet_tasks.client.fleet_settings import fleet_settings
        from toolfleet_tasks.operations.change_trail import Actor

        async def run() -> T:
            actor = Actor.at_command_line(self.by)
            async with progress("Asking Redis"), JobChanges.of(fleet_settings(), actor) as changes:
                return await work(changes)

        return asyncio.run(run())
