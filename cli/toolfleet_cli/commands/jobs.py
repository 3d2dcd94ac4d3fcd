"""Lists, shows and cancels the jobs of all users, and the programs of models, which are stored as jobs: `toolfleet jobs`."""

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
from toolfleet_cli.resources import jobs, programs
from toolfleet_registry.contracts.jobs import ENDED, Job
from toolfleet_registry.contracts.programs import ToolProgram
from toolfleet_registry.errors import NoSuchEntry

if TYPE_CHECKING:
    from toolfleet_tasks.resources.operation import ResourceOperation

app = typer.Typer(no_args_is_help=True)

_MOST_PROGRAMS = 1_000  # of a user: fewer can wait

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
    of_programs: Annotated[
        bool, typer.Option("--programs", help="List the programs that models have written instead.")
    ] = False,
    limit: LimitOption = 50,
    all_users: AllUsersOption = False,
    gateway: Gateway | None = None,
    as_json: JsonOption = False,
) -> None:
    """List the jobs, those that are due next first; those of one user the newest first."""
    if of_programs and workflow is not None:
        raise typer.BadParameter("programs are in no workflow.", param_hint="--workflow")

    query: dict[str, Any] = {"user_id": user, "ended": ended, "limit": limit}
    of_all = _of_all(gateway, all_users or user is not None)
    kind = "programs" if of_programs else "jobs"
    none = f"There are no {kind}." if ended else f"There are no {kind} that have not ended: --ended shows the others."
    if of_programs:
        of_them: ResourceOperation[Any, Any, Any] = programs.list_all_programs if of_all else programs.list_programs
        made: list[ToolProgram] = ask(of_them, gateway, query=query).programs
        more = _more(len(made), limit)
        show_list(made, "PROGRAM,STATE,USER,AGE,CALLS,ERROR", _program_row, as_json=as_json, none=none, more=more)
        return
    operation: ResourceOperation[Any, Any, Any] = jobs.list_all_jobs if of_all else jobs.list_jobs
    query |= {"workflow_id": workflow}
    found: list[Job] = ask(operation, gateway, query=query).jobs
    more = _more(len(found), limit)
    show_list(found, "JOB,STATE,TOOL,USER,AGE,POLLS,NEXT,NAME", _row, as_json=as_json, none=none, more=more)


def _more(shown: int, limit: int) -> str:
    return "There may be more: --limit shows them." if shown == limit else ""


def _program_row(one: ToolProgram) -> tuple[object, ...]:
    error = one_line(one.error or "")
    return one.program_id, one.state, one.user_id or "-", ago(one.created_at), one.calls_made, error


def _row(one: Job) -> tuple[object, ...]:
    left = "" if one.due_at is None or one.state in ENDED else until(one.due_at)
    facts = one.job_id, one.state, one.tool_name or "-", one.user_id or "-"
    return *facts, ago(one.created_at), one.polls, left, one_line(one.name)


@app.command()
@over_fleet
def show(
    job_id: JobId, *, all_users: AllUsersOption = False, gateway: Gateway | None = None, as_json: JsonOption = False
) -> None:
    """Show one job or program: its state, a program's calls, and the result if it has ended."""
    of_all = _of_all(gateway, all_users)
    if _is_program(job_id):
        program = ask(programs.get_any_program if of_all else programs.get_program, gateway, job_id)
        _show_program(program, as_json=as_json)
        return
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


def _show_program(program: ToolProgram, *, as_json: bool) -> None:
    if as_json:
        say_json(program)
        return
    say(f"{program.state}{f': {program.error}' if program.error else ''}\n")
    facts = {
        "program": program.program_id,
        "user": program.user_id,
        "conversation": program.conversation_id,
        "made": _when(program.created_at),
        "expires": _when(program.expires_at),
        "ended": _when(program.ended_at),
        "error code": program.error_code,
        "calls": program.calls_made,
    }
    say_facts(facts)
    for each in program.calls:
        say(f"{each.number}: {each.tool_name} {each.error_code or each.state} ({each.call_id})")
    if program.result is not None:
        say(f"\nResult:\n{indented(program.result)}")


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
    """End a job or a program, all of a user's, or all jobs of a workflow, without telling anyone. One that has ended stays as it is.

    A job's calls are made with the rights that its user had when it was made: end the jobs of a user who has fewer now.
    A program's calls that no worker has begun are withdrawn.
    """
    if (job_id is None) == (user is None and workflow is None):
        raise typer.BadParameter("name a job, or a user with --user, or a workflow with --workflow.")

    of_all = _of_all(gateway, all_users or user is not None)
    if job_id is not None and _is_program(job_id):
        program = ask(programs.cancel_any_program if of_all else programs.cancel_program, gateway, job_id, by=by)
        note(f"The program is {program.state}." if program.ended_at else "A worker ends the program in a moment.")
    elif job_id is not None:
        job = _of_job(jobs.cancel_any_job if of_all else jobs.cancel_job, job_id, gateway, by)
        note(f"The job is {job.state}.")
    elif of_all:
        query = {"user_id": user, "workflow_id": workflow}
        count = ask(jobs.cancel_jobs_of_user, gateway, query=query, by=by).cancelled
        left = _programs_of(user, gateway) if workflow is None else []
        for each in left:
            ask(programs.cancel_any_program, gateway, each.program_id, by=by)
        note(f"Cancelled: {count + len(left)}.")
    else:
        note(f"Cancelled: {ask(jobs.cancel_workflow, gateway, str(workflow)).cancelled}.")


def _programs_of(user: str | None, gateway: Gateway | None) -> list[ToolProgram]:
    query = {"user_id": user, "ended": False, "limit": _MOST_PROGRAMS}
    found: list[ToolProgram] = ask(programs.list_all_programs, gateway, query=query).programs
    return found


def _is_program(job_id: str) -> bool:
    from toolfleet_tasks.messages.ids import is_program

    return is_program(job_id)


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
