"""Calls that people have to approve: nothing runs before, each runs once, and people have their time."""

import asyncio
from typing import Any

import pytest

from bed import clock
from bed.fleet import Bed, until
from support.fleet import SIGNING_KEY
from support.fleet_calls import FleetCalls
from support.module_server import ModuleServer
from support.owls import echo
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
from toolfleet_registry.contracts.jobs import ENDED
from toolfleet_tasks.calls.audit_trail import set_credential
from toolfleet_tasks.ledger.contents import dead_letter
from toolfleet_tasks.messages.signing import seal_of

TIME = 600  # seconds, that people have
ADA = Caller(user_id="ada", permission="owner", allowed_modules="*", agent="production")
CAREFUL = ADA.model_copy(update={"agent": "careful"})
FEED = ToolCall(tool_name="owls.feed", arguments={"n": 1}, idempotency_key="k")
BOSS, OTHER = Approver("command line", "bob", "admin"), Approver("command line", "eve", "owner")
WAITS: dict[str, Any] = {"name": "human_in_the_loop", "approve_tools": ["owls.feed"], "expires_seconds": TIME}
AGENTS = {"production": {"middleware": [WAITS]}, "careful": {"middleware": [{**WAITS, "quorum": 2}]}}


@pytest.fixture
def module() -> ModuleServer:
    module = ModuleServer("owls")
    module.add("feed", echo, effect="once")
    return module


@pytest.fixture(params=["unsigned", "signed"])
async def fleet(bed: Bed, module: ModuleServer, request: pytest.FixtureRequest) -> ToolFleet:
    """An agent's side; no worker yet."""
    bed.given["agents"] = AGENTS
    if request.param == "signed":
        bed.given["signing_key"] = SIGNING_KEY
    await bed.serve(module)
    return await bed.agent()


async def waiting(fleet: ToolFleet, caller: Caller = ADA) -> str:
    """Make a call that waits for people, and return its id."""
    result = await fleet.call(FEED, caller)
    assert (result.error_code, result.effect_state, result.retryable) == ("approval_required", "none", False)
    assert result.audit.call_id in str(result.error)
    return result.audit.call_id


async def some(fleet: ToolFleet) -> ListedApproval:
    """Return the call that waits for people, once one does."""
    found: list[ListedApproval] = []

    async def is_there() -> bool:
        found[:] = [each for each in await fleet.approvals.list() if each.state == "waiting" and each.place == ""]
        return bool(found)

    await until(is_there, "a call waits for an approval")
    return found[0]


async def refused(decision: Any) -> ApprovalNotTaken:
    """Return why a decision was not taken."""
    with pytest.raises(ApprovalNotTaken) as refusal:
        await decision
    return refusal.value


async def test_an_approved_call_runs_once(bed: Bed, fleet: ToolFleet, module: ModuleServer) -> None:
    """It waits without a worker's place, begins with the approval, and whoever decides later is told that it is too late."""
    await bed.worker()
    approval_id = await waiting(fleet)
    (listed,) = await fleet.approvals.list()
    assert (listed.approval_id, listed.request.arguments, listed.state) == (approval_id, {"n": 1}, "waiting")
    assert await waiting(fleet) == await waiting(await bed.agent()) == approval_id  # so are repeats with its key
    assert module.calls("feed") == []

    assert (await fleet.approvals.approve(approval_id, BOSS)).state == "approved"
    result = await fleet.call(FEED, ADA, waits_for_approval=TIME)  # a repeat with its key joins it
    assert (result.success, result.audit.call_id) == (True, approval_id)
    late = [await refused(decide(approval_id, OTHER)) for decide in (fleet.approvals.approve, fleet.approvals.reject)]
    assert [each.reason for each in late] == ["approved"] * 2
    assert len(module.calls("feed")) == 1


