"""Jobs from start to end: what happens, and that it happens once."""

import asyncio
import time
from functools import partial
from typing import Any

import pytest

from bed import clock
from bed.fleet import Bed, until
from support.modules.works import BEGIN, HERE, SLOWLY, Works, job_ended
from toolfleet import Caller, JobRefused, Poll, Schedule, ToolCall, ToolFleet
from toolfleet.tags import ToolContext
from toolfleet_tasks.calls.eval_gate import GateDecision
from toolfleet_tasks.messages.ids import then_call_id

THEN = ToolCall(tool_name="works.ship", arguments={"path": "then"})
GUARDED = ToolCall(tool_name="works.guarded")
ended = partial(job_ended, seconds=3600)


def someone(name: str) -> Caller:
    """Another user who may do everything."""
    return Caller(user_id=name, permission="owner", allowed_modules="*")


async def test_a_job_is_started_polled_and_wakes_its_conversation(
    fleet: ToolFleet, works: Works, owner: Caller
) -> None:
    """It makes its first call, polls with its result once an interval until the work is over, and tells that once."""
    before = clock.monotonic()
    job = await fleet.jobs.start(BEGIN, SLOWLY, conversation=HERE, caller=owner, name="build")
    over = await ended(fleet, job, owner)
    wake = await anext(aiter(fleet.wakeups.completions("c-1")))

    assert (over.state, over.polls, over.result["status"]) == ("completed", 2, "completed")
    assert 2 * SLOWLY.interval_seconds <= clock.monotonic() - before < 2 * SLOWLY.interval_seconds + 10
    assert (wake.type, wake.wake_id, wake.result) == ("job.completed", job.job_id, over.result)
    assert len(works.server.calls("begin")) == 1
    assert [call["arguments"] for call in works.server.calls("state")] == [{"id": "piece-1"}] * 2


async def test_a_jobs_end_may_call_a_tool(fleet: ToolFleet, works: Works, owner: Caller) -> None:
    """It is called once, for the job's creator, if the job completes. A job without a poll has its first call's result."""
    other = await fleet.jobs.start(ToolCall(tool_name="works.refuse"), None, THEN, caller=owner)
    assert (await ended(fleet, other, owner)).state == "failed"
    look = ToolCall(tool_name="works.state", arguments={"id": "x"})
    short = await fleet.jobs.start(look, None, THEN, caller=owner)
    long = await fleet.jobs.start(BEGIN, SLOWLY, THEN, caller=owner)
    assert (await ended(fleet, short, owner)).result == {"id": "x", "status": "running"}
    assert (await ended(fleet, long, owner)).state == "completed"
    ends = [then_call_id(job.job_id, 0) for job in (short, long)]
    await until(lambda: len(works.server.calls("ship")) == len(ends), "the ends' calls are made")
    await asyncio.sleep(60)

    assert works.server.call_ids("ship") == ends
    assert {call["user_id"] for call in works.server.calls("ship")} == {owner.user_id}


@pytest.mark.parametrize(
    ("asked", "code", "words"),
    [
        ({"start": ToolCall(tool_name="works.nothing")}, "unknown_tool", "Unknown tool"),
        ({"poll": Poll(tool_name="nobody.knows")}, "unknown_module", "Unknown module"),
        ({"on_complete": ToolCall(tool_name="works.state")}, "invalid_arguments", "id"),
        ({"start": ToolCall(tool_name="scheduler.add_job")}, "invalid_arguments", "must not make jobs"),
        ({"poll": Poll(tool_name="works.state", until="[a")}, "invalid_arguments", "no JMESPath"),
        ({"poll": Poll(tool_name="works.state", interval_seconds=0.5)}, "invalid_arguments", "at least 1"),
        ({"start": None, "poll": SLOWLY}, "invalid_arguments", "has no `start`"),
        ({"start": None}, "invalid_arguments", "needs a `start`"),
        ({"deadline": 1e9}, "invalid_arguments", "31622400 s ahead"),
        ({"deadline": -1}, "invalid_arguments", "in the future"),
        ({"conversation": None}, "invalid_arguments", "Nobody would hear"),
        ({"on_complete": []}, "invalid_arguments", "nobody would hear"),
        ({"schedule": Schedule(cron="x")}, "invalid_arguments", "five fields"),
        # Its polls and the call of its end are checked with its start.
        ({"caller": Caller(user_id="eve", allowed_modules="*"), "start": None,
          "poll": Poll(tool_name="works.admins_state", arguments={"id": "x"})}, "permission_denied", "admins_state"),
        ({"caller": Caller(user_id="eve", allowed_modules="*"),
          "on_complete": ToolCall(tool_name="works.admins_state", arguments={"id": "x"})}, "permission_denied", "admins_state"),
    ],
)  # fmt: skip
async def test_a_job_that_could_not_run_is_refused_at_once(
    bed: Bed, owner: Caller, works: Works, asked: dict[str, Any], code: str, words: str
) -> None:
    """In one sentence, before anything of it is done."""
    await bed.serve(works.server)
    fleet = await bed.agent()
    wanted: dict[str, Any] = {"start": BEGIN, "conversation": HERE, "caller": owner, **asked}
    with pytest.raises(JobRefused, match=words) as refusal:
        await fleet.jobs.start(**wanted)

    assert refusal.value.result.error_code == code
    assert works.server.requests == []


