"""One fleet on several event loops, in threads, and in forked processes."""

import asyncio
import gc
import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from support.fleet import TestBed
from support.module_server import ModuleServer, holding
from support.programs import forking
from support.waiting import PATIENCE_SECONDS, wait_until
from support.worker_process import TESTS, WorkerProcess
from toolfleet import Caller, ToolCall, ToolFleet, ToolResult
from toolfleet_cli.local.environment import environment_of
from toolfleet_cli.local.redis_server import held_port, redis_server
from toolfleet_registry.settings import Settings
from toolfleet_tasks import aio
from toolfleet_tasks.client.session import Session, Sessions


def echo(number: int) -> ToolCall:
    return ToolCall(tool_name="owls.echo", arguments={"number": number})


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


async def test_two_loops_in_two_threads_use_one_fleet_at_once(fleet: ToolFleet, owner: Caller) -> None:
    """Each loop has its own connection, opened with its first call, and gets its own results."""
    found: dict[int, list[ToolResult]] = {}

    async def agent(thread: int) -> None:
        found[thread] = await fleet.call_many([echo(1000 * thread + number) for number in range(100)], owner)

    threads = [in_thread(partial(asyncio.run, agent(number))) for number in (1, 2)]
    await agent(0)
    for thread in threads:
        await asyncio.to_thread(thread.join, 30)

    for agents, results in found.items():
        assert [result.result for result in results] == [{"number": 1000 * agents + number} for number in range(100)]
    assert sorted(found) == [0, 1, 2]


async def test_a_loops_first_calls_open_one_session(fleet: ToolFleet, owner: Caller) -> None:
    """Many at once wait for the same connection."""

    async def agent() -> int:
        await asyncio.gather(*(fleet.call(echo(number), owner) for number in range(20)))
        assert fleet._sessions.here() is fleet._sessions._open[asyncio.get_running_loop()]
        return len(fleet._sessions._open)

    assert await asyncio.to_thread(lambda: asyncio.run(agent())) == 2


async def test_a_loop_that_has_ended_is_forgotten(fleet: ToolFleet, owner: Caller) -> None:
    """A program that makes a loop for each call does not collect sessions."""
    sessions: list[weakref.ref[Session]] = []

    async def agent() -> ToolResult:
        result = await fleet.call(echo(0), owner)
        sessions.append(weakref.ref(fleet._sessions._open[asyncio.get_running_loop()]))
        return result

    left_behind = len(aio._LEFT_BEHIND)
    for number in range(5):
        result = await asyncio.to_thread(lambda: asyncio.run(agent()))
        assert result.success, number
    gc.collect()

    assert len(fleet._sessions._open) <= 2  # ours, and the last one's, which the next one sweeps up
    assert len(aio._LEFT_BEHIND) == left_behind
    assert [session() is None for session in sessions] == [True] * 4 + [False]


async def test_leaving_ends_the_calls_of_other_loops(
    bed: TestBed, worker: WorkerProcess, owner: Caller, owls: ModuleServer
) -> None:
    """Who waits on another loop gets a result; his loop goes on."""
    owls.forget()
    found: list[ToolResult] = []
    nap = ToolCall(tool_name="owls.nap_once", arguments={"seconds": 0})
    fleet = await ToolFleet(settings=bed.settings).__aenter__()

    async def agent() -> None:
        found.append(await fleet.call(nap, owner))

    with holding(owls, "nap_once"):
        thread = in_thread(lambda: asyncio.run(agent()))
        await wait_until(lambda: owls.running, "the module has the call")
        await fleet.__aexit__()
        await asyncio.to_thread(thread.join, 30)

    assert [result.error_code for result in found] == ["outcome_unknown"]
    with pytest.raises(RuntimeError, match="not open"):
        await fleet.tools(owner)


async def test_a_loop_that_was_closed_in_the_middle_is_left_alone(
    bed: TestBed, worker: WorkerProcess, owner: Caller
) -> None:
    """Leaving the fleet cuts its connection, and neither waits for it nor warns."""
    async with ToolFleet(settings=bed.settings) as fleet:
        loop = asyncio.new_event_loop()
        await asyncio.to_thread(loop.run_until_complete, fleet.call(echo(1), owner))
        session = fleet._sessions._open[loop]
        (number,) = [
            connection._writer.get_extra_info("socket").fileno()
            for connection in session._sockets._connections
            if connection._writer is not None
        ]
        loop.close()
    gc.collect()

    assert Path(f"/proc/self/fd/{number}").readlink() == Path(os.devnull)


async def test_a_fleet_may_be_entered_again(bed: TestBed, worker: WorkerProcess, owner: Caller) -> None:
    """It is closed when the last one leaves, and can be opened once more."""
    fleet = ToolFleet(settings=bed.settings)
    async with fleet:
        async with fleet:
            assert (await fleet.call(echo(1), owner)).success
        assert (await fleet.call(echo(2), owner)).success
    async with fleet:
        assert (await fleet.call(echo(3), owner)).success


async def test_a_loops_first_call_ends_by_its_deadline(owls: ModuleServer, owner: Caller, tmp_path: Path) -> None:
    """Where Redis has gone, the call that would open a connection is a result like any other."""
    with held_port() as port:
        with redis_server(tmp_path / "redis", port=port) as url:
            fleet = await ToolFleet(settings=TestBed(url, (owls,), tmp_path).settings).__aenter__()
        result = await asyncio.to_thread(lambda: asyncio.run(fleet.call(echo(1), owner, timeout=5)))
        await fleet.__aexit__()

    assert (result.error_code, result.effect_state, result.retryable) == ("fleet_unavailable", "none", True)


async def test_entering_that_fails_leaves_it_closed() -> None:
    """A fleet that could not be opened is not open."""
    with held_port() as port:
        sessions = Sessions(Settings(redis_url=f"redis://127.0.0.1:{port}/0"))
        with pytest.raises(Exception, match="does not answer"):
            await sessions.enter()
        with pytest.raises(RuntimeError, match="not open"):
            sessions.here()


def test_parent_and_forked_children_go_on(bed: TestBed, worker: WorkerProcess, tmp_path: Path) -> None:
    """Every call of each ends with its own result, the parent keeps its connection, and nobody complains.

    Whether it forks before the fleet is entered (`preload`), inside a coroutine with calls in flight (`async`), where the child
    closes what it has copies of (`cleanup`), or beside the thread that has the loop and the child ends with all of its clean-up
    (`sync`).
    """
    environment = {**os.environ, **environment_of(bed.settings), "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-W", "error", str(forking.__file__)]
    ended = subprocess.run(
        command,
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=10 * PATIENCE_SECONDS,
        check=False,
    )
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith('{"way"')]

    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
    assert [said["way"] for said in lines] == [*forking.WAYS]
    for said in lines:
        assert said["children"] == [forking.CALLS] * forking.CHILDREN, said
        assert said["during"] == forking.CALLS, said
        assert said.get("naps") == (None if said["way"] == "preload" else forking.CALLS), said
        assert said.get("after") in {None, forking.CALLS}, said
    assert "redis_line_away" not in ended.stdout
