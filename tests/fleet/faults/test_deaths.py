"""A call that workers die with is not tried for ever: real processes, really killed. `tests/virtual` has what else can become of it."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.fleet import TestBed, own_bed
from support.module_server import ModuleServer, Request, serve
from support.up import COMMAND
from support.waiting import PATIENCE_SECONDS, wait_until
from toolfleet import Caller, ToolCall, ToolFleet

SAID = "two workers have died with the call in their hands"


@pytest.fixture
def owls() -> Iterator[ModuleServer]:
    """Its calls hang."""

    async def hang(request: Request) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    module = ModuleServer("owls")
    module.add("hang", hang, effect="read", timeout_seconds=120)
    with serve(module):
        yield module


@pytest.fixture
def bed(owls: ModuleServer, tmp_path: Path) -> Iterator[TestBed]:
    """A fleet whose workers are taken for lost after two seconds."""
    with own_bed(owls, tmp_path, visibility_timeout=2) as bed:
        yield bed


def said(bed: TestBed, *words: str) -> str:
    """What `toolfleet dead-letters` prints."""
    env = {**os.environ, "TOOLFLEET_REDIS_URL": bed.redis_url}
    return subprocess.run([*COMMAND, "dead", *words], env=env, check=True, capture_output=True, text=True).stdout


async def test_two_killed_workers_are_enough(bed: TestBed, fleet: ToolFleet, owls: ModuleServer, owner: Caller) -> None:
    """Each is killed while the module has the call, whose repeat would do no harm: it is not sent a third time."""
    handle = await fleet.submit(ToolCall(tool_name="owls.hang"), owner, timeout=110)
    for number in (1, 2):
        with bed.worker() as worker:
            await wait_until(lambda: len(owls.requests) == number, "the module has it", seconds=2 * PATIENCE_SECONDS)  # noqa: B023 - awaited
            worker.send_signal(signal.SIGKILL)
    with bed.worker():
        result = await handle.result(3 * PATIENCE_SECONDS)

    assert (result.error_code, result.effect_state, result.retryable) == ("outcome_unknown", "unknown", False)
    assert len(owls.requests) == 2
    assert SAID[:20] in said(bed, "list")
    assert SAID in said(bed, "show", handle.id)
