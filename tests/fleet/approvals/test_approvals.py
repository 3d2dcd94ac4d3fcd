"""Calls that people have to approve, with real workers: nothing runs before, and each runs once."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from support.fleet import SIGNING_KEY, TestBed, program
from support.fleet_calls import FleetCalls
from support.module_server import ModuleServer, serve
from support.owls import echo
from support.waiting import PATIENCE_SECONDS, wait_until_answered
from toolfleet import (
    ApprovalNotTaken,
    Approver,
    Caller,
    Conversation,
    Job,
    ListedApproval,
    ToolCall,
    ToolFleet,
    ToolResult,
)
from toolfleet_cli.local.commands import beat_command
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_tasks.approvals.settling import settle_due
from toolfleet_tasks.calls.asked_by import set_credential
from toolfleet_tasks.client.session import Session
from toolfleet_tasks.ledger.dead_letters import dead_letter
from toolfleet_tasks.messages.signing import seal_of

ADA = Caller(user_id="ada", permission="owner", allowed_modules="*", agent="production")
FEED = ToolCall(tool_name="owls.feed", arguments={"n": 1})
BOSS = Approver("command line", "bob", "admin")
OTHER = Approver("command line", "eve", "owner")
AGENTS = {
    "production": {
        "middleware": [{"name": "human_in_the_loop", "approve_tools": ["owls.feed"], "expires_seconds": 600}],
    },
    "careful": {
        "middleware": [{"name": "human_in_the_loop", "approve_tools": ["owls.*"], "quorum": 2}],
    },
    "hasty": {
        "middleware": [{"name": "human_in_the_loop", "approve_tools": ["owls.*"], "expires_seconds": 3}],
    },
}


@pytest.fixture
def module() -> Iterator[ModuleServer]:
    module = ModuleServer("owls")
    module.add("feed", echo, effect="once")
    module.add("count", echo, effect="read")
    with serve(module) as served:
        yield served


@pytest.fixture(params=["unsigned", "signed"])
def bed(module: ModuleServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TestBed]:
    logs = tmp_path / "logs"
    logs.mkdir()
    more: dict[str, object] = {"agents": AGENTS, "jobs_interval_seconds": 1}
    if request.param == "signed":
        more["signing_key"] = SIGNING_KEY
    with redis_server(tmp_path / "redis") as url:
        yield TestBed(url, (module,), logs, more)


async def waiting(fleet: ToolFleet, call: ToolCall = FEED, caller: Caller = ADA) -> str:
    """The id of a call that waits for people."""
    result = await fleet.call(call, caller)
    assert (result.error_code, result.effect_state, result.retryable) == ("approval_required", "none", False)
    assert result.audit.call_id in str(result.error)
    return result.audit.call_id


async def end_of(fleet: ToolFleet, call: ToolCall, caller: Caller = ADA) -> ToolResult:
    """How it has ended: a repeat with its key joins it."""
    return await fleet.call(call, caller, timeout=20, waits_for_approval=20)


async def test_an_approved_call_runs_once(bed: TestBed, module: ModuleServer) -> None:
    """It waits without a worker's place, begins with the approval, and whoever decides later is told that it is too late."""
    keyed = FEED.model_copy(update={"idempotency_key": "k1"})
    async with ToolFleet(settings=bed.settings) as fleet:
        with bed.worker():
            approval_id = await waiting(fleet, keyed)
            (listed,) = await fleet.approvals.list()
            assert (listed.approval_id, listed.request.arguments, listed.state) == (approval_id, {"n": 1}, "waiting")
            assert module.calls("feed") == []

            approved = await fleet.approvals.approve(approval_id, BOSS)
            assert approved.state == "approved"
            result = await end_of(fleet, keyed)
            assert (result.success, result.audit.call_id) == (True, approval_id)
            assert len(module.calls("feed")) == 1
            for decide in (fleet.approvals.approve, fleet.approvals.reject):
                with pytest.raises(ApprovalNotTaken) as late:
                    await decide(approval_id, OTHER)
                assert late.value.reason == "approved"
            assert len(module.calls("feed")) == 1


async def test_an_agent_may_wait_for_the_decision(bed: TestBed, module: ModuleServer) -> None:
    """Its call has its own time from the approval on; a rejected one ends with the person's words."""
    async with ToolFleet(settings=bed.settings) as fleet:
        with bed.worker():
            for decide in ("approve", "reject"):
                running = asyncio.create_task(fleet.call(FEED, ADA, timeout=20, waits_for_approval=60))
                approval_id = (await some(fleet)).approval_id
                if decide == "approve":
                    await fleet.approvals.approve(approval_id, BOSS)
                    assert (await running).success
                else:
                    await fleet.approvals.reject(approval_id, BOSS, reason="Not on a Sunday.")
                    result = await running
                    assert (result.error_code, result.effect_state) == ("approval_denied", "none")
                    assert "Not on a Sunday." in str(result.error)
            assert len(module.calls("feed")) == 1