@pytest.mark.parametrize("decision", ["approve", "reject"])
async def test_an_agent_may_wait_for_the_decision(
    bed: Bed, fleet: ToolFleet, module: ModuleServer, decision: str
) -> None:
    """Its call has its own time from the approval on; a rejected one ends with the person's words."""
    running = asyncio.create_task(fleet.call(FEED, ADA, timeout=20, waits_for_approval=TIME))
    approval_id = (await some(fleet)).approval_id
    await asyncio.sleep(TIME / 2)
    await bed.worker()
    if decision == "approve":
        await fleet.approvals.approve(approval_id, BOSS)
        assert (await running).success
    else:
        await fleet.approvals.reject(approval_id, BOSS, reason="Not on a Sunday.")
        result = await running
        assert (result.error_code, result.effect_state) == ("approval_denied", "none")
        assert "Not on a Sunday." in str(result.error)
    assert len(module.calls("feed")) == (decision == "approve")


@pytest.mark.parametrize("late", [-5, 200], ids=["workers run", "all were down then"])
async def test_what_nobody_decides_is_denied(bed: Bed, fleet: ToolFleet, module: ModuleServer, late: float) -> None:
    """By whoever looks at it once its time is over; whoever decides later is too late."""
    before = clock.monotonic()
    running = asyncio.create_task(fleet.call(FEED, ADA, timeout=300, waits_for_approval=2 * TIME))
    approval_id = (await some(fleet)).approval_id
    await asyncio.sleep(TIME + late)
    assert not running.done()
    await bed.worker()
    await bed.beat()
    result = await running

    assert max(0, late) <= clock.monotonic() - before - TIME < max(0, late) + 10
    assert (result.error_code, result.effect_state) == ("approval_denied", "none")
    assert "(expired)" in str(result.error)
    assert (await refused(fleet.approvals.approve(approval_id, BOSS))).reason == "expired"
    assert module.requests == []
    assert [each.approval_id for each in await fleet.approvals.list(settled=True)] == [approval_id]
    assert await fleet.approvals.list() == []


async def test_a_changed_call_needs_a_new_approval(bed: Bed, fleet: ToolFleet, module: ModuleServer) -> None:
    """With edited arguments others' approvals count no more; what runs is what the last of them have seen."""
    await bed.worker()
    approval_id = await waiting(fleet, CAREFUL)
    seen = (await fleet.approvals.show(approval_id)).request.binding
    assert (await fleet.approvals.approve(approval_id, BOSS, seen=seen)).state == "waiting"
    assert (await refused(fleet.approvals.approve(approval_id, BOSS, seen=seen))).reason == "forbidden"
    edited = await fleet.approvals.approve(approval_id, OTHER, arguments={"n": 2}, seen=seen)
    steps = ["approved", "edited", "approved"]
    assert (edited.state, [line.what for line in edited.journal]) == ("waiting", steps)
    stale = await refused(fleet.approvals.approve(approval_id, BOSS, seen=seen))
    assert (stale.reason, '{"n": 2}' in str(stale.hint)) == ("changed", True)
    assert (await fleet.approvals.approve(approval_id, BOSS, seen=edited.request.binding)).state == "approved"
    assert (await fleet.call(FEED, CAREFUL, waits_for_approval=TIME)).success
    assert [call["arguments"] for call in module.calls("feed")] == [{"n": 2}]


async def test_only_approvers_decide_and_nobody_for_themselves(fleet: ToolFleet, module: ModuleServer) -> None:
    """A user without the right, and whoever asks, whatever they may do else."""
    approval_id, user = await waiting(fleet), Approver("key k", "ada", "user")
    for approver in (Approver("key k", "guest", "user"), Approver("command line", "ada", "owner")):
        assert (await refused(fleet.approvals.approve(approval_id, approver))).reason == "forbidden"
    assert (await fleet.approvals.reject(approval_id, user)).state == "rejected"
    assert (await refused(fleet.approvals.approve("nobody", BOSS))).reason == "unknown"
    assert module.requests == []


