"""Jobs from start to end, with a real worker, beat and module: what happens, and that it happens once."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from support.fleet import TestBed
from support.modules.works import BEGIN, HERE, STATE, Works, job_ended, make_works, running
from support.waiting import PATIENCE_SECONDS, wait_until
from toolfleet import Caller, Conversation, JobRefused, Poll, Schedule, ToolCall, ToolFleet
from toolfleet.tags import ToolContext
from toolfleet_registry.contracts.jobs import ENDED
from toolfleet_tasks.calls.eval_gate import GateDecision
from toolfleet_tasks.messages.ids import then_call_id


@pytest.fixture(scope="module")
def works() -> Works:
    return make_works()


@pytest.fixture(scope="module")
def bed(works: Works, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    with running(tmp_path_factory.mktemp("jobs"), works) as bed:
        yield bed


@pytest.fixture
async def fleet(bed: TestBed, works: Works) -> AsyncIterator[ToolFleet]:
    works.forget(ends_after=2)
    async with ToolFleet(settings=bed.settings) as fleet:
        yield fleet


async def test_a_job_is_started_polled_and_wakes_its_conversation(
    fleet: ToolFleet, works: Works, owner: Caller
) -> None:
    """It makes its first call, polls with what that brought until the work is over, and then tells the conversation once."""
    there = Conversation(conversation_id="c-started")
    job = await fleet.jobs.start(BEGIN, STATE, conversation=there, caller=owner, name="build", deadline=60)
    over = await job_ended(fleet, job, owner)

    async with asyncio.timeout(PATIENCE_SECONDS):
        wake = await anext(aiter(fleet.wakeups.completions("c-started")))

    assert (over.state, over.polls, over.result["status"]) == ("completed", 2, "completed")
    assert (wake.type, wake.wake_id, wake.result) == ("job.completed", job.job_id, over.result)
    assert len(works.server.calls("begin")) == 1
    assert [call["arguments"] for call in works.server.calls("state")] == [{"id": "piece-1"}] * 2


async def test_a_job_without_a_poll_ends_with_its_first_call(fleet: ToolFleet, owner: Caller) -> None:
    """Its result is that call's."""
    job = await fleet.jobs.start(
        ToolCall(tool_name="works.ship", arguments={"path": "x"}), conversation=HERE, caller=owner
    )

    assert (await job_ended(fleet, job, owner)).result == {"shipped": "x"}


async def test_a_jobs_end_may_call_a_tool(fleet: ToolFleet, works: Works, owner: Caller) -> None:
    """It is called once, for the job's creator; and only if the job completes."""
    then = ToolCall(tool_name="works.ship", arguments={"path": "then"})
    other = await fleet.jobs.start(ToolCall(tool_name="works.refuse"), None, then, caller=owner)
    assert (await job_ended(fleet, other, owner)).state == "failed"
    job = await fleet.jobs.start(BEGIN, STATE, then, caller=owner)
    assert (await job_ended(fleet, job, owner)).state == "completed"
    its_end = then_call_id(job.job_id, 0)
    await wait_until(lambda: its_end in works.server.call_ids("ship"), "the end's call was made")

    assert works.server.call_ids("ship") == [its_end]
    assert works.server.calls("ship")[0]["user_id"] == owner.user_id