async def test_a_poll_whose_tool_was_closed_meanwhile_ends_the_job(fleet: ToolFleet, works: Works) -> None:
    """Permission is checked at each poll, with what the module asks then."""
    works.ends_after, bob = 0, Caller(user_id="bob", allowed_modules="*")
    job = await fleet.jobs.start(BEGIN, SLOWLY, conversation=HERE, caller=bob)
    await until(lambda: works.server.calls("state"), "it is polled")
    state = next(tool for tool in works.server.definitions if tool["name"] == "works.state")
    state["required_permission"] = "admin"
    await fleet.modules.refresh()
    over = await ended(fleet, job, bob)

    assert (over.state, over.error_code) == ("failed", "permission_denied")


async def test_a_cancelled_job_tells_nobody(fleet: ToolFleet, works: Works, owner: Caller) -> None:
    """It polls no more, and stays cancelled; others cannot cancel it, nor see it."""
    works.ends_after, stranger = 0, Caller(user_id="eve", permission="owner")
    job = await fleet.jobs.start(BEGIN, SLOWLY, ToolCall(tool_name="works.ship"), caller=owner)
    await until(lambda: works.server.calls("state"), "it is polled")
    assert await fleet.jobs.cancel(job.job_id, stranger) is None
    assert await fleet.jobs.get(job.job_id, stranger) is None
    cancelled = await fleet.jobs.cancel(job.job_id, owner)
    again = await fleet.jobs.cancel(job.job_id, owner)
    polls = len(works.server.calls("state"))
    works.ends_after = 1
    await asyncio.sleep(5 * SLOWLY.interval_seconds)

    assert cancelled is not None
    assert again == cancelled
    assert cancelled.state == "cancelled"
    assert len(works.server.calls("state")) == polls
    assert works.server.calls("ship") == []
    assert [one.job_id for one in await fleet.jobs.list(owner)] == [job.job_id]
    assert await fleet.jobs.list(owner, ended=False) == []


async def test_an_idempotency_key_names_the_job(fleet: ToolFleet, works: Works, owner: Caller) -> None:
    """Asked for again it is the same job, which has begun once; another user's key is another job."""
    start = ToolCall(tool_name="works.begin", idempotency_key="build-1")
    jobs = [await fleet.jobs.start(start, SLOWLY, conversation=HERE, caller=owner) for _ in range(3)]
    await ended(fleet, jobs[0], owner)
    again = await fleet.jobs.start(start, SLOWLY, conversation=HERE, caller=owner)
    assert len(works.server.calls("begin")) == 1
    other = await fleet.jobs.start(start, SLOWLY, conversation=HERE, caller=someone("dora"))

    assert {job.job_id for job in (*jobs, again)} == {jobs[0].job_id}
    assert again.state == "completed"
    assert other.job_id != again.job_id
    assert (await ended(fleet, other, someone("dora"))).state == "completed"
    assert len(works.server.calls("begin")) == 2


