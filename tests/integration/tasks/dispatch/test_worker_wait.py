"""What becomes of a call whose queue no worker consumes. The worker is its note, and the test."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from support.module_server import ModuleServer
from support.waiting import PATIENCE_SECONDS, wait_until, wait_until_answered, wait_until_sync
from support.workers.hand_worker import HandWorker, hand_worker
from toolfleet import Caller, ToolCall, ToolFleet, ToolResult
from toolfleet_registry.directory.entries import ModuleEntry
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_tasks.calls.dispatcher import READ
from toolfleet_tasks.client.session import Session
from toolfleet_tasks.operations.changes import ModuleChanges
from toolfleet_tasks.presence import ConsumerNotes, note_of

ADA = Caller(user_id="ada", permission="owner", allowed_modules="*")
ECHO = ToolCall(tool_name="owls.echo", arguments={"n": 1})
KEYED = ECHO.model_copy(update={"idempotency_key": "k"})
KEYS = Keys()
TEXT = "no worker serves the module 'owls' (lane fast)"

Make = Callable[..., Settings]


@pytest.fixture
def make(redis_url: str, owls: ModuleServer) -> Make:
    """Settings of a fleet with the owls, whose agents wait for half a second."""
    fields: dict[str, Any] = {
        "redis_url": redis_url,
        "module_services": {"owls": owls.url},
        "unserved_seconds": 0.5,
    }
    return lambda **more: Settings(**{**fields, **more})


@pytest.fixture
async def worker(make: Make) -> AsyncIterator[HandWorker]:
    async with hand_worker(make()) as worker:
        yield worker


@contextmanager
def noted(
    settings: Settings, *queues: str, restarts: bool = False, restart_seconds: float = 60
) -> Generator[ConsumerNotes]:
    """A worker that says that it consumes these queues, and leaves."""
    notes = ConsumerNotes(settings, lambda: queues, restart_seconds=restart_seconds)
    notes.start()
    wait_until_sync(lambda: notes._queues is not None, "the worker is noted")
    yield notes
    notes.leave(restarts=restarts)


def is_refused(result: ToolResult) -> bool:
    assert TEXT in (result.error or ""), result
    assert (result.error_code, result.effect_state, result.retryable) == ("busy", "none", True)
    return (result.retry_after_seconds or 0) > 0


def session_of(fleet: ToolFleet) -> Session:
    session = fleet._sessions.here()
    assert session is not None
    return session


def look_again(fleet: ToolFleet) -> None:
    """What the agent has found within the last second counts no longer."""
    session_of(fleet)._dispatcher._admission._served.clear()


def holds_back(fleet: ToolFleet) -> bool:
    return bool(session_of(fleet)._dispatcher._workers._changes)


async def test_a_call_that_nobody_serves_is_refused(make: Make, redis: Redis, worker: HandWorker) -> None:
    """After the wait, then at once; it is in no queue, and counts for nobody."""
    async with ToolFleet(settings=make()) as fleet:
        began_at = time.monotonic()
        results = await fleet.call_many([ECHO, KEYED], ADA)
        assert time.monotonic() - began_at >= 0.4, "the agent has only just connected"
        results.append(await (await fleet.submit(ECHO, ADA)).result())

    assert all(is_refused(result) for result in results)
    assert await worker.queued() == []
    assert not await redis.exists(KEYS.caller_limit("fast", "ada"), KEYS.intent("ada", "k"))


async def test_a_module_that_only_the_agent_names_gets_no_worker_by_waiting(make: Make) -> None:
    """It is refused for good, with the command that adds it; no result says that the same call may work later."""
    settings = make()
    async with ModuleChanges.of(settings) as changes:
        await changes.add(ModuleEntry(module="crows", url="http://127.0.0.1:1"))
    async with ToolFleet(settings=settings) as fleet:
        result = await fleet.call(ECHO, ADA)

    assert (result.error_code, result.effect_state, result.retryable) == ("unknown_module", "none", False)
    assert "no worker of the fleet knows the module 'owls'" in str(result.error)
    assert "`toolfleet modules add owls URL`" in str(result.error)


async def test_a_worker_that_comes_in_time_runs_the_call(make: Make, worker: HandWorker) -> None:
    """The call waits in its agent until then, and is published once."""
    settings = make(unserved_seconds=60)
    async with ToolFleet(settings=settings) as fleet:
        calling = asyncio.create_task(fleet.call(KEYED, ADA))
        await wait_until(lambda: holds_back(fleet), "it waits")
        assert await worker.queued() == []
        with noted(settings, "tools.owls"):
            await worker.finish(await worker.take())
            assert (await asyncio.wait_for(calling, PATIENCE_SECONDS)).success


async def test_who_serves_a_module_is_asked_once_a_second(make: Make, redis: Redis, worker: HandWorker) -> None:
    """By a call that is published anyway: the others of that second cost Redis nothing more."""
    settings = make()
    with noted(settings, "tools.owls"):
        async with ToolFleet(settings=settings) as fleet:
            await fleet.submit(ECHO, ADA)
            session_of(fleet)._dispatcher._admission._served["tools.owls"] += 60
            before = await redis.info("commandstats")
            await asyncio.gather(*(fleet.submit(ECHO, ADA) for _ in range(20)))
            after = await redis.info("commandstats")

    assert before["cmdstat_zrevrangebyscore"] == after["cmdstat_zrevrangebyscore"]
    # Calls of one tick are let in together.
    assert after["cmdstat_evalsha"]["calls"] - before["cmdstat_evalsha"]["calls"] == 1
    assert len(await worker.queued()) == 21


async def test_calls_that_shall_wait_are_in_the_queue_at_once(make: Make, worker: HandWorker) -> None:
    """Those that say so, those of a lane that scales from zero, and those of a job."""
    async with ToolFleet(settings=make()) as fleet:
        await fleet.submit(ECHO, ADA, waits_for_worker=True)
        calls = asyncio.gather(
            fleet.call(ECHO, ADA, waits_for_worker=True), fleet.call_many([ECHO], ADA, waits_for_worker=True)
        )
        await worker.until_queued(3)
        session = session_of(fleet)
        prepared = await session.prepare(ECHO, ADA, None, 60)
        assert not isinstance(prepared, ToolResult)
        assert await session.steps.publish(prepared) is None
        await worker.until_queued(4)
        calls.cancel()
    async with ToolFleet(settings=make(scale_from_zero_lanes="fast")) as fleet:
        await fleet.submit(ECHO, ADA)
        await worker.until_queued(5)


async def test_a_module_that_scales_from_zero_has_its_calls_wait(
    make: Make, owls: ModuleServer, worker: HandWorker
) -> None:
    """The fleet's directory says so, to every agent."""
    settings = make(module_services={})
    async with ModuleChanges.of(settings) as changes:
        await changes.add(ModuleEntry(module="owls", url=owls.url, scales_from_zero=True))
    async with ToolFleet(settings=settings) as fleet:
        await fleet.submit(ECHO, ADA)
        await worker.until_queued()


