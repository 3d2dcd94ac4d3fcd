"""A call that workers die with is not tried for ever: after the second one it is a dead letter."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from support.fleet import TestBed, own_bed
from support.module_server import ModuleServer, Request, serve
from support.up import COMMAND
from support.waiting import PATIENCE_SECONDS, wait_until
from support.worker_process import WorkerProcess
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_registry.contracts.dead_letters import DeadLetter

OWNER = Caller(user_id="ada", permission="owner", allowed_modules="*")
SAID = "two workers have died with the call in their hands"
QUEUE = "tools.owls"


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


@pytest.fixture
def start(bed: TestBed) -> Iterator[Callable[[], WorkerProcess]]:
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(bed.worker())


async def letter_of(fleet: ToolFleet) -> DeadLetter:
    (letter,) = await fleet.dead_letters.list()
    assert isinstance(letter, DeadLetter)
    return letter


def said(bed: TestBed, *words: str) -> str:
    """What `toolfleet dead` prints."""
    env = {**os.environ, "TOOLFLEET_REDIS_URL": bed.redis_url}
    return subprocess.run(
        [*COMMAND, "dead", *words], env=env, check=True, capture_output=True, text=True, timeout=3 * PATIENCE_SECONDS
    ).stdout


async def test_a_call_that_was_only_reserved_has_done_nothing(
    bed: TestBed, fleet: ToolFleet, owls: ModuleServer, start: Callable[[], WorkerProcess]
) -> None:
    """Two workers had its message when they died: a third one ends it, and does not try it."""
    handle = await fleet.submit(ToolCall(tool_name="owls.hang"), OWNER, timeout=60)
    async with Redis.from_url(bed.redis_url, decode_responses=True) as redis:
        item = str(await redis.rpop(QUEUE))
        held = '[{"redelivered":true,"died":"ada0",' + item[1:] + f',"","{QUEUE}"]'
        await redis.hset("unacked", "wb0b-0-0", held)
        await redis.zadd("unacked_index", {"wb0b-0-0": 1})
    start()
    result = await handle.result(2 * PATIENCE_SECONDS)
    letter = await letter_of(fleet)

    assert (result.error_code, result.effect_state, result.retryable) == ("internal", "none", False)
    assert owls.requests == []
    assert SAID in letter.reason
    assert SAID[:20] in said(bed, "list")
    assert SAID in said(bed, "show", letter.call_id)


@pytest.mark.slow
async def test_two_killed_workers_are_enough(
    fleet: ToolFleet, owls: ModuleServer, start: Callable[[], WorkerProcess]
) -> None:
    """Each is killed while the module has the call, whose repeat would do no harm: it is not sent a third time."""
    handle = await fleet.submit(ToolCall(tool_name="owls.hang"), OWNER, timeout=110)
    for number in (1, 2):
        worker = start()
        await wait_until(lambda: len(owls.requests) == number, "the module has it", seconds=30)  # noqa: B023 - awaited
        worker.send_signal(signal.SIGKILL)
    start()
    result = await handle.result(3 * PATIENCE_SECONDS)

    assert (result.error_code, result.effect_state, result.retryable) == ("outcome_unknown", "unknown", False)
    assert SAID in (await letter_of(fleet)).reason
    assert len(owls.requests) == 2


@pytest.mark.slow
async def test_workers_that_were_told_to_end_have_not_died_of_it(
    bed: TestBed, fleet: ToolFleet, owls: ModuleServer, start: Callable[[], WorkerProcess]
) -> None:
    """They are killed while they wait for the call to end, as an orchestrator does that has no more patience."""
    handle = await fleet.submit(ToolCall(tool_name="owls.hang"), OWNER, timeout=110)
    async with Redis.from_url(bed.redis_url, decode_responses=True) as redis:
        for number in (1, 2):
            worker = start()
            await wait_until(lambda: len(owls.requests) == number, "the module has it", seconds=30)  # noqa: B023 - awaited
            worker.send_signal(signal.SIGTERM)
            while len(await redis.keys("toolfleet:left:*")) < number:
                assert not handle._ending.done()
                await asyncio.sleep(0.05)
            worker.send_signal(signal.SIGKILL)
    start()
    result = await handle.result(3 * PATIENCE_SECONDS)

    assert result.error_code == "outcome_unknown", "its two attempts are used up"
    assert SAID not in (await letter_of(fleet)).reason


@pytest.mark.slow
async def test_paused_workers_have_not_died_of_it(
    fleet: ToolFleet, owls: ModuleServer, start: Callable[[], WorkerProcess]
) -> None:
    """Their leases run out as well, and others have the call."""
    handle = await fleet.submit(ToolCall(tool_name="owls.hang"), OWNER, timeout=110)
    stopped = list[WorkerProcess]()
    try:
        for number in (1, 2):
            worker = start()
            await wait_until(lambda: len(owls.requests) == number, "the module has it", seconds=30)  # noqa: B023 - awaited
            worker.send_signal(signal.SIGSTOP)
            stopped.append(worker)
        start()
        result = await handle.result(3 * PATIENCE_SECONDS)
    finally:
        for worker in stopped:
            worker.send_signal(signal.SIGCONT)

    assert result.error_code == "outcome_unknown"
    assert SAID not in (await letter_of(fleet)).reason