async def test_what_nobody_decides_is_denied(bed: TestBed, module: ModuleServer) -> None:
    """By whoever looks at it once its time is over, also where all were down then; whoever decides later is too late."""
    hasty = ADA.model_copy(update={"agent": "hasty"})
    async with ToolFleet(settings=bed.settings) as fleet, session_of(bed) as session:
        running = asyncio.create_task(fleet.call(FEED, hasty, timeout=20, waits_for_approval=60))
        approval_id = (await some(fleet)).approval_id

        async def is_settled() -> bool:
            await settle_due(session.approvals, seconds=5, lease_seconds=0.1)
            return running.done()

        await wait_until_answered(is_settled, "it is denied")
        result = await running
        assert (result.error_code, result.effect_state) == ("approval_denied", "none")
        assert "(expired)" in str(result.error)
        with pytest.raises(ApprovalNotTaken) as late:
            await fleet.approvals.approve(approval_id, BOSS)
        assert late.value.reason == "expired"
        assert module.requests == []
        assert [each.approval_id for each in await fleet.approvals.list(settled=True)] == [approval_id]
        assert await fleet.approvals.list() == []


async def test_a_changed_call_needs_a_new_approval(bed: TestBed, module: ModuleServer) -> None:
    """With edited arguments others' approvals count no more; what runs is what the last of them have seen."""
    careful = ADA.model_copy(update={"agent": "careful"})
    keyed = FEED.model_copy(update={"idempotency_key": "k2"})
    async with ToolFleet(settings=bed.settings) as fleet:
        with bed.worker():
            approval_id = await waiting(fleet, keyed, careful)
            seen = (await fleet.approvals.show(approval_id)).request.binding
            assert (await fleet.approvals.approve(approval_id, BOSS, seen=seen)).state == "waiting"
            with pytest.raises(ApprovalNotTaken) as twice:
                await fleet.approvals.approve(approval_id, BOSS, seen=seen)
            assert twice.value.reason == "forbidden"
            edited = await fleet.approvals.approve(approval_id, OTHER, arguments={"n": 2}, seen=seen)
            assert (edited.state, [line.what for line in edited.journal]) == (
                "waiting",
                ["approved", "edited", "approved"],
            )
            with pytest.raises(ApprovalNotTaken) as stale:
                await fleet.approvals.approve(approval_id, BOSS, seen=seen)
            assert (stale.value.reason, '{"n": 2}' in str(stale.value.hint)) == ("changed", True)
            approved = await fleet.approvals.approve(approval_id, BOSS, seen=edited.request.binding)
            assert approved.state == "approved"
            result = await end_of(fleet, keyed, careful)
            assert result.success
            assert [call["arguments"] for call in module.calls("feed")] == [{"n": 2}]


async def test_only_approvers_decide_and_nobody_for_themselves(bed: TestBed, module: ModuleServer) -> None:
    """A user without the right, and whoever asks, whatever they may do else."""
    async with ToolFleet(settings=bed.settings) as fleet:
        approval_id = await waiting(fleet)
        for approver in (Approver("key k", "guest", "user"), Approver("command line", "ada", "owner")):
            with pytest.raises(ApprovalNotTaken) as refused:
                await fleet.approvals.approve(approval_id, approver)
            assert refused.value.reason == "forbidden"
        assert (await fleet.approvals.reject(approval_id, Approver("key k", "ada", "user"))).state == "rejected"
        with pytest.raises(ApprovalNotTaken) as unknown:
            await fleet.approvals.approve("nobody", BOSS)
        assert unknown.value.reason == "unknown"
        assert module.requests == []


async def test_a_message_without_an_approval_runs_nothing(bed: TestBed, module: ModuleServer) -> None:
    """Neither of an agent that knows no profiles' rules, nor the waiting call's own, put into its queue by somebody else."""
    if bed.settings.signing_key is not None:
        pytest.skip("a message that nobody has signed is refused before")
    async with ToolFleet(settings=bed.settings) as fleet:
        approval_id = await waiting(fleet)
        found = await fleet.approvals.show(approval_id)
        with bed.worker():
            calls = FleetCalls(bed.settings)
            forged = calls.publish("owls.feed", arguments={"n": 1}, effect="once", caller=ADA, user_id="ada")
            (result,) = calls.results(forged)
            assert (result["error_code"], result["effect_state"]) == ("approval_denied", "none")
            fields = {
                name: getattr(found.call, name) for name in ("arguments", "effect", "caller", "user_id", "approval")
            }
            other = calls.publish("owls.feed", **fields)
            (result,) = calls.results(other)
            assert (result["error_code"], result["effect_state"]) == ("approval_denied", "none")
            assert module.requests == []
            calls.close()
        assert (await fleet.approvals.show(approval_id)).state == "waiting"


