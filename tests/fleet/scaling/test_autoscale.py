"""`toolfleet autoscale`: real workers come with the calls, and go when these have ended."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from support.fleet import TestBed
from support.module_server import ModuleServer, holding
from support.processes import is_gone
from support.waiting import PATIENCE_SECONDS, wait_until, wait_until_answered
from support.worker_process import WorkerProcess
from support.workers.autoscaling import autoscaling
from toolfleet import ToolFleet
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.contracts import Caller, ToolCall, ToolResult
from toolfleet_tasks.presence.consumers import workers_by_queue

ECHO = ToolCall(tool_name="owls.echo", arguments={"word": "hoot"})


@pytest.fixture
def scaled(owls: ModuleServer, tmp_path: Path) -> Iterator[TestBed]:
    """A fleet without workers, whose agents refuse calls at once that nobody takes."""
    (tmp_path / "logs").mkdir()
    with redis_server(tmp_path / "redis") as url:
        yield TestBed(url, (owls,), tmp_path / "logs", {"worker_concurrency": 2, "unserved_seconds": 0})


def nap(seconds: float) -> ToolCall:
    return ToolCall(tool_name="owls.nap", arguments={"seconds": seconds})


async def workers_in(bed: TestBed) -> int:
    return (await workers_by_queue(bed.settings))["tools.owls"]


async def ended(call: "asyncio.Task[ToolResult]") -> ToolResult:
    return await asyncio.wait_for(call, 2 * PATIENCE_SECONDS)


async def test_a_lane_grows_from_none_and_shrinks_again(scaled: TestBed, owls: ModuleServer, owner: Caller) -> None:
    """Calls wait for the first worker, more calls get a second one, and in the end there is none; each call has succeeded."""
    async with ToolFleet(settings=scaled.settings) as fleet:
        assert (await fleet.call(ECHO, owner)).error_code == "busy"
        with autoscaling(scaled, "--min", "0", "--max", "2", "--calm", "1") as process:

            async def is_answered() -> bool:
                return (await fleet.call(ECHO, owner)).success

            await wait_until_answered(
                is_answered, "calls wait, now that somebody starts workers for them", seconds=2 * PATIENCE_SECONDS
            )
            # However late a worker notes on a busy machine that it is there: here, such calls are refused else.
            with holding(owls, "nap"):
                naps = [asyncio.create_task(fleet.call(nap(0), owner, waits_for_worker=True)) for _ in range(4)]
                await wait_until(
                    lambda: "to 2 workers" in process.said(),
                    "four calls want two workers",
                    seconds=2 * PATIENCE_SECONDS,
                )
            assert [(await ended(each)).success for each in naps] == [True] * 4
            await wait_until(
                lambda: "to 0 workers, for 0 running" in process.said(), "none is wanted", seconds=2 * PATIENCE_SECONDS
            )

            async def is_empty() -> bool:
                return await workers_in(scaled) == 0

            await wait_until_answered(is_empty, "they have ended", seconds=2 * PATIENCE_SECONDS)
        assert "to 3 workers" not in process.said()


@pytest.mark.slow
async def test_at_its_end_workers_finish_their_calls(scaled: TestBed, owls: ModuleServer, owner: Caller) -> None:
    """SIGTERM ends the command, once they have."""
    async with ToolFleet(settings=scaled.settings) as fleet:
        with autoscaling(scaled, "--min", "2", "--max", "2") as process:
            call = asyncio.create_task(fleet.call(nap(3), owner, waits_for_worker=True))
            await wait_until(lambda: owls.running == 1, "it runs", seconds=2 * PATIENCE_SECONDS)
            process.send_signal(signal.SIGTERM)
            assert (await ended(call)).success
            assert await asyncio.to_thread(process.wait, seconds=2 * PATIENCE_SECONDS) == 0
        assert await workers_in(scaled) == 0


@pytest.mark.slow
async def test_a_killed_worker_is_replaced_and_a_killed_command_loses_no_call(
    scaled: TestBed, owls: ModuleServer, owner: Caller
) -> None:
    """A worker that dies is started anew; those of a command that is killed finish their calls and end."""
    async with ToolFleet(settings=scaled.settings) as fleet:
        with autoscaling(scaled, "--min", "1", "--max", "1") as process:
            assert (await ended(asyncio.create_task(fleet.call(ECHO, owner, waits_for_worker=True)))).success
            (worker,) = workers_of(process)
            worker.kill()
            call = asyncio.create_task(fleet.call(nap(3), owner, waits_for_worker=True))
            await wait_until(lambda: owls.running == 1, "another one runs it", seconds=2 * PATIENCE_SECONDS)
            (worker,) = workers_of(process)
            process.send_signal(signal.SIGKILL)
            assert (await ended(call)).success
            await wait_until(lambda: is_gone(worker.pid), "the worker ends", seconds=2 * PATIENCE_SECONDS)


def workers_of(process: WorkerProcess) -> list[psutil.Process]:
    """The live worker processes that the command has started."""
    children = psutil.Process(process.process.pid).children()
    return [child for child in children if not is_gone(child.pid) and "toolfleet_workers" in child.cmdline()]
