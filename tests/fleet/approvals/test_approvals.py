"""A call that people have to approve, with real processes; `tests/virtual/approvals` has the rest."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fleet import SIGNING_KEY, TestBed, own_bed
from support.module_server import ModuleServer, serve
from support.owls import echo
from support.waiting import PATIENCE_SECONDS
from toolfleet import ApprovalNotTaken, Approver, Caller, ToolCall, ToolFleet

ADA = Caller(user_id="ada", permission="owner", allowed_modules="*", agent="production")
FEED = ToolCall(tool_name="owls.feed", arguments={"n": 1}, idempotency_key="k1")
BOSS = Approver("command line", "bob", "admin")
WAITS = {"name": "human_in_the_loop", "approve_tools": ["owls.feed"], "expires_seconds": 600}


@pytest.fixture
def module() -> Iterator[ModuleServer]:
    module = ModuleServer("owls")
    module.add("feed", echo, effect="once")
    with serve(module) as served:
        yield served


@pytest.fixture(params=["unsigned", "signed"])
def bed(module: ModuleServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TestBed]:
    more: dict[str, object] = {"signing_key": SIGNING_KEY} if request.param == "signed" else {}
    with own_bed(module, tmp_path, agents={"production": {"middleware": [WAITS]}}, **more) as bed:
        yield bed


async def test_an_approved_call_runs_once(bed: TestBed, module: ModuleServer) -> None:
    """It waits without a worker's place, begins with the approval, and whoever decides later is told that it is too late."""
    async with ToolFleet(settings=bed.settings) as fleet:
        with bed.worker():
            waits = await fleet.call(FEED, ADA)
            approval_id = waits.audit.call_id
            assert (waits.error_code, module.calls("feed")) == ("approval_required", [])
            assert (await fleet.approvals.approve(approval_id, BOSS)).state == "approved"
            result = await fleet.call(FEED, ADA, waits_for_approval=PATIENCE_SECONDS)  # a repeat with its key joins it
            with pytest.raises(ApprovalNotTaken):
                await fleet.approvals.reject(approval_id, BOSS)

    assert (result.success, result.audit.call_id) == (True, approval_id)
    assert len(module.calls("feed")) == 1
