"""Asks a gateway for the jobs of the key's user."""

from toolfleet_cli.remote.gateway import Gateway, place
from toolfleet_registry.contracts.jobs import Job


def listed(gateway: Gateway, workflow: str | None, limit: int, *, ended: bool) -> list[Job]:
    """The jobs, the newest first."""
    query = {"ended": str(ended).lower(), "workflow_id": workflow, "limit": limit}
    return [Job.model_validate(each) for each in gateway.get("/jobs", query)["jobs"]]


def shown(gateway: Gateway, job_id: str) -> Job:
    """One job; one that is not there ends the command."""
    return Job.model_validate(gateway.get(place("jobs", job_id)))


def cancelled(gateway: Gateway, job_id: str) -> Job:
    """The job, which has ended; one that is not there ends the command."""
    return Job.model_validate(gateway.delete(place("jobs", job_id)))


def workflow_cancelled(gateway: Gateway, workflow: str) -> int:
    """How many jobs of a workflow were ended."""
    return int(gateway.delete(place("workflows", workflow))["cancelled"])