async def test_a_cancelled_call_is_approved_in_vain(bed: TestBed, module: ModuleServer) -> None:
    """Whoever has asked may take it back while people decide; it is settled soon after, long before it would expire."""
    async with ToolFleet(settings=bed.settings) as fleet, session_of(bed) as session:
        handle = await fleet.submit(FEED, ADA)
        assert await handle.status() == "waiting_approval"
        await handle.cancel()
        assert (await handle.result()).error_code == "cancelled"
        with pytest.raises(ApprovalNotTaken) as ended:
            await fleet.approvals.approve(handle.id, BOSS)
        assert ended.value.reason == "ended"
        assert module.requests == []

        async def is_settled() -> bool:
            await settle_due(session.approvals, seconds=5, lease_seconds=0.1)
            return await fleet.approvals.count() == 0

        await wait_until_answered(is_settled, "it is settled")
        assert [each.is_withdrawn for each in await fleet.approvals.list(settled=True)] == [True]


@asynccontextmanager
async def session_of(bed: TestBed) -> AsyncGenerator[Session]:
    session = Session(bed.settings, has_agent=False)
    await session.open()
    try:
        yield session
    finally:
        await session.aclose()


async def some(fleet: ToolFleet) -> ListedApproval:
    """The call that waits for people, once one does."""
    found = list[ListedApproval]()

    async def there() -> bool:
        found[:] = [each for each in await fleet.approvals.list() if each.state == "waiting" and each.place == ""]
        return bool(found)

    await wait_until_answered(there, "a call waits for an approval")
    return found[0]


@pytest.mark.fleet
async def test_a_job_waits_for_people(bed: TestBed, module: ModuleServer) -> None:
    """Its step begins once it is approved, and the job ends as the step does; a rejected one fails with the person's words."""
    conversation = Conversation(conversation_id="c-1")
    async with ToolFleet(settings=bed.settings) as fleet:
        with bed.worker(), program(bed, beat_command(), "beat", ready="beat: Starting"):
            for decision in ("approve", "reject"):
                job = await fleet.jobs.start(FEED, caller=ADA, conversation=conversation)
                waits = await some(fleet)
                assert waits.request.arguments == {"n": 1}
                if decision == "approve":
                    await fleet.approvals.approve(waits.approval_id, BOSS)
                else:
                    await fleet.approvals.reject(waits.approval_id, BOSS, reason="Not now.")
                ended = await job_end(fleet, job.job_id)
                assert ended.state == ("completed" if decision == "approve" else "failed"), ended
                assert decision == "approve" or "Not now." in str(ended.error)
            assert len(module.calls("feed")) == 1


async def job_end(fleet: ToolFleet, job_id: str) -> Job:
    """The job once it is over."""
    found = list[Job]()

    async def is_over() -> bool:
        job = await fleet.jobs.get(job_id, ADA)
        found[:] = [job] if job is not None and job.state in {"completed", "failed"} else []
        return bool(found)

    await wait_until_answered(is_over, "the job is over", seconds=2 * PATIENCE_SECONDS)
    return found[0]


async def test_a_replay_is_no_way_around_whose_call_it_is(bed: TestBed) -> None:
    """A replay waits as asked for by its own credential and by the one of the first call: neither of them approves it."""
    async with ToolFleet(settings=bed.settings) as fleet, session_of(bed) as session:
        set_credential("key k1", "dave")
        approval_id = await waiting(fleet)
        found = await fleet.approvals.show(approval_id)
        call = found.call
        assert call.asked_by == found.request.asked_by == ("key k1", "user dave")

        lost = ToolResult.failed(call.tool_name, "outcome_unknown", "Nobody saw its end.", effect_state="unknown")
        keys, letters = bed.settings.keys, seal_of(bed.settings, purpose="dead letter")
        letter = letters.sign(dead_letter(call, lost, died_at=1.0))
        await session.dead.calls._store.ask("HSET", keys.dead, approval_id, letter)
        await session.dead.calls._store.ask("ZADD", keys.dead_order, 1, approval_id)
        await fleet.approvals.reject(approval_id, BOSS)
        set_credential("key k2", "eve")
        replay = asyncio.create_task(fleet.dead_letters.replay(approval_id))
        request = (await some(fleet)).request
        assert request.asked_by == ("key k2", "user eve", "key k1", "user dave")
        with pytest.raises(ApprovalNotTaken, match="of their own"):
            await fleet.approvals.approve(request.approval_id, Approver("key k1", "dave", "admin", "k1"))
        await fleet.approvals.reject(request.approval_id, BOSS)
        assert (await replay).error_code == "approval_denied"
