"""What a module remembers, against what a call would else have to say: that nobody knows."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.fleet import TestBed
from support.module_server import ModuleServer, serve
from support.owls import make_module
from support.waiting import wait_until
from toolfleet import Caller, ToolCall, ToolFleet, ToolResult

LONG_NAP = ToolCall(tool_name="owls.nap_once", arguments={"seconds": 60})
DONE = {"state": "done", "success": True, "result": "awake"}
NONE = {"state": "none"}
RUNNING = {"state": "running"}


@pytest.fixture(autouse=True)
def _in_fast_mode(fast_mode: None) -> None:
    """Only there is a lost worker's call back within seconds."""


@pytest.fixture
def module() -> Iterator[ModuleServer]:
    with serve(make_module()) as module:
        yield module


@pytest.fixture
def bed(redis_url: str, module: ModuleServer, tmp_path: Path) -> TestBed:
    return TestBed(redis_url, (module,), tmp_path, {"visibility_timeout": 2})


def remembers(module: ModuleServer, answer: dict[str, Any]) -> None:
    module.memory = lambda _: answer


async def after_a_lost_reply(bed: TestBed, caller: Caller) -> ToolResult:
    """The module hangs up on a call that may happen once."""
    with bed.worker():
        async with ToolFleet(settings=bed.settings) as fleet:
            return await fleet.call(ToolCall(tool_name="owls.garble"), caller, timeout=20)


async def after_a_lost_worker(bed: TestBed, module: ModuleServer, caller: Caller) -> ToolResult:
    """The worker dies while the module is at a call that may happen once, and another one finds it."""
    async with ToolFleet(settings=bed.settings) as fleet:
        with bed.worker() as doomed:
            handle = await fleet.submit(LONG_NAP, caller, timeout=60)
            await wait_until(lambda: module.running, "the module has the call")
            doomed.send_signal(signal.SIGKILL)
        with bed.worker():
            return await handle.result(30)


async def test_a_lost_reply_is_fetched(bed: TestBed, module: ModuleServer, owner: Caller) -> None:
    """The call succeeds with what the module remembers of it, and was executed once."""
    remembers(module, DONE)
    result = await after_a_lost_reply(bed, owner)

    assert (result.success, result.result, result.effect_state) == (True, "awake", "done")
    assert len(module.requests) == 1


async def test_a_call_that_was_not_executed_may_be_repeated(bed: TestBed, module: ModuleServer, owner: Caller) -> None:
    """The module says that it has not executed it, and never will: then nothing has happened, and no retry is made."""
    remembers(module, NONE)
    result = await after_a_lost_reply(bed, owner)

    assert (result.effect_state, result.retryable) == ("none", True)
    assert result.hint is not None
    assert "may be repeated" in result.hint
    assert len(module.requests) == 1


@pytest.mark.parametrize("answer", [RUNNING, {"state": "unknown"}, {"state": "perhaps"}])
async def test_what_does_not_help_leaves_it_unknown(
    bed: TestBed, module: ModuleServer, owner: Caller, answer: dict[str, Any]
) -> None:
    """The result says so, and does not invite to a repeat."""
    remembers(module, answer)
    result = await after_a_lost_reply(bed, owner)

    assert (result.effect_state, result.retryable) == ("unknown", False)


@pytest.mark.parametrize(
    ("answer", "success", "effect"),
    [
        (DONE, True, "done"),
        (NONE, False, "none"),
        (RUNNING, False, "unknown"),
    ],
)
async def test_a_lost_workers_call_is_asked_for(
    bed: TestBed, module: ModuleServer, owner: Caller, answer: dict[str, Any], success: bool, effect: str
) -> None:
    """It is not begun again; it ends as its module says, and as unknown only where the module does not know either."""
    remembers(module, answer)
    result = await after_a_lost_worker(bed, module, owner)

    assert (result.success, result.effect_state) == (success, effect)
    assert result.error_code == {"done": None, "none": "module_error", "unknown": "outcome_unknown"}[effect]
    assert len(module.requests) == 1


async def test_a_limit_holds_where_nobody_answers(bed: TestBed, module: ModuleServer, owner: Caller) -> None:
    """A wholly silent module is asked for a moment only: its call ends with its limit, not five seconds later."""
    module.memory = lambda _: asyncio.sleep(3600, NONE)
    with bed.worker():
        async with ToolFleet(settings=bed.settings) as fleet:
            call = ToolCall(tool_name="owls.brief_nap", arguments={"seconds": 3600})
            result = await fleet.call(call, owner, timeout=60)

    assert (result.error, result.effect_state) == ("Tool execution timed out (0.3s).", "unknown")
    assert result.audit is not None
    assert result.audit.duration_ms is not None
    assert 300 <= result.audit.duration_ms < 4000