@pytest.mark.parametrize(
    ("asked", "code", "words"),
    [
        ({"start": ToolCall(tool_name="works.nothing")}, "unknown_tool", "Unknown tool"),
        ({"poll": Poll(tool_name="nobody.knows")}, "unknown_module", "Unknown module"),
        ({"on_complete": ToolCall(tool_name="works.state")}, "invalid_arguments", "id"),
        ({"start": ToolCall(tool_name="scheduler.add_job")}, "invalid_arguments", "must not make jobs"),
        ({"poll": Poll(tool_name="works.state", until="[a")}, "invalid_arguments", "no JMESPath"),
        ({"poll": Poll(tool_name="works.state", interval_seconds=0.01)}, "invalid_arguments", "at least 0.05"),
        ({"start": None, "poll": STATE}, "invalid_arguments", "has no `start`"),
        ({"start": None}, "invalid_arguments", "needs a `start`"),
        ({"deadline": 1e9}, "invalid_arguments", "TOOLFLEET_MAX_JOB_SECONDS"),
        ({"deadline": -1}, "invalid_arguments", "in the future"),
        ({"conversation": None}, "invalid_arguments", "Nobody would hear"),
        ({"on_complete": []}, "invalid_arguments", "nobody would hear"),
        ({"schedule": Schedule(cron="x")}, "invalid_arguments", "five fields"),
    ],
)
async def test_a_job_that_could_not_run_is_refused_at_once(
    fleet: ToolFleet, owner: Caller, works: Works, asked: dict[str, Any], code: str, words: str
) -> None:
    """In one sentence, and before anything of it is done."""
    wanted: dict[str, Any] = {"start": BEGIN, "conversation": HERE, **asked}
    with pytest.raises(JobRefused, match=words) as refusal:
        await fleet.jobs.start(**wanted, caller=owner)

    assert refusal.value.result.error_code == code
    assert works.server.requests == []


async def test_a_job_may_not_call_what_its_creator_may_not(fleet: ToolFleet) -> None:
    """Its polls and the call of its end are judged with its start."""
    guest = Caller(user_id="eve", allowed_modules="*")
    poll = Poll(tool_name="works.admins_state", arguments={"id": "x"})
    wishes: list[dict[str, Any]] = [
        {"poll": poll},
        {"start": BEGIN, "on_complete": ToolCall(tool_name="works.admins_state")},
    ]
    for asked in wishes:
        with pytest.raises(JobRefused) as refusal:
            await fleet.jobs.start(**asked, conversation=HERE, caller=guest)
        assert refusal.value.result.error_code == "permission_denied"


async def test_a_poll_whose_tool_was_closed_meanwhile_ends_the_job(
    fleet: ToolFleet, works: Works, owner: Caller
) -> None:
    """Permission is checked at each poll, with what the module asks then."""
    works.ends_after = 0
    job = await fleet.jobs.start(BEGIN, STATE, conversation=HERE, caller=Caller(user_id="bob", allowed_modules="*"))
    await wait_until(lambda: works.server.calls("state"), "it is polled")
    state = next(tool for tool in works.server.definitions if tool["name"] == "works.state")
    state["required_permission"] = "admin"
    try:
        await fleet.modules.refresh()
        over = await job_ended(fleet, job, Caller(user_id="bob"))
    finally:
        del state["required_permission"]
        await fleet.modules.refresh()

    assert (over.state, over.error_code) == ("failed", "permission_denied")


async def test_a_cancelled_job_tells_nobody(fleet: ToolFleet, works: Works, owner: Caller) -> None:
    """It polls no more, and stays cancelled; others cannot cancel it, nor see it."""
    works.ends_after = 0
    stranger = Caller(user_id="eve", permission="owner")
    job = await fleet.jobs.start(BEGIN, STATE, ToolCall(tool_name="works.ship"), caller=owner)
    await wait_until(lambda: works.server.calls("state"), "it is polled")
    assert await fleet.jobs.cancel(job.job_id, stranger) is None
    assert await fleet.jobs.get(job.job_id, stranger) is None
    cancelled = await fleet.jobs.cancel(job.job_id, owner)
    again = await fleet.jobs.cancel(job.job_id, owner)
    polls = len(works.server.calls("state"))
    works.ends_after = 1
    await asyncio.sleep(0.5)  # in which it would be polled five times

    assert cancelled is not None
    assert again == cancelled
    assert cancelled.state == "cancelled"
    assert len(works.server.calls("state")) <= polls + 1  # one was under way
    assert works.server.calls("ship") == []
    assert job.job_id in {one.job_id for one in await fleet.jobs.list(owner)}
    assert job.job_id not in {one.job_id for one in await fleet.jobs.list(owner, ended=False)}