async def test_what_is_in_the_queue_already_waits(make: Make, worker: HandWorker) -> None:
    """A message whose worker has gone is run when the next one comes; a call that came later was refused meanwhile."""
    settings = make()
    async with ToolFleet(settings=settings) as fleet:
        with noted(settings, "tools.owls"):
            calling = asyncio.create_task(fleet.call(ECHO, ADA))
            await worker.until_queued()
        look_again(fleet)
        assert is_refused(await fleet.call(ECHO, ADA))
        await worker.finish(await worker.take())
        assert (await asyncio.wait_for(calling, PATIENCE_SECONDS)).success


async def test_a_worker_that_restarts_keeps_its_queues_served(make: Make, worker: HandWorker) -> None:
    """For a minute, and not for longer."""
    settings = make()
    with noted(settings, "tools.owls", restarts=True):
        pass
    async with ToolFleet(settings=settings) as fleet:
        await fleet.submit(ECHO, ADA)
        await worker.until_queued()


async def is_unserved(redis: Redis) -> bool:
    return bool(await redis.eval(READ.text, 2, KEYS.consumers, "tools.owls") >= 0)


async def test_the_wait_for_a_restart_ends(make: Make, redis: Redis) -> None:
    """Then nobody serves the queue."""
    settings = make()
    with noted(settings, "tools.owls", restarts=True, restart_seconds=0.1):
        pass
    await wait_until_answered(lambda: is_unserved(redis), "nobody is waited for")
    async with ToolFleet(settings=settings) as fleet:
        assert is_refused(await fleet.call(ECHO, ADA))


