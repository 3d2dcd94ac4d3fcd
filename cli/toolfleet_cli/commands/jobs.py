"""Lists, shows and cancels the jobs of all users: `toolfleet jobs`."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from toolfleet_cli.console.output import add_row, age, fail, note, progress, say, say_json, show_table, table
from toolfleet_cli.processes.completion import complete_jobs
from toolfleet_cli.remote import jobs as remote_jobs
from toolfleet_cli.remote.caller import refuse_caller_options
from toolfleet_cli.remote.fleet_options import over_fleet
from toolfleet_cli.remote.gateway import Gateway
from toolfleet_registry.contracts.jobs import ENDED, Job
from toolfleet_registry.settings import load_settings
from toolfleet_registry.time import fleet_clock

if TYPE_CHECKING:
    from toolfleet_tasks.jobs.service import JobService
    from toolfleet_tasks.operations.change_trail import ChangeTrail

app = typer.Typer(help="Long work that is polled, of all users: look at it, end it.", no_args_is_help=True)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JobId = Annotated[
    str, typer.Argument(metavar="JOB_ID", help="As `toolfleet jobs list` shows it.", autocompletion=complete_jobs)
]

_ONE_LINE = 200  # characters of an error in the list; `show` has the whole


@app.command("list")
@over_fleet
def list_(
    *,
    ended: Annotated[bool, typer.Option("--ended", help="Those that have ended, too.")] = False,
    user: Annotated[str | None, typer.Option("--user", metavar="ID", help="Only this user's.")] = None,
    workflow: Annotated[str | None, typer.Option("--workflow", metavar="ID", help="Only this workflow's.")] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Show at most so many.")] = 50,
    gateway: Gateway | None = None,
    as_json: JsonOption = False,
) -> None:
    """List the jobs, those that are due next first; those of one user the newest first."""
    if gateway is None:
        jobs = asyncio.run(_list(user, workflow, limit, ended=ended))
    else:
        refuse_caller_options(user)
        jobs = remote_jobs.listed(gateway, workflow, limit, ended=ended)
    if as_json:
        say_json([job.model_dump(mode="json") for job in jobs])
        return
    if not jobs:
        note("There are no jobs." if ended else "There are no jobs that have not ended: --ended shows the others.")
        return
    shown = table("JOB", "STATE", "TOOL", "USER", "AGE", "POLLS", "NEXT", "NAME")
    for job in jobs:
        due = "" if job.due_at is None or job.state in ENDED else age(max(0.0, job.due_at - fleet_clock.now()))
        tool, user_id, old = job.tool_name or "-", job.user_id or "-", age(max(0.0, fleet_clock.now() - job.created_at))
        add_row(shown, job.job_id, job.state, tool, user_id, old, str(job.polls), due, _one_line(job.name))
    show_table(shown)
    if len(jobs) == limit:
        note("There may be more: --limit shows them.")


@app.command()
@over_fleet
def show(job_id: JobId, *, gateway: Gateway | None = None, as_json: JsonOption = False) -> None:
    """Show one job: where it is, and what it came to if it has ended."""
    job = _there(job_id, asyncio.run(_show(job_id)) if gateway is None else remote_jobs.shown(gateway, job_id))
    if as_json:
        say_json(job.model_dump(mode="json"))
        return
    say(f"{job.name or job.job_id}\n\n{job.state}{f': {job.error}' if job.error else ''}\n")
    schedule = job.schedule
    facts = {
        "job": job.job_id,
        "tool": job.tool_name,
        "user": job.user_id,
        "conversation": job.conversation_id,
        "workflow": job.workflow_id,
        "cron": f"{schedule.cron} ({schedule.timezone})" if schedule and schedule.cron else None,
        "made": _moment(job.created_at),
        "next": None if job.state in ENDED else _moment(job.due_at),
        "deadline": _moment(job.deadline_at),
        "ended": _moment(job.ended_at),
        "polls": str(job.polls),
        "runs": None if job.runs is None or schedule is None else f"{job.runs} of {schedule.max_runs}",
        "error code": job.error_code,
    }
    for name, value in facts.items():
        if value:
            say(f"{name}: {_one_line(value)}")
    if job.result is not None:
        say(f"\nResult:\n{json.dumps(job.result, indent=2, ensure_ascii=False)}")


@app.command()
@over_fleet
def cancel(
    job_id: Annotated[
        str | None,
        typer.Argument(metavar="JOB_ID", help="As `toolfleet jobs list` shows it.", autocompletion=complete_jobs),
    ] = None,
    *,
    user: Annotated[str | None, typer.Option("--user", metavar="ID", help="All of this user's.")] = None,
    workflow: Annotated[str | None, typer.Option("--workflow", metavar="ID", help="All of this workflow's.")] = None,
    gateway: Gateway | None = None,
    by: str | None = None,
) -> None:
    """End a job, or all of a user's or a workflow's; nobody is told. One that has ended stays as it is.

    A job's calls are made with the rights that its user had when it was made: of one who has fewer now, end them.
    """
    if (job_id is None) == (user is None and workflow is None):
        raise typer.BadParameter("name a job, or a user with --user, or a workflow with --workflow.")
    if gateway is not None:
        _cancel_remotely(gateway, job_id, user, workflow)
        return
    if job_id is None:
        note(f"Cancelled: {asyncio.run(_cancel_all(user, workflow, by))}.")
        return
    job = _there(job_id, asyncio.run(_cancel(job_id, by)))
    note(f"The job is {job.state}.")


def _cancel_remotely(gateway: Gateway, job_id: str | None, user: str | None, workflow: str | None) -> None:
    refuse_caller_options(user)
    if job_id is not None:
        note(f"The job is {remote_jobs.cancelled(gateway, job_id).state}.")
    else:
        note(f"Cancelled: {remote_jobs.workflow_cancelled(gateway, str(workflow))}.")


async def _list(user: str | None, workflow: str | None, limit: int, *, ended: bool) -> list[Job]:
    async with _service() as service:
        if user is not None:
            return await service.list(user, ended=ended, limit=limit, workflow_id=workflow)
        return await service.list_all(ended=ended, limit=limit, workflow_id=workflow)


async def _show(job_id: str) -> Job | None:
    async with _service() as service:
        return await service.get_any(job_id)


async def _cancel(job_id: str, by: str | None) -> Job | None:
    async with _service() as service, _trail(by) as trail, trail.change("job_cancelled", job_id) as change:
        job = await service.cancel_any(job_id)
        change.refusal = "There is no such job." if job is None else None
        return job


async def _cancel_all(user: str | None, workflow: str | None, by: str | None) -> int:
    named = {"job_user": user, "workflow": workflow}
    facts: dict[str, str | int] = {name: value for name, value in named.items() if value is not None}
    async with _service() as service, _trail(by) as trail, trail.change("jobs_cancelled", "-", **facts) as change:
        if workflow is None:
            count = await service.cancel_all_of(str(user))
        elif user is None:
            count = await service.cancel_workflow_of_any(workflow)
        else:
            count = await service.cancel_workflow(workflow, user)
        change.facts["count"] = count
        return count


def _trail(by: str | None) -> "AbstractAsyncContextManager[ChangeTrail]":
    from toolfleet_tasks.operations.change_trail import Actor, ChangeTrail  # noqa: PLC0415 - takes a while to load

    return ChangeTrail.of(load_settings(), Actor.at_command_line(by))


@asynccontextmanager
async def _service() -> "AsyncGenerator[JobService]":
    # They take a second to load, which `--help` should not.
    from toolfleet_tasks.background.job_service import worker_job_service  # noqa: PLC0415
    from toolfleet_tasks.client.fleet_settings import fleet_settings  # noqa: PLC0415

    async with progress("Asking Redis"), worker_job_service(fleet_settings()) as service:
        yield service


def _there(job_id: str, job: Job | None) -> Job:
    if job is None:
        fail(f"There is no job {job_id!r}, or not any more: `toolfleet jobs list` shows those that there are.", code=1)
    return job


def _moment(at: float | None) -> str | None:
    if at is None:
        return None
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    except (ValueError, OverflowError, OSError):  # no time that a calendar has
        return f"{at:g}"


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _ONE_LINE else f"{line[:_ONE_LINE]}…"
