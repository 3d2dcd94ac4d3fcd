"""What becomes of calls that wait in RabbitMQ: they expire, are taken back, or get another worker."""

import asyncio
import signal
from dataclasses import replace

import pytest

from support.fleet import TestBed, program
from support.module_server import ModuleServer
from support.processes import next_line, python_program
from support.waiting import PATIENCE_SECONDS, wait_until
from support.worker_process import READY
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_cli.local.environment import environment_of, worker_command
from toolfleet_tasks.operations.fleet_status import read_status

# Makes a call that takes long, and is gone before anybody can tell it how that ended.
AGENT = """
import asyncio, os
from toolfleet import Caller, ToolCall, ToolFleet

async def agent():
    call = ToolCall(tool_name="owls.nap", arguments={"seconds": 30})
    async with ToolFleet() as fleet:
        handle = await fleet.submit(call, Caller(permission="owner", allowed_modules="*"), timeout=6)
        print(handle.id, flush=True)
        os._exit(0)

asyncio.run(agent())
"""

ECHO = ToolCall(tool_name="owls.echo")
NAP = ToolCall(tool_name="owls.nap", arguments={"seconds": 1.5})


async def test_an_expired_call_is_never_begun(
    bed: TestBed, fleet: ToolFleet, owner: Caller, owls: ModuleServer
) -> None:
    """A call that nobody takes ends at its deadline; a worker that comes later runs what has not expired, and only that."""
    expired = await fleet.call(ECHO, owner, timeout=0.5)
    waiting = await fleet.submit(ECHO, owner, timeout=60)
    assert await waiting.status() == "queued"
    status = await read_status(bed.settings)
    with bed.worker():
        assert (await waiting.result()).success

    # How old the oldest is, RabbitMQ does not say; the first call's message may be there still.
    (queue,) = (each for each in status.queues if each.queue == "tools.owls")
    assert (queue.oldest_seconds, status.held) == (None, None)
    assert queue.waiting in {1, 2}
    assert (expired.error_code, expired.effect_state, expired.retryable) == ("expired", "none", True)
    assert len(owls.requests) == 1


async def test_a_queued_call_can_be_cancelled(
    bed: TestBed, fleet: ToolFleet, owner: Caller, owls: ModuleServer
) -> None:
    """A call that waits for a slot never begins once it is taken back."""
    with bed.worker(worker_concurrency=1):
        running = await fleet.submit(NAP, owner)
        await wait_until(lambda: owls.running, "the only slot is taken")
        queued = await fleet.submit(ECHO, owner)
        await queued.cancel()

        assert (await running.result(PATIENCE_SECONDS)).success
        assert (await queued.result(PATIENCE_SECONDS)).error_code == "cancelled"
    assert owls.calls("echo") == []


@pytest.mark.slow
async def test_a_killed_workers_calls_go_to_another(
    bed: TestBed, fleet: ToolFleet, owner: Caller, owls: ModuleServer
) -> None:
    """RabbitMQ sees the connection end and delivers at once what the worker had: what ran, and what it had fetched."""
    bed = replace(bed, more={**bed.more, "visibility_timeout": 3})  # what it had begun is its own for so long
    with bed.worker(worker_concurrency=2) as doomed:
        handles = [await fleet.submit(NAP, owner, timeout=60) for _ in range(5)]
        await wait_until(lambda: owls.running == 2, "the worker is busy")
        with program(bed, [*worker_command("all"), "--hostname=second@%h"], "second", ready=READY):
            doomed.send_signal(signal.SIGKILL)
            results = [await handle.result(2 * PATIENCE_SECONDS) for handle in handles]

    assert [result.success for result in results] == [True] * 5
    assert len(owls.calls("nap")) <= 7
    assert len({result.audit.worker for result in results if result.audit}) <= 2


@pytest.mark.slow
async def test_a_call_has_an_end_whose_worker_dies_just_before_its_deadline(
    bed: TestBed, fleet: ToolFleet, owls: ModuleServer
) -> None:
    """And its agent with it: RabbitMQ keeps the message that comes back too late, and whoever gets it ends the call."""
    with bed.worker() as doomed:
        with python_program(AGENT, env=environment_of(bed.settings)) as agent:
            call_id = (await asyncio.to_thread(next_line, agent)).strip()
            await wait_until(lambda: owls.running, "it runs")
        doomed.send_signal(signal.SIGKILL)
    assert await fleet.canvas.result_of(call_id, timeout=6) is None
    with bed.worker():
        result = await fleet.canvas.result_of(call_id, timeout=20)

    assert result is not None
    assert (result.error_code, result.effect_state) == ("timed_out", "unknown")