async def test_a_user_may_have_so_many_jobs(bed: Bed) -> None:
    """One more is `busy`, and may be made when one of them has ended."""
    fleet, carl, later = await bed.agent(jobs_per_user=2), someone("carl"), Schedule(at=time.time() + 3600)
    jobs = [await fleet.jobs.start(schedule=later, conversation=HERE, caller=carl) for _ in range(2)]
    with pytest.raises(JobRefused) as refusal:
        await fleet.jobs.start(schedule=later, conversation=HERE, caller=carl)
    assert (refusal.value.result.error_code, refusal.value.result.retryable) == ("busy", True)
    await fleet.jobs.cancel(jobs[0].job_id, carl)
    await fleet.jobs.start(schedule=later, conversation=HERE, caller=carl)


@pytest.mark.parametrize(
    ("start", "kind", "said"),
    [
        (None, "job.completed", "Water the owls."),
        (ToolCall(tool_name="works.ship"), "job.completed", "Water the owls."),
        (ToolCall(tool_name="works.refuse"), "job.failed", "{job_id} needs you.\n\nThe job has failed"),
    ],
    ids=["a reminder", "a call", "a call that fails"],
)
async def test_a_job_begins_at_its_time(
    fleet: ToolFleet, works: Works, owner: Caller, start: ToolCall | None, kind: str, said: str
) -> None:
    """A reminder calls nothing, and its message is what the conversation is told. One that fails may say something else."""
    at = time.time() + 120
    schedule = Schedule(at=at) if start is None else Schedule(delay_seconds=120)
    job = await fleet.jobs.start(
        start,
        conversation=HERE,
        caller=owner,
        schedule=schedule,
        message="Water the owls.",
        on_failure_message="{job_id} needs you.",
    )
    await asyncio.sleep(115)
    assert works.server.requests == []
    wake = await anext(aiter(fleet.wakeups.completions("c-1")))

    assert (wake.type, wake.job_id) == (kind, job.job_id)
    assert wake.message.startswith(said.format(job_id=job.job_id))
    assert at - 0.001 <= wake.timestamp < at + 10  # it is in whole milliseconds
    assert len(works.server.requests) == (start is not None)


async def test_a_tool_behind_a_gate_needs_its_yes_once(bed: Bed, fleet: ToolFleet, owner: Caller) -> None:
    """The agent's gate is asked when the job is made, for every such tool; its no is the job's refusal."""
    asked: list[str] = []

    class Gate:
        async def check(self, tool: Any, ctx: ToolContext) -> GateDecision:
            asked.append(tool.name)
            return GateDecision(approved=len(asked) == 1, reason="Not again.")

    async with ToolFleet(settings=bed.settings, gate=Gate()) as gated:
        job = await gated.jobs.start(GUARDED, conversation=HERE, caller=owner)
        over = await ended(fleet, job, owner)
        with pytest.raises(JobRefused) as refusal:
            await gated.jobs.start(GUARDED, conversation=HERE, caller=owner)

    assert over.state == "completed"
    assert asked == ["works.guarded"] * 2
    assert refusal.value.result.error_code == "blocked_by_gate"


async def test_a_job_that_fails_ends_its_workflow(fleet: ToolFleet, works: Works, owner: Caller) -> None:
    """Its siblings are cancelled and poll no more; others can be ended by their workflow's name."""
    poll = Poll(tool_name="works.state", arguments={"id": "owls"}, interval_seconds=10)
    works.ends_after = 0
    sibling, other = [
        await fleet.jobs.start(None, poll, conversation=HERE, caller=owner, workflow_id=each)
        for each in ("release", "nightly")
    ]
    failing = ToolCall(tool_name="works.refuse")
    failed = await fleet.jobs.start(failing, conversation=HERE, caller=owner, workflow_id="release")
    over = await ended(fleet, sibling, owner)
    listed = await fleet.jobs.list(owner, workflow_id="release")

    assert (over.state, over.error_code) == ("cancelled", "cancelled")
    assert f"the job '{failed.job_id}' of its workflow has failed" in str(over.error)
    assert {job.job_id: job.state for job in listed} == {failed.job_id: "failed", sibling.job_id: "cancelled"}
    assert other.job_id in {job.job_id for job in await fleet.jobs.list(owner, ended=False)}
    ended_now = [await fleet.jobs.cancel_workflow("nightly", who) for who in (someone("zoe"), owner, owner)]
    assert ended_now == [0, 1, 0]
    polls = len(works.server.calls("state"))
    await asyncio.sleep(60)
    assert (await ended(fleet, other, owner)).state == "cancelled"
    assert len(works.server.calls("state")) == polls
