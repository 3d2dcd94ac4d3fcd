"""Asks a gateway for jobs, and has them cancelled."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from toolfleet_cli.remote.gateway import Gateway, place
from toolfleet_registry.contracts.jobs import Job

if TYPE_CHECKING:
    from toolfleet_tasks.wakeups.outcomes import WakeupOutcome


@dataclass(frozen=True, slots=True)
class GatewayJobs:
    """The jobs as a gateway has them: those of the key's user, or `of_all`, for operators. What it refuses ends the command."""

    gateway: Gateway
    of_all: bool

    def listed(self, user: str | None, workflow: str | None, limit: int, *, ended: bool) -> list[Job]:
        """Return the jobs of the key's user, the newest first."""
        query = {"ended": str(ended).lower(), "workflow_id": workflow, "limit": limit, "user_id": user}
        return [Job.model_validate(each) for each in self.gateway.get(self._place(), query)["jobs"]]

    def shown(self, job_id: str) -> Job:
        """One job; one that is not there ends the command."""
        return Job.model_validate(self.gateway.get(f"{self._place()}{place(job_id)}"))

    def wakeups(self, job_id: str) -> "Sequence[WakeupOutcome]":
        """Return the outcomes of its wake-ups, oldest first; only for operators."""
        if not self.of_all:
            return ()
        from toolfleet_tasks.wakeups.outcomes import WakeupOutcome

        found = self.gateway.get(f"{self._place()}{place(job_id)}/wake-ups")["wakeups"]
        return [WakeupOutcome(**each) for each in found]

    def cancelled(self, job_id: str) -> Job:
        """The job, which has ended; one that is not there ends the command."""
        return Job.model_validate(self.gateway.delete(f"{self._place()}{place(job_id)}"))

    def all_cancelled(self, user: str | None, workflow: str | None) -> int:
        """Cancel all, and return how many were ended."""
        if self.of_all:
            return int(self.gateway.delete(self._place(), {"user_id": user, "workflow_id": workflow})["cancelled"])
        if workflow is None:
            raise typer.BadParameter("name a workflow with --workflow.")
        return int(self.gateway.delete(place("workflows", workflow))["cancelled"])

    def _place(self) -> str:
        return "/operations/jobs" if self.of_all else "/jobs"
