"""Queues that operators pause and drain where RabbitMQ has them: it has delivered calls that must not begin."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.fleet import TestBed
from support.module_server import ModuleServer, holding, serve
from support.owls import make_module
from support.servers.rabbitmq import RabbitMq
from support.waiting import PATIENCE_SECONDS, wait_until, wait_until_answered
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_registry.errors import BrokerAway
from toolfleet_tasks.operations.queue_overview import QueueOverview

ROUNDS = 30
OWNER = Caller(user_id="ada", permission="owner", allowed_modules="*")


def nap(seconds: float) -> ToolCall:
    return ToolCall(tool_name="owls.nap_once", arguments={"seconds": seconds})


async def queue_of_owls(fleet: ToolFleet) -> QueueOverview:
    """The queue of the one module here that is not another test's."""
    (one,) = [queue for queue in await fleet.queues.list() if queue.module == "owls"]
    return one


async def until(fleet: ToolFleet, state: str, *waiting: int) -> None:
    async def is_so() -> bool:
        try:
            one = await queue_of_owls(fleet)
        except BrokerAway:  # it has only just been started again
            return False
        return one.state == state and one.waiting in waiting

    await wait_until_answered(is_so, f"{waiting} calls wait in a queue that is {state}", seconds=2 * PATIENCE_SECONDS)


@pytest.fixture(autouse=True)
async def _resumed(fleet: ToolFleet) -> AsyncIterator[None]:
    """The queue is no longer paused when its test has ended, also when it has failed."""
    yield
    await fleet.queues.resume("owls")


async def test_calls_that_were_fetched_are_not_begun(
    bed: TestBed, fleet: ToolFleet, owner: Caller, owls: ModuleServer
) -> None:
    """They go back to their queue, and are run once when it is resumed, also by a worker that started meanwhile."""
    with bed.worker(worker_concurrency=1):
        running = await fleet.submit(nap(3), owner)
        await wait_until(lambda: owls.running == 1, "the only slot is taken")
        fetched = [await fleet.submit(nap(0), owner, timeout=90) for _ in range(5)]
        await fleet.queues.pause("owls")
        later = [await fleet.submit(nap(0), owner, timeout=90) for _ in range(5)]
        assert (await running.result(2 * PATIENCE_SECONDS)).success

        async def all_wait() -> bool:
            one = await queue_of_owls(fleet)
            return (one.state, one.waiting) == ("paused", 10)

        await wait_until_answered(all_wait, "all are back in their queue")
        with bed.worker():
            await wait_until_answered(all_wait, "nobody takes them")
            assert len(owls.calls("nap_once")) == 1
            await fleet.queues.resume("owls")
            assert [(await each.result(3 * PATIENCE_SECONDS)).success for each in (*fetched, *later)] == [True] * 10
    assert set(Counter(owls.call_ids("nap_once")).values()) == {1}


async def test_a_worker_that_starts_takes_nothing_of_a_paused_queue(
    broker: RabbitMq, redis_url: str, owls: ModuleServer, tmp_path: Path
) -> None:
    """Of the other queues it does, also where it has no others."""
    owls.forget()
    (tmp_path / "logs").mkdir()
    with serve(make_module("larks")) as larks:
        more = {"broker_url": broker.url, "slow_modules": frozenset({"larks"})}
        own = TestBed(redis_url, (owls, larks), tmp_path / "logs", more)
        async with ToolFleet(settings=own.settings) as agent:
            await agent.queues.pause("larks")
            call = await agent.submit(ToolCall(tool_name="larks.echo"), OWNER, timeout=90)
            with own.worker(lane="slow") as slow, own.worker(lane="fast"):
                assert (await agent.call(ToolCall(tool_name="owls.echo"), OWNER, timeout=60)).success
                assert larks.calls("echo") == []
                assert slow.process.poll() is None
                await agent.queues.resume("larks")
                assert (await call.result(3 * PATIENCE_SECONDS)).success


async def test_a_draining_queue_refuses_new_calls(
    bed: TestBed, fleet: ToolFleet, owner: Caller, owls: ModuleServer
) -> None:
    """Before they are published; what runs goes on, and then it is drained."""
    with bed.worker():
        running = asyncio.create_task(fleet.call(nap(2), owner))
        await wait_until(lambda: owls.running == 1, "it runs")
        await fleet.queues.drain("owls")
        refused = await fleet.call(nap(0), owner)
        assert (refused.error_code, refused.effect_state, refused.retryable) == ("busy", "none", True)
        assert (await running).success
        (drained,) = await fleet.queues.drain("owls", wait_seconds=20)
        await fleet.queues.resume("owls")
    assert (drained.state, len(owls.calls("nap_once"))) == ("drained", 1)