async def test_an_idempotency_key_names_the_job(fleet: ToolFleet, works: Works, owner: Caller) -> None:
    """Asked for again it is the same job, which has begun once; another user's key is another job."""
    start = ToolCall(tool_name="works.begin", idempotency_key="build-1")
    jobs = [await fleet.jobs.start(start, STATE, conversation=HERE, caller=owner) for _ in range(3)]
    await job_ended(fleet, jobs[0], owner)
    again = await fleet.jobs.start(start, STATE, conversation=HERE, caller=owner)
    assert len(works.server.calls("begin")) == 1
    someone = Caller(user_id="dora", permission="owner", allowed_modules="*")
    other = await fleet.jobs.start(start, STATE, conversation=HERE, caller=someone)

    assert {job.job_id for job in (*jobs, again)} == {jobs[0].job_id}
    assert again.state == "completed"
    assert other.job_id != again.job_id
    assert (await job_ended(fleet, other, someone)).state == "completed"
    assert len(works.server.calls("begin")) == 2


async def test_a_user_may_have_so_many_jobs(bed: TestBed, owner: Caller) -> None:
    """One more is `busy`, and may be made when one of them has ended."""
    settings = bed.settings.model_copy(update={"jobs_per_user": 2})
    someone = Caller(user_id="carl", permission="owner", allowed_modules="*")
    later = Schedule(at=time.time() + 3600)
    async with ToolFleet(settings=settings) as fleet:
        jobs = [await fleet.jobs.start(schedule=later, conversation=HERE, caller=someone) for _ in range(2)]
        with pytest.raises(JobRefused) as refusal:
            await fleet.jobs.start(schedule=later, conversation=HERE, caller=someone)
        assert (refusal.value.result.error_code, refusal.value.result.retryable) == ("busy", True)
        await fleet.jobs.cancel(jobs[0].job_id, someone)
        await fleet.jobs.start(schedule=later, conversation=HERE, caller=someone)


async def test_a_reminder_comes_at_its_time(fleet: ToolFleet, owner: Caller) -> None:
    """It calls nothing; its message is what the conversation is told."""
    at = time.time() + 1
    there = Conversation(conversation_id="c-reminded")
    await fleet.jobs.start(schedule=Schedule(at=at), conversation=there, caller=owner, message="Water the owls.")
    async with asyncio.timeout(PATIENCE_SECONDS):
        wake = await anext(aiter(fleet.wakeups.completions("c-reminded")))

    assert wake.message == "Water the owls."
    assert time.time() >= at - 0.1


async def test_a_tool_behind_a_gate_needs_its_yes_once(bed: TestBed, works: Works, owner: Caller) -> None:
    """The agent's gate is asked when the job is made, for every such tool; its no is the job's refusal."""
    asked: list[str] = []

    class Gate:
        async def check(self, tool: Any, ctx: ToolContext) -> GateDecision:
            asked.append(tool.name)
            return GateDecision(approved=len(asked) == 1, reason="Not again.")

    guarded = ToolCall(tool_name="works.guarded")
    async with ToolFleet(settings=bed.settings, gate=Gate()) as fleet:
        job = await fleet.jobs.start(guarded, conversation=HERE, caller=owner)
        over = await job_ended(fleet, job, owner)
        with pytest.raises(JobRefused) as refusal:
            await fleet.jobs.start(guarded, conversation=HERE, caller=owner)

    assert over.state == "completed"
    assert asked == ["works.guarded"] * 2
    assert refusal.value.result.error_code == "blocked_by_gate"


def test_programs_without_a_loop_have_jobs_too(bed: TestBed, works: Works, owner: Caller) -> None:
    """The same methods, without `await`."""
    with ToolFleet.sync(settings=bed.settings) as fleet:
        job = fleet.jobs.start(ToolCall(tool_name="works.ship"), conversation=HERE, caller=owner)
        give_up_at = time.monotonic() + 20
        while (found := fleet.jobs.get(job.job_id, owner)) is not None and found.state not in ENDED:
            assert time.monotonic() < give_up_at

        assert found is not None
        assert found.state == "completed"
        assert fleet.jobs.cancel(job.job_id, owner) == found
        assert found in fleet.jobs.list(owner)
