"""Tools that ask for an approval themselves, or by settings: without a profile, and whatever has published the call."""

import pytest

from bed.fleet import Bed, until
from support.fleet import SIGNING_KEY
from support.fleet_calls import FleetCalls
from support.module_server import ModuleServer
from support.owls import echo
from toolfleet import ApprovalNotTaken, Approver, Caller, Conversation, ToolCall, ToolFleet
from toolfleet_registry.settings import ModuleSpec
from toolfleet_tasks.messages import json_text

ADA = Caller(user_id="ada", permission="owner", allowed_modules="*")
ADMIN = Approver("command line", "bob", "admin")
CAROL = Approver("command line", "carol", "user")
LINES = {"owls": ModuleSpec(approval=("feed", "move"))}
DECIDES = {"pay": (ADMIN,), "move": (CAROL, ADMIN), "feed": (ADMIN,)}
"""Who has to approve each: `move` asks for Carol, and settings for an admin beside."""


@pytest.fixture
def module() -> ModuleServer:
    module = ModuleServer("owls")
    parameters = [{"name": "n", "type": "integer", "description": ""}]
    module.add("pay", echo, effect="once", approval=True, parameters=parameters)
    module.add("move", echo, effect="once", approval={"users": ["carol"]}, parameters=parameters)
    module.add("feed", echo, parameters=parameters)
    module.add("count", echo, effect="read", parameters=parameters)
    return module


@pytest.fixture(params=["unsigned", "signed"])
async def fleet(bed: Bed, module: ModuleServer, request: pytest.FixtureRequest) -> ToolFleet:
    """A fleet whose workers have the settings; agents have none of them."""
    if request.param == "signed":
        bed.given["signing_key"] = SIGNING_KEY
    await bed.serve(module)
    await bed.worker(module=LINES)
    await bed.beat()
    fleet = await bed.agent()
    await fleet.modules.refresh()
    return fleet


async def test_each_waits_for_who_may_approve_it(fleet: ToolFleet, module: ModuleServer) -> None:
    """It is not run before, and once then, with the arguments that were approved; a tool beside it is not asked about."""
    assert (await fleet.call(ToolCall(tool_name="owls.count", arguments={"n": 1}), ADA)).success
    for name, approvers in DECIDES.items():
        call = ToolCall(tool_name=f"owls.{name}", arguments={"n": 1}, idempotency_key=name)
        result = await fleet.call(call, ADA)
        assert (result.error_code, result.effect_state) == ("approval_required", "none")
        approval_id = result.audit.call_id
        for nobody in (Approver("key k", "guest", "user"), Approver("command line", "ada", "owner")):
            with pytest.raises(ApprovalNotTaken):
                await fleet.approvals.approve(approval_id, nobody)
        seen = (await fleet.approvals.show(approval_id)).request.binding
        for approver in approvers:
            assert module.calls(name) == []
            edits = {"n": 2} if approver is approvers[0] else None
            found = await fleet.approvals.approve(approval_id, approver, arguments=edits, seen=seen)
            seen = found.request.binding
        for _ in range(2):  # a repeat brings the one result
            ended = await fleet.call(call, ADA, waits_for_approval=20)
            assert (ended.success, ended.audit.call_id) == (True, approval_id), ended
        assert [each["arguments"] for each in module.calls(name)] == [{"n": 2}]
        refused = await fleet.call(call.model_copy(update={"idempotency_key": f"{name}-2"}), ADA)
        waits = await fleet.approvals.show(refused.audit.call_id)
        await fleet.approvals.reject(waits.approval_id, approvers[0], reason="No.", seen=waits.request.binding)
        assert len(module.calls(name)) == 1


async def test_whatever_publishes_without_an_approval_runs_nothing(
    bed: Bed, fleet: ToolFleet, module: ModuleServer
) -> None:
    """Neither an older agent's message, nor one of a plain Celery application, nor an approved call's, sent again."""
    call = ToolCall(tool_name="owls.pay", arguments={"n": 3}, idempotency_key="published")
    waits = await fleet.call(call, ADA)
    found = await fleet.approvals.show(waits.audit.call_id)
    assert json_text.version_of(found.call) == 4  # older workers leave it to these
    calls = FleetCalls(bed.settings)
    fields = {name: getattr(found.call, name) for name in ("arguments", "effect", "caller", "user_id")}
    ids = [calls.publish(f"owls.{name}", **fields) for name in DECIDES]
    ids.append(calls.publish("owls.pay", **fields, approval=found.call.approval))
    await until(lambda: {calls.status(each) for each in ids} == {"SUCCESS"}, "they have ended")
    ends = calls.results(*ids)
    code = "approval_denied" if bed.settings.signing_key is None else "permission_denied"  # nobody has signed it
    assert {(end["error_code"], end["effect_state"]) for end in ends} == {(code, "none")}, ends
    assert [name for name in DECIDES if module.calls(name)] == []

    await fleet.approvals.approve(waits.audit.call_id, ADMIN, seen=found.request.binding)
    assert (await fleet.call(call, ADA, waits_for_approval=20)).success
    again = calls.publish("owls.pay", **fields, approval=found.call.approval)
    await until(lambda: calls.status(again) == "SUCCESS", "it has ended")
    calls.close()
    assert len(module.calls("pay")) == 1


async def test_an_agent_that_knows_nothing_of_it_runs_nothing(
    fleet: ToolFleet, module: ModuleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker refuses its calls, signed or not: of the tool's own word and of the settings'."""
    monkeypatch.setattr("toolfleet_tasks.calls.prepare.with_approval", lambda call, *_: call)  # as before
    for name in DECIDES:
        result = await fleet.call(ToolCall(tool_name=f"owls.{name}", arguments={"n": 6}), ADA)
        assert (result.error_code, result.effect_state) == ("approval_denied", "none"), result
        assert "a person has to approve it first" in str(result.error)
    assert (await fleet.call(ToolCall(tool_name="owls.count", arguments={"n": 6}), ADA)).success
    assert [name for name in DECIDES if module.calls(name)] == []


async def test_a_job_of_such_a_tool_waits(fleet: ToolFleet, module: ModuleServer) -> None:
    """Its step begins when it is approved."""
    call, conversation = ToolCall(tool_name="owls.feed", arguments={"n": 4}), Conversation(conversation_id="c-1")
    job = await fleet.jobs.start(call, caller=ADA, conversation=conversation)
    found = list[str]()

    async def waits() -> bool:
        found[:] = [
            each.approval_id
            for each in await fleet.approvals.list()
            if each.state == "waiting" and each.request.arguments == {"n": 4}
        ]
        return bool(found)

    await until(waits, "the job's step waits")
    assert module.calls("feed") == []
    await fleet.approvals.approve(found[0], ADMIN)

    async def is_over() -> bool:
        read = await fleet.jobs.get(job.job_id, ADA)
        return read is not None and read.state == "completed"

    await until(is_over, "the job is over")
    assert len(module.calls("feed")) == 1
