"""RabbitMQ is ended, restarted or frozen: each call ends in one clear result, and nothing hangs."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from support.fleet import TestBed, program
from support.module_server import ModuleServer
from support.pace import note_gaps
from support.processes import next_line, python_program
from support.servers.rabbitmq import RabbitMq
from support.waiting import PATIENCE_SECONDS, wait_until
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_cli.local.environment import beat_command, environment_of
from toolfleet_tasks.app import make_app
from toolfleet_tasks.queues import CONTROL

pytestmark = pytest.mark.slow

ECHO = ToolCall(tool_name="owls.echo")
NAP = ToolCall(tool_name="owls.nap", arguments={"seconds": 2})

AGENT = """
import asyncio, os, signal, sys
from toolfleet import Caller, ToolCall, ToolFleet

async def agent():
    caller = Caller(permission="owner", allowed_modules="*")
    call = ToolCall(tool_name="owls.echo")
    async with ToolFleet() as fleet:
        await asyncio.gather(*(fleet.submit(call, caller, timeout=1) for _ in range(8)))
        os.kill(int(sys.argv[1]), signal.SIGSTOP)
        results = await fleet.call_many([call] * 8, caller, timeout=1)
    print(*{str(result.error_code) for result in results}, flush=True)

asyncio.run(agent())
"""


async def test_a_restart_loses_no_call(
    bed: TestBed, fleet: ToolFleet, owner: Caller, owls: ModuleServer, broker: RabbitMq
) -> None:
    """Calls that wait and one that runs outlive a restart; those that have no time are surely not sent, the others later."""
    with bed.worker(worker_concurrency=1) as worker:
        handles = [await fleet.submit(NAP, owner, timeout=60), *[await fleet.submit(ECHO, owner) for _ in range(8)]]
        await wait_until(lambda: owls.running, "the only slot is taken")
        async with broker.away():
            refused = await fleet.call_many([ECHO] * 20, owner, timeout=1)
            patient = asyncio.create_task(fleet.call_many([ECHO] * 20, owner))
            await asyncio.sleep(0)
        after = await patient
        results = [await handle.result(3 * PATIENCE_SECONDS) for handle in handles]

    assert {(result.error_code, result.effect_state, result.retryable) for result in refused} == {
        ("fleet_unavailable", "none", True)
    }
    assert any("nobody listens there" in str(result.error) for result in refused)
    assert [result.success for result in [*results, *after]] == [True] * 29, worker.said()
    assert len(owls.calls("echo")) >= 28


async def test_repeats_end_with_the_call_that_they_joined(
    bed: TestBed, fleet: ToolFleet, owner: Caller, owls: ModuleServer, broker: RabbitMq
) -> None:
    """Also where that one was not published at first: nobody is told that nothing was executed while it is tried again."""
    call = ToolCall(tool_name="owls.echo", idempotency_key="joined while RabbitMQ was away")
    with bed.worker():
        async with broker.away():
            session = await fleet._sessions.opened()
            session._dispatcher._back.patience_seconds = 3 * PATIENCE_SECONDS  # RabbitMQ may take its time to start
            repeats = [asyncio.create_task(fleet.call(call, owner, timeout=60)) for _ in range(8)]
            await wait_until(lambda: session._dispatcher._back.has_failed, "the first was tried in vain")
            joined = session._keyed_calls._waiting.values()
            await wait_until(lambda: sum(map(len, joined)) == 7, "the others have joined it")
        results = await asyncio.gather(*repeats)

    assert {result.error_code for result in results} == {None}
    assert len({result.audit.call_id for result in results}) == len(owls.calls("echo")) == 1


async def test_what_runs_goes_on_while_the_broker_is_away(
    bed: TestBed, fleet: ToolFleet, owner: Caller, owls: ModuleServer, broker: RabbitMq
) -> None:
    """The module's answer is the call's result before RabbitMQ is back; then the worker takes calls at once."""
    with bed.worker() as worker:
        handle = await fleet.submit(NAP, owner, timeout=60)
        await wait_until(lambda: owls.running, "it runs")
        async with broker.away(at_once=True):
            result = await asyncio.wait_for(handle.result(), 2 * PATIENCE_SECONDS)
        after = await fleet.call(ECHO, owner)

    assert (result.success, after.success) == (True, True), worker.said()
    assert "loop_stalled" not in worker.said()


async def test_no_event_waits_for_the_broker(bed: TestBed, broker: RabbitMq) -> None:
    """Not even a heartbeat, with which Celery tries again and again, while all calls of the worker wait. What is not sent is kept."""
    app = make_app(bed.settings)
    with app.connection_for_write() as connection:
        dispatcher = app.events.Dispatcher(connection, hostname="owl", buffer_group=["task"])
        dispatcher.send("worker-online", retry=True)
        async with broker.away(at_once=True):
            await asyncio.wait_for(asyncio.to_thread(dispatcher.send, "worker-heartbeat", retry=True), PATIENCE_SECONDS)
        kept = [event["type"] for event, _ in dispatcher._outbound_buffer]

    assert kept == ["worker-heartbeat"]


@pytest.mark.parametrize("at_once", [True, False])  # without a word, or with one
async def test_beat_gets_over_a_restart(bed: TestBed, broker: RabbitMq, at_once: bool) -> None:
    """It goes on sending what is due, over a new connection."""
    quick = replace(bed, more={**bed.more, "jobs_interval_seconds": 0.2})
    with program(quick, beat_command(), "beat", ready="beat: Starting"):
        await wait_until(lambda: broker.kept().get(CONTROL), "beat sends something")
        async with broker.away(at_once=at_once):
            pass
        broker.purge(CONTROL)
        await wait_until(lambda: broker.waiting(CONTROL), "beat sends again")


@pytest.mark.parametrize("is_warm", [True, False])  # sent, and nobody says that it came; or no connection came about
async def test_a_frozen_broker_blocks_nobody(
    bed: TestBed, fleet: ToolFleet, owner: Caller, broker: RabbitMq, is_warm: bool
) -> None:
    """Calls end by their deadlines, and the agent's loop goes on ticking. What may have been sent is withdrawn."""
    if is_warm:
        await fleet.submit(ECHO, owner, timeout=1)
    with broker.frozen():
        async with ticking() as gaps:
            result = await asyncio.wait_for(fleet.call(ECHO, owner, timeout=2), PATIENCE_SECONDS)
            many = await asyncio.wait_for(fleet.call_many([ECHO] * 50, owner, timeout=1), PATIENCE_SECONDS)

    assert result.error_code in {"fleet_unavailable", "expired"}  # whichever of the two is known first
    assert result.effect_state == "none"
    assert all(not one.success and one.error for one in many)
    assert len(gaps) > 50
    assert max(gaps) < 1


