"""Lists, shows and cancels the jobs of all users: `toolfleet jobs`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolfleet_cli.commands.completion import complete_jobs
from toolfleet_cli.console import (
    ago,
    indented,
    moment,
    note,
    one_line,
    say,
    say_facts,
    say_json,
    show_list,
    until,
)
from toolfleet_cli.remote import Gateway, JsonOption, LimitOption, ask, over_fleet
from toolfleet_cli.resources import jobs
from toolfleet_registry.contracts.jobs import ENDED, Job
from toolfleet_registry.errors import NoSuchEntry

if TYPE_CHECKING:
    from toolfleet_tasks.resources.operation import ResourceOperation

app = typer.Typer(no_args_is_help=True)

JobId = Annotated[
    str, typer.Argument(metavar="JOB_ID", help="As `toolfleet jobs list` shows it.", autocompletion=complete_jobs)
]
AllUsersOption = Annotated[
    bool,
    typer.Option("--all-users", help="At a gateway: the jobs of all users, for operators; from Redis they are always."),
]


@app.command("list")
@over_fleet
def list_(
    *,
    ended: Annotated[bool, typer.Option("--ended", help="Those that have ended, too.")] = False,
    user: Annotated[str | None, typer.Option("--user", metavar="ID", help="Only this user's.")] = None,
    workflow: Annotated[str | None, typer.Option("--workflow", metavar="ID", help="Only this workflow's.")] = None,
    limit: LimitOption = 50,
    all_users: AllUsersOption = False,
    gateway: Gateway | None = None,
    as_json: JsonOption = False,
) -> None:
    """List the jobs, those that are due next first; those of one user the newest first."""
    query = {"user_id": user, "workflow_id": workflow, "ended": ended, "limit": limit}
    of_all = _of_all(gateway, all_users or user is not None)
    operation: ResourceOperation[Any, Any, Any] = jobs.list_all_jobs if of_all else jobs.list_jobs
    found: list[Job] = ask(operation, gateway, query=query).jobs
    none = "There are no jobs." if ended else "There are no jobs that have not ended: --ended shows the others."
    more = "There may be more: --limit shows them." if len(found) == limit else ""
    show_list(
        found,
        "JOB,STATE,TOOL,USER,AGE,POLLS,NEXT,NAME",
        _row,
        as_json=as_json,
        none=none,
        more=more,
    )


def _row(one: Job) -> tuple[object, ...]:
    left = "" if one.due_at is None or one.state in ENDED else until(one.due_at)
    facts = one.job_id, one.state, one.tool_name or "-", one.user_id or "-"
    return *facts, ago(one.created_at), one.polls, left, one_line(one.name)


@app.command()
@over_fleet
def show(
    job_id: JobId, *, all_users: AllUsersOption = False, gateway: Gateway | None = None, as_json: JsonOption = False
) -> None:
    """Show one job: its state, and its result if it has ended."""
    of_all = _of_all(gateway, all_users)
    job = _of_job(jobs.get_any_job if of_all else jobs.get_job, job_id, gateway)
    if as_json:
        say_json(job)
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
        "made": _when(job.created_at),
        "next": None if job.state in ENDED else _when(job.due_at),
        "deadline": _when(job.deadline_at),
        "ended": _when(job.ended_at),
        "polls": job.polls,
        "runs": None if job.runs is None or schedule is None else f"{job.runs} of {schedule.max_runs}",
        "error code": job.error_code,
    }
    say_facts(facts)
    may_have_woken = of_all and bool(job.state in ENDED or job.runs or job.schedule)
    for each in ask(jobs.list_wakeups_of_job, gateway, job_id).wakeups if may_have_woken else ():
        what = f"{each.end.replace('_', ' ')} {moment(each.at)} by {each.by or '-'}"
        under_way = ", while it was being tried: it may have been accepted" if each.under_way else ""
        say(f"wake-up {each.wake_id}: {one_line(what)}{under_way}")
    if job.result is not None:
        say(f"\nResult:\n{indented(job.result)}")


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
    all_users: AllUsersOption = False,
    gateway: Gateway | None = None,
    by: str | None = None,
) -> None:
    """End a job, or all of a user's or a workflow's, without telling anyone. One that has ended stays as it is.

    A job's calls are made with the rights that its user had when it was made: end the jobs of a user who has fewer now.
    """
    if (job_id is None) == (user is None and workflow is None):
        raise typer.BadParameter("name a job, or a user with --user, or a workflow with --workflow.")

    of_all = _of_all(gateway, all_users or user is not None)
    if job_id is not None:
        job = _of_job(jobs.cancel_any_job if of_all else jobs.cancel_job, job_id, gateway, by)
        note(f"The job is {job.state}.")
    elif of_all:
        query = {"user_id": user, "workflow_id": workflow}
        note(f"Cancelled: {ask(jobs.cancel_jobs_of_user, gateway, query=query, by=by).cancelled}.")
    else:
        note(f"Cancelled: {ask(jobs.cancel_workflow, gateway, str(workflow)).cancelled}.")


def _of_all(gateway: Gateway | None, wants_all: bool) -> bool:  # noqa: FBT001 - its one subject
    """Return whether the jobs of all users are meant; at a gateway by default those of its key's user, which need no role."""
    return gateway is None or wants_all


def _of_job(
    operation: "ResourceOperation[Any, Any, Job]", job_id: str, gateway: Gateway | None, by: str | None = None
) -> Job:
    try:
        return ask(operation, gateway, job_id, by=by)
    except NoSuchEntry:
        if gateway is not None:  # it has said so
            raise
        text = f"There is no job {job_id!r}, or not any more: `toolfleet jobs list` shows those that there are."
        raise NoSuchEntry(text) from None


def _when(at: float | None) -> str | None:
    return None if at is None else moment(at)