async def test_a_worker_of_before_the_notes_may_serve_anything(make: Make, redis: Redis, worker: HandWorker) -> None:
    """While one lives, nothing is refused: nobody knows its queues."""
    await redis.zadd(KEYS.slots("slow"), {note_of(10, "old:1"): time.time()})
    await redis.expire(KEYS.slots("slow"), 20)
    async with ToolFleet(settings=make()) as fleet:
        await fleet.submit(ECHO, ADA)
        await worker.until_queued()
        await redis.zadd(KEYS.slots("slow"), {note_of(10, "old:1"): time.time() - 30})
        look_again(fleet)
        assert is_refused(await fleet.call(ECHO, ADA))


async def test_a_repeat_has_the_first_calls_result_without_a_worker(make: Make, worker: HandWorker) -> None:
    """Nothing is to be run for it."""
    async with ToolFleet(settings=make()) as fleet:
        calling = asyncio.create_task(fleet.call(KEYED, ADA, waits_for_worker=True))
        await worker.finish(await worker.take())
        first = await asyncio.wait_for(calling, PATIENCE_SECONDS)
        assert (await fleet.call(KEYED, ADA)).result == first.result


async def test_a_call_that_waits_for_a_worker_keeps_its_deadline(make: Make) -> None:
    """It has expired then; and one whose agent leaves meanwhile is told so."""
    settings = make(unserved_seconds=60)
    async with ToolFleet(settings=settings) as fleet:
        assert (await fleet.call(ECHO, ADA, timeout=0.3)).error_code == "expired"
    async with ToolFleet(settings=settings) as fleet:
        calling = asyncio.create_task(fleet.call(ECHO, ADA))
        await wait_until(lambda: holds_back(fleet), "it waits")

    left = await calling
    assert (left.error_code, left.effect_state, left.success) == ("internal", "none", False)


def test_programs_without_a_loop_say_the_same(make: Make) -> None:
    """The sync fleet's calls take the same word."""
    with ToolFleet.sync(settings=make()) as fleet:
        assert is_refused(fleet.call(ECHO, ADA))
        assert is_refused(fleet.submit(ECHO, ADA).result(PATIENCE_SECONDS))
        handle = fleet.submit(ECHO, ADA, waits_for_worker=True)
        assert handle.status() == "queued"
        handle.cancel()


async def test_an_agent_that_cannot_ask_lets_calls_in(make: Make, redis: Redis, worker: HandWorker) -> None:
    """Whatever keeps it from reading the notes: the call waits in its queue."""
    await redis.set(KEYS.consumers, "no notes", ex=60)
    async with ToolFleet(settings=make()) as fleet:
        await fleet.submit(ECHO, ADA)
        await worker.until_queued()


async def test_nobody_is_missed_in_a_redis_that_was_silent(make: Make, redis: Redis, worker: HandWorker) -> None:
    """Its workers could not note themselves meanwhile: the wait begins anew."""
    settings = make(unserved_seconds=30)
    async with ToolFleet(settings=settings) as fleet:
        await wait_until(lambda: session_of(fleet)._connection.is_connected, "it has connected")
        session_of(fleet)._dispatcher._workers._trusted_since -= 60  # the agent has been there for a minute
        assert is_refused(await fleet.call(ECHO, ADA))
        await redis.client_pause(3000)  # of which the call must have waited for a second
        calling = asyncio.create_task(fleet.call(ECHO, ADA))
        await wait_until(lambda: holds_back(fleet), "it waits, and is not refused")
        with noted(settings, "tools.owls"):
            await worker.finish(await worker.take())
            assert (await asyncio.wait_for(calling, PATIENCE_SECONDS)).success