@asynccontextmanager
async def ticking() -> AsyncGenerator[list[float]]:
    """How long the loop took from one tick of 10 ms to the next."""
    gaps: list[float] = []
    ticker = asyncio.create_task(note_gaps(gaps))
    yield gaps
    ticker.cancel()


async def test_a_frozen_broker_lets_an_agents_process_end(bed: TestBed, broker: RabbitMq) -> None:
    """No thread that waits for RabbitMQ outlives the agent for long."""
    with python_program(AGENT, broker.pid, env=environment_of(bed.settings)) as agent:
        try:
            codes = await asyncio.to_thread(next_line, agent)
            assert await asyncio.to_thread(agent.wait, 20) == 0
        finally:
            broker.thaw()

    assert set(codes.split()) <= {"fleet_unavailable", "expired"}


@pytest.mark.parametrize(
    ("known", "wrong", "reason"),
    [
        ("guest:guest@", "guest:hunter2@", "ACCESS_REFUSED"),  # a wrong password
        ("//", "/elsewhere", "not found"),  # a virtual host that there is not
    ],
)
async def test_a_broker_that_turns_us_away_is_named(
    bed: TestBed, owner: Caller, broker: RabbitMq, known: str, wrong: str, reason: str
) -> None:
    """The call's result says why it was not sent, and tells no password."""
    head, _, tail = broker.url.rpartition(known)
    async with ToolFleet(settings=bed.settings.model_copy(update={"broker_url": head + wrong + tail})) as fleet:
        result = await asyncio.wait_for(fleet.call(ECHO, owner, timeout=15), 2 * PATIENCE_SECONDS)

    assert (result.error_code, result.effect_state, result.retryable) == ("fleet_unavailable", "none", True)
    assert reason in str(result.error)
    assert "hunter2" not in str(result.error)