async def test_a_queue_that_is_paused_again_and_again_under_load_loses_no_call(
    bed: TestBed, fleet: ToolFleet, owls: ModuleServer
) -> None:
    """With two workers, in whose hands calls are when it is paused: what is not begun goes back to RabbitMQ, and each is run once."""
    is_over, agents = False, 20

    async def call_again_and_again(number: int) -> int:
        done = 0
        while not is_over:
            result = await fleet.call(nap(0.002 * number), OWNER, timeout=120)
            assert result.success, result
            done += 1
        return done

    with bed.worker(), bed.worker(worker_concurrency=4):
        callers = [asyncio.create_task(call_again_and_again(number)) for number in range(agents)]
        for number in range(ROUNDS):
            await fleet.queues.pause("owls", reason=f"round {number}")
            # A third of the rounds end before workers hear of the pause, perhaps while calls are on their way back.
            if number % 3:
                waiting = agents if number % 3 == 1 else 1
                await until(fleet, "paused", *range(waiting, 2 * agents))
            begun = len(owls.requests)
            await fleet.queues.resume("owls")
            if number % 2:  # else it is paused again before workers take calls
                await wait_until(lambda begun=begun: len(owls.requests) > begun + agents, "calls are run again")  # type: ignore[misc] # of this round
        is_over = True
        successes = sum(await asyncio.gather(*callers))

    counted = Counter(owls.call_ids("nap_once"))
    assert len(counted) == successes > ROUNDS
    assert set(counted.values()) == {1}


async def test_what_reaches_a_worker_before_it_knows_goes_back(
    bed: TestBed, fleet: ToolFleet, owls: ModuleServer
) -> None:
    """RabbitMQ delivers for half a second after `pause`: nothing of it is begun, and all of it is run once, in the end."""
    with bed.worker(worker_concurrency=8) as worker:
        assert (await fleet.call(nap(0), OWNER)).success
        for _ in range(5):
            await fleet.queues.pause("owls")
            calls = [await fleet.submit(nap(0), OWNER, timeout=90) for _ in range(8)]
            begun = len(owls.calls("nap_once"))
            await until(fleet, "paused", 8)
            assert len(owls.calls("nap_once")) == begun, worker.said()
            await fleet.queues.resume("owls")
            assert [(await each.result(3 * PATIENCE_SECONDS)).success for each in calls] == [True] * 8
    counted = Counter(owls.call_ids("nap_once"))
    assert (len(counted), set(counted.values())) == (41, {1})


async def test_a_worker_that_is_killed_loses_nothing_that_waits(
    bed: TestBed, fleet: ToolFleet, owls: ModuleServer
) -> None:
    """What ran in it is unknown; RabbitMQ gives what it held to the next one, which runs it when the queue is resumed, once."""
    with bed.worker(worker_concurrency=4) as worker:
        running = await fleet.submit(nap(60), OWNER, timeout=30)
        await wait_until(lambda: owls.running == 1, "it runs")
        await fleet.queues.pause("owls")
        waiting = [await fleet.submit(nap(0), OWNER, timeout=90) for _ in range(10)]
        worker.send_signal(signal.SIGKILL)
    with bed.worker():
        await until(fleet, "paused", 11)
        assert len(owls.calls("nap_once")) == 1
        await fleet.queues.resume("owls")
        assert [(await each.result(3 * PATIENCE_SECONDS)).success for each in waiting] == [True] * 10
        assert (await running.result(3 * PATIENCE_SECONDS)).effect_state == "unknown"
    assert set(Counter(owls.call_ids("nap_once")).values()) == {1}


async def test_a_pause_outlives_a_rabbitmq_that_is_started_again(
    bed: TestBed, fleet: ToolFleet, owls: ModuleServer, broker: RabbitMq
) -> None:
    """With what waits: workers that connect anew leave the queue alone, as do those that start then."""
    with bed.worker(worker_concurrency=1) as worker, holding(owls, "nap_once") as let_go:
        running = await fleet.submit(nap(0), OWNER, timeout=60)
        await wait_until(lambda: owls.running == 1, "the only slot is taken")
        await fleet.queues.pause("owls")
        waiting = [await fleet.submit(nap(0), OWNER, timeout=120) for _ in range(5)]
        async with broker.away():
            await wait_until(
                lambda: "worker_waits_for_broker" in worker.said(),
                "the worker has lost it",
                seconds=3 * PATIENCE_SECONDS,
            )
            let_go()
            assert (await running.result(3 * PATIENCE_SECONDS)).success
        with bed.worker():
            await until(fleet, "paused", 5, 6)  # with the message of the call that has ended meanwhile, or without
            assert len(owls.calls("nap_once")) == 1, worker.said()
            await fleet.queues.resume("owls")
            assert [(await each.result(3 * PATIENCE_SECONDS)).success for each in waiting] == [True] * 5
            (after,) = await fleet.queues.drain("owls", wait_seconds=20)
    assert after.state == "drained"
    assert set(Counter(owls.call_ids("nap_once")).values()) == {1}
