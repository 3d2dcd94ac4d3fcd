"""`toolfleet jobs`, on a real Redis, without workers."""

import asyncio
import functools
import json
from collections.abc import Callable
from typing import Any

import pytest

from support.command import Run
from support.workers.dead_news import maker
from support.workers.stored_programs import SIGNING_KEY, program_records, program_settings, waiting_program
from toolfleet import Caller, Conversation, ToolFleet
from toolfleet_registry.contracts.jobs import Job, Poll, Schedule

Make = Callable[..., Job]


@pytest.fixture
def jobs(owls_run: Run) -> Run:
    """Runs `toolfleet jobs`, with a Redis and a module."""
    return functools.partial(owls_run, "jobs")


@pytest.fixture
def make(jobs: Run) -> Make:
    """Makes a job that is due in an hour."""
    del jobs  # its settings

    def make(user: str = "ada", **fields: Any) -> Job:
        async def made() -> Job:
            async with ToolFleet() as fleet:
                return await fleet.jobs.start(
                    None,
                    Poll(tool_name="owls.echo", arguments={"secret": "1234-5678"}, interval_seconds=3600),
                    conversation=Conversation(conversation_id="talk-1"),
                    caller=Caller(user_id=user, permission="owner", allowed_modules="*"),
                    **fields,
                )

        return asyncio.run(made())

    return make


def test_the_list_is_a_line_a_job(jobs: Run, make: Make) -> None:
    """Of all users, or of one; and never with arguments."""
    ada, bob = make(name="Build [b]\nthe site"), make("bob")
    everybody, bobs = jobs("list"), jobs("list", "--user", "bob", "--json")

    assert everybody.code == 0
    (line,) = [line for line in everybody.out.splitlines() if ada.job_id in line]
    assert line.split()[1:4] == ["waiting", "owls.echo", "ada"]
    assert line.endswith("Build [b] the site")
    assert bob.job_id in everybody.out
    assert [job["job_id"] for job in json.loads(bobs.out)] == [bob.job_id]
    assert "1234-5678" not in everybody.out + bobs.out


def test_no_jobs_are_said(jobs: Run) -> None:
    """Nothing on stdout, so that a pipe gets nothing."""
    ended = jobs("list")
    assert (ended.code, ended.out) == (0, "")
    assert "There are no jobs" in ended.err
    assert jobs("list", "--json").out.strip() == "[]"


def test_a_job_is_shown_with_where_it_is(jobs: Run, make: Make) -> None:
    """With its conversation and its schedule, and without arguments."""
    job = make(name="the owls", schedule=Schedule(cron="0 9 * * *", timezone="Europe/Berlin"))
    shown = jobs("show", job.job_id)

    assert shown.code == 0
    assert "the owls\n\nwaiting\n" in shown.out
    for fact in (f"job: {job.job_id}", "conversation: talk-1", "cron: 0 9 * * * (Europe/Berlin)", "user: ada"):
        assert fact in shown.out
    assert "1234-5678" not in shown.out
    assert json.loads(jobs("show", job.job_id, "--json").out)["state"] == "waiting"


def test_a_workflow_is_listed_and_cancelled_together(jobs: Run, make: Make) -> None:
    """Of one user, or of whoever has one of that name; other jobs stay."""
    ada, bob = make(workflow_id="release"), make("bob", workflow_id="release")
    other, alone = make(workflow_id="nightly"), make()
    listed = jobs("list", "--workflow", "release")

    assert ada.job_id in listed.out
    assert bob.job_id in listed.out
    assert other.job_id not in listed.out
    assert [
        job["job_id"] for job in json.loads(jobs("list", "--workflow", "release", "--user", "bob", "--json").out)
    ] == [bob.job_id]
    assert "workflow: release" in jobs("show", ada.job_id).out
    assert jobs("cancel", "--workflow", "release", "--user", "ada").err.strip() == "Cancelled: 1."
    assert jobs("cancel", "--workflow", "release").err.strip() == "Cancelled: 1."
    assert jobs("cancel", "--workflow", "nothing").err.strip() == "Cancelled: 0."
    assert {job["job_id"] for job in json.loads(jobs("list", "--json").out)} == {other.job_id, alone.job_id}
    assert len(json.loads(jobs("list", "--workflow", "release", "--ended", "--json").out)) == 2


def test_programs_are_shown_and_cancelled_as_jobs(
    jobs: Run, make: Make, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their ids; a user's are cancelled with the jobs, and a workflow has none."""
    monkeypatch.setenv("TOOLFLEET_SIGNING_KEY", SIGNING_KEY)

    async def stored() -> None:
        async with program_records(program_settings(redis_url)) as records:
            for program_id, user in (("program-a", "ada"), ("program-b", "ada"), ("program-c", "bob")):
                await waiting_program(records, program_id, user_id=user)

    make()
    asyncio.run(stored())

    assert "calls: 1" in jobs("show", "program-a").out
    assert jobs("cancel", "program-a").err == "A worker ends the program in a moment.\n"
    assert jobs("cancel", "--user", "ada").err == "Cancelled: 3.\n"
    assert jobs("cancel", "--user", "ada", "--workflow", "x").err == "Cancelled: 0.\n"
    listed = json.loads(jobs("list", "--programs", "--user", "bob", "--json").out)
    assert [each["program_id"] for each in listed] == ["program-c"]
    assert jobs("show", "program-x").code == 1
    assert jobs("list", "--programs", "--workflow", "x").code == 2


@pytest.mark.parametrize("command", ["show", "cancel"])
def test_a_job_that_is_not_there_is_said(jobs: Run, command: str) -> None:
    ended = jobs(command, "nothing")
    assert ended.code == 1
    assert "There is no job 'nothing'" in ended.err


def test_a_job_says_what_became_of_its_wakeups(jobs: Run, make: Make, run: Run, redis_url: str) -> None:
    """By whom and when, of one that recurs also before it is over."""
    job = make(schedule=Schedule(cron="0 9 * * *"))
    maker(redis_url)(f"{job.job_id}.1", job_id=job.job_id)
    run("wakes", "drop", f"{job.job_id}.1", "--as", "olga")
    shown = jobs("show", job.job_id)

    (line,) = [line for line in shown.out.splitlines() if line.startswith("wake-up ")]
    assert line.startswith(f"wake-up {job.job_id}.1: dropped ")
    assert line.endswith("by olga (command line)")