async def test_a_message_without_an_approval_runs_nothing(bed: Bed, fleet: ToolFleet, module: ModuleServer) -> None:
    """Neither of an agent that knows no profiles' rules, nor the waiting call's own, put into its queue by somebody else."""
    await bed.worker()
    found, calls = await fleet.approvals.show(await waiting(fleet)), FleetCalls(bed.settings)
    fields = {name: getattr(found.call, name) for name in ("arguments", "effect", "caller", "user_id")}
    ids = [calls.publish("owls.feed", **fields), calls.publish("owls.feed", **fields, approval=found.call.approval)]
    await until(lambda: {calls.status(each) for each in ids} == {"SUCCESS"}, "they have ended")
    ends = [(each["error_code"], each["effect_state"]) for each in calls.results(*ids)]
    calls.close()

    code = "approval_denied" if bed.settings.signing_key is None else "permission_denied"  # nobody has signed it
    assert ends == [(code, "none")] * 2
    assert module.requests == []
    assert (await fleet.approvals.show(found.approval_id)).state == "waiting"


async def test_a_cancelled_call_is_approved_in_vain(bed: Bed, fleet: ToolFleet, module: ModuleServer) -> None:
    """Whoever has asked may take it back while people decide; it is settled soon after, long before it would expire."""
    await bed.worker()
    await bed.beat()
    handle = await fleet.submit(FEED, ADA)
    assert await handle.status() == "waiting_approval"
    await handle.cancel()
    ended_at = clock.monotonic()
    assert (await handle.result()).error_code == "cancelled"
    assert (await refused(fleet.approvals.approve(handle.id, BOSS))).reason == "ended"

    async def is_settled() -> bool:
        return await fleet.approvals.count() == 0

    await until(is_settled, "it is settled")
    assert clock.monotonic() - ended_at < 60
    assert [each.is_withdrawn for each in await fleet.approvals.list(settled=True)] == [True]
    assert module.requests == []


@pytest.mark.parametrize(("decision", "state"), [("approve", "completed"), ("reject", "failed")])
async def test_a_job_waits_for_people(
    bed: Bed, fleet: ToolFleet, module: ModuleServer, decision: str, state: str
) -> None:
    """Its step begins once it is approved, and the job ends as the step does; a rejected one fails with the person's words."""
    await bed.worker()
    await bed.beat()
    job = await fleet.jobs.start(FEED, caller=ADA, conversation=Conversation(conversation_id="c-1"))
    waits = await some(fleet)
    assert waits.request.arguments == {"n": 1}
    bed.kill_members()
    await asyncio.sleep(TIME / 2)
    await bed.worker()
    await bed.beat()
    if decision == "approve":
        await fleet.approvals.approve(waits.approval_id, BOSS)
    else:
        await fleet.approvals.reject(waits.approval_id, BOSS, reason="Not now.")
    found: list[Job | None] = []

    async def is_over() -> bool:
        found[:] = [await fleet.jobs.get(job.job_id, ADA)]
        return found[0] is not None and found[0].state in ENDED

    await until(is_over, "the job is over")
    assert found[0] is not None
    assert found[0].state == state
    assert decision == "approve" or "Not now." in str(found[0].error)
    assert len(module.calls("feed")) == (decision == "approve")


async def test_a_replay_is_no_way_around_whose_call_it_is(bed: Bed, fleet: ToolFleet) -> None:
    """A replay waits as asked for by its own credential and by the one of the first call: neither of them approves it."""
    set_credential("key k1", "dave")
    approval_id = await waiting(fleet)
    found = await fleet.approvals.show(approval_id)
    call = found.call
    assert call.asked_by == found.request.asked_by == ("key k1", "user dave")

    lost = ToolResult.failed(call.tool_name, "outcome_unknown", "Nobody saw its end.", effect_state="unknown")
    letter = seal_of(bed.settings, purpose="dead letter").sign(dead_letter(call, lost, died_at=1.0))
    bed.ask("HSET", bed.settings.keys.dead, approval_id, letter)
    bed.ask("ZADD", bed.settings.keys.dead_order, 1, approval_id)
    await fleet.approvals.reject(approval_id, BOSS)
    set_credential("key k2", "eve")
    replay = asyncio.create_task(fleet.dead_letters.replay(approval_id))
    request = (await some(fleet)).request
    assert request.asked_by == ("key k2", "user eve", "key k1", "user dave")
    own = await refused(fleet.approvals.approve(request.approval_id, Approver("key k1", "dave", "admin", "k1")))
    assert "of their own" in str(own)
    await fleet.approvals.reject(request.approval_id, BOSS)
    assert (await replay).error_code == "approval_denied"
