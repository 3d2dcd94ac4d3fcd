"""The scheduler's executor where the desk does not do as it should; `tests/virtual/jobs/test_scheduler.py` has the rest."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.published_call import published
from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.contracts.attempts import Lease, LeaseOver, Outcome
from toolfleet_registry.contracts.jobs import Job, JobRefused, JobSpec
from toolfleet_registry.errors import FleetUnavailable, SettingsError
from toolfleet_registry.settings import load_settings
from toolfleet_workers.executors.scheduler import JobPort, SchedulerExecutor

ADD = published("scheduler.add_job", arguments={"tool_name": "owls.echo"}, user_id="ada", effect="once")


class DeskInMemory:
    """Keeps jobs in a dict; `fault`, if it is set, is raised after it has done what it was asked."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.fault: Exception | None = None
        self.hangs = False

    async def start(self, spec: JobSpec, *, lease: Lease) -> Job:
        if lease.seconds_left() <= 0:
            raise LeaseOver
        job = Job(job_id=spec.job_id, state="waiting", user_id=spec.user_id, created_at=1, deadline_at=2)
        job = self.jobs.setdefault(spec.job_id, job)
        await self._fail()
        return job

    async def get(self, job_id: str, user_id: str | None) -> Job | None:
        await self._fail()
        job = self.jobs.get(job_id)
        return job if job is not None and job.user_id == user_id else None

    async def list(
        self, user_id: str | None, *, ended: bool = True, limit: int = 100, workflow_id: str | None = None
    ) -> list[Job]:
        del ended, workflow_id
        return [job for job in self.jobs.values() if job.user_id == user_id][:limit]

    async def cancel(self, job_id: str, user_id: str | None) -> Job | None:
        return await self.get(job_id, user_id)

    async def cancel_workflow(self, workflow_id: str, user_id: str | None) -> int:
        await self._fail()
        return len(self.jobs)

    async def _fail(self) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        if self.fault is not None:
            raise self.fault


@pytest.fixture
def service() -> DeskInMemory:
    return DeskInMemory()


@pytest.fixture
def executor(service: DeskInMemory) -> SchedulerExecutor:
    @asynccontextmanager
    async def opened() -> AsyncGenerator[JobPort]:
        yield service

    return SchedulerExecutor(opened, longest_seconds=86_400)


async def test_a_second_attempt_finds_the_job_of_the_first(executor: SchedulerExecutor, service: DeskInMemory) -> None:
    """Where Redis' answer was lost nobody can say whether there is a job, and the next attempt makes no second one."""
    service.fault = FleetUnavailable("Redis does not answer.")
    first = await executor.execute(ADD, seconds=5)
    service.fault = None
    second = await executor.execute(ADD, seconds=5)

    assert (first.outcome, first.result.error_code) == (Outcome.UNKNOWN, "outcome_unknown")
    assert first.result.effect_state == "unknown"
    assert (second.outcome, second.result.result["job_id"]) == (Outcome.SUCCESS, ADD.call_id)
    assert len(service.jobs) == 1


async def test_without_a_desk_nothing_is_done(executor: SchedulerExecutor, service: DeskInMemory) -> None:
    """It could not be opened, or was only to be asked something."""

    @asynccontextmanager
    async def away() -> AsyncGenerator[JobPort]:
        if service.fault is not None:
            raise service.fault
        yield service

    service.fault = FleetUnavailable("Redis does not answer.")
    unopened = await SchedulerExecutor(away, longest_seconds=86_400).execute(ADD, seconds=5)
    asked = published("scheduler.get_job", arguments={"job_id": "a"}, user_id="ada")
    unasked = await executor.execute(asked, seconds=5)

    for attempt in (unopened, unasked):
        assert (attempt.outcome, attempt.result.effect_state) == (Outcome.NOT_SENT, "none")


@pytest.mark.parametrize("tool", ["add_job", "list_jobs", "get_job", "cancel_job", "cancel_workflow"])
async def test_who_is_nobody_has_no_jobs(executor: SchedulerExecutor, service: DeskInMemory, tool: str) -> None:
    """Or all callers without a user id would see and end each other's."""
    call = ADD.model_copy(update={"tool_name": f"scheduler.{tool}", "user_id": None})
    attempt = await executor.execute(call, seconds=5)

    assert (attempt.outcome, attempt.result.error_code) == (Outcome.PERMANENT, "permission_denied")
    assert not service.jobs


async def test_a_lost_worker_may_have_made_the_job(executor: SchedulerExecutor, service: DeskInMemory) -> None:
    """Whoever takes over looks: the job is there, or nobody can say whether it will be."""
    assert await executor.reconcile(ADD, seconds=5) is None
    await executor.execute(ADD, seconds=5)
    found = await executor.reconcile(ADD, seconds=5)

    assert found is not None
    assert found.result.result["job_id"] == ADD.call_id
    service.fault = FleetUnavailable("Redis does not answer.")
    assert await executor.reconcile(ADD, seconds=5) is None
    service.hangs = True
    assert await executor.reconcile(ADD, seconds=0.01) is None


async def test_the_desks_refusal_is_the_calls_result(executor: SchedulerExecutor, service: DeskInMemory) -> None:
    """With its code and its words, under the scheduler's own name."""
    refusal = ToolResult.refused("owls.echo", "permission_denied", "Tool 'owls.echo' needs 'admin'.", hint="Ask.")
    service.fault = JobRefused(refusal)
    attempt = await executor.execute(ADD, seconds=5)

    assert attempt.outcome is Outcome.PERMANENT
    assert attempt.result == refusal.model_copy(update={"tool_name": "scheduler.add_job"})


async def test_a_desk_that_hangs_is_a_time_out(executor: SchedulerExecutor, service: DeskInMemory) -> None:
    """As with any tool."""
    service.hangs = True
    with pytest.raises(TimeoutError):
        await executor.execute(ADD, seconds=0.01)


@pytest.mark.parametrize(
    ("tool", "arguments", "code"),
    [("scheduler.nothing", {}, "unknown_tool"), ("scheduler.get_job", {"job_id": "a"}, "invalid_arguments")],
)
async def test_what_is_not_there_is_said(
    executor: SchedulerExecutor, tool: str, arguments: dict[str, Any], code: str
) -> None:
    """A tool that an agent with other software knows, and a job that is nobody's."""
    attempt = await executor.execute(published(tool, arguments=arguments, user_id="ada"), seconds=5)
    assert (attempt.outcome, attempt.result.error_code) == (Outcome.PERMANENT, code)


def test_two_modules_of_that_name_are_refused() -> None:
    """At start, in one sentence."""
    with pytest.raises(SettingsError, match="TOOLFLEET_SCHEDULER: its tools are the module 'scheduler'"):
        load_settings(scheduler=True, module_services={"scheduler": "http://127.0.0.1:1"})
