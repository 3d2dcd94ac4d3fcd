"""What a module remembers, against what a call would else have to say: that nobody knows."""

import asyncio
from typing import Any

import pytest

from bed.fleet import Bed, until
from support.module_server import ModuleServer
from toolfleet import Caller, ToolCall, ToolResult

DONE = {"state": "done", "success": True, "result": "awake"}
NONE = {"state": "none"}
RUNNING = {"state": "running"}


async def after_a_lost_reply(bed: Bed, module: ModuleServer, caller: Caller) -> ToolResult:
    """The module hangs up on a call that may happen once."""
    await bed.serve(module)
    await bed.worker()
    return await (await bed.agent()).call(ToolCall(tool_name="owls.garble"), caller)


async def after_a_lost_worker(bed: Bed, module: ModuleServer, caller: Caller) -> ToolResult:
    """The worker dies while the module is at a call that may happen once, and another one finds it."""
    await bed.serve(module)
    doomed, fleet = await bed.worker(), await bed.agent()
    nap = ToolCall(tool_name="owls.nap_once", arguments={"seconds": 600})
    handle = await fleet.submit(nap, caller, timeout=500)
    await until(lambda: module.running, "the module has the call")
    doomed.kill()
    await bed.worker()
    return await handle.result()


@pytest.mark.parametrize(
    ("lose", "answer", "expected"),
    [
        (after_a_lost_reply, DONE, {"success": True, "result": "awake", "effect_state": "done"}),
        # It has not executed the call, and never will: no retry is made.
        (after_a_lost_reply, NONE, {"success": False, "effect_state": "none", "retryable": True}),
        (after_a_lost_reply, RUNNING, {"success": False, "effect_state": "unknown", "retryable": False}),
        (after_a_lost_reply, {"state": "unknown"}, {"effect_state": "unknown", "retryable": False}),
        (after_a_lost_reply, {"state": "perhaps"}, {"effect_state": "unknown", "retryable": False}),
        (after_a_lost_worker, DONE, {"success": True, "error_code": None, "effect_state": "done"}),
        (after_a_lost_worker, NONE, {"success": False, "error_code": "module_error", "effect_state": "none"}),
        (after_a_lost_worker, RUNNING, {"success": False, "error_code": "outcome_unknown", "effect_state": "unknown"}),
    ],
)
async def test_a_lost_calls_module_is_asked_for_it(
    bed: Bed, owls: ModuleServer, owner: Caller, lose: Any, answer: dict[str, Any], expected: dict[str, Any]
) -> None:
    """It was executed once, and ends as its module says; as unknown only where the module does not know either."""
    owls.memory = lambda _: answer
    result: ToolResult = await lose(bed, owls, owner)

    assert {name: getattr(result, name) for name in expected} == expected
    assert len(owls.requests) == 1
    if result.retryable:
        assert "may be repeated" in str(result.hint)


async def test_a_limit_holds_where_nobody_answers(bed: Bed, owls: ModuleServer, owner: Caller) -> None:
    """A wholly silent module is asked for a moment only: its call ends with its limit, not five seconds later."""
    owls.memory = lambda _: asyncio.sleep(3600, NONE)
    await bed.serve(owls)
    await bed.worker()
    fleet = await bed.agent()
    call = ToolCall(tool_name="owls.brief_nap", arguments={"seconds": 3600})
    result = await fleet.call(call, owner, timeout=60)

    assert (result.error, result.effect_state) == ("Tool execution timed out (0.3s).", "unknown")
    assert 300 <= (result.audit.duration_ms or 0) < 4000
