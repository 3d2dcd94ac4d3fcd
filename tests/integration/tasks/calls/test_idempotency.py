"""Idempotency keys: a repeat brings the first call's result, and does nothing by itself."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from functools import partial

import pytest
from redis.asyncio import Redis

from support.clocks import fleet_clock_ahead
from support.module_server import ModuleServer
from support.programs.closed_port import closed_port
from support.published_call import published
from support.waiting import PATIENCE_SECONDS, wait_until
from support.workers.hand_worker import HandWorker
from toolfleet import Caller, ToolCall, ToolFleet, ToolResult
from toolfleet_registry.contracts import EffectState, PublishedCall
from toolfleet_registry.redis.servers import connection_factory
from toolfleet_registry.settings import Settings
from toolfleet_tasks.admission import AdmissionControl
from toolfleet_tasks.ledger.ledger import Ledger
from toolfleet_tasks.redis_connection import PipelinedConnection

ADA, BOB = (Caller(user_id=name, permission="owner", allowed_modules="*") for name in ("ada", "bob"))
FIRST = ToolCall(tool_name="owls.echo", arguments={"a": 1, "b": [2]}, idempotency_key="k")
SAME = ToolCall(tool_name="owls.echo", arguments={"b": [2], "a": 1}, idempotency_key="k")


@pytest.fixture
def settings(redis_url: str, owls: ModuleServer) -> Settings:
    return Settings(redis_url=redis_url, module_services={"owls": owls.url})


@pytest.fixture
async def fleet(settings: Settings) -> AsyncIterator[ToolFleet]:
    async with ToolFleet(settings=settings) as fleet:
        yield fleet


@pytest.fixture
async def other(settings: Settings) -> AsyncIterator[ToolFleet]:
    """Another agent's."""
    async with ToolFleet(settings=settings) as fleet:
        yield fleet


def call_id(result: ToolResult) -> str:
    return result.audit.call_id


async def test_a_repeat_joins_the_call_that_waits_or_runs(
    fleet: ToolFleet, other: ToolFleet, worker: HandWorker, redis: Redis
) -> None:
    """From the same agent or another, with the same arguments in any order: one call, one result for all."""
    handle = await fleet.submit(FIRST, ADA)
    repeats = [asyncio.create_task(one.call(SAME, ADA)) for one in (fleet, fleet, other, other)]
    joined = await other.submit(SAME, ADA)
    assert (joined.id, await joined.status()) == (handle.id, "queued")
    claim = await worker.take()
    repeats.append(asyncio.create_task(fleet.call(SAME, ADA)))
    assert await joined.status() == "running"
    await worker.finish(claim)
    results = await asyncio.wait_for(asyncio.gather(handle.result(), joined.result(), *repeats), PATIENCE_SECONDS)

    assert {call_id(result) for result in results} == {handle.id}
    assert all(result.success and result.result == FIRST.arguments for result in results)
    assert await worker.queued() == []
    assert await joined.status() == "done"


async def test_a_repeat_after_the_end_brings_its_result(fleet: ToolFleet, other: ToolFleet, worker: HandWorker) -> None:
    """At once, with the first call's id; nothing is published."""
    handle = await fleet.submit(FIRST, ADA)
    await worker.finish(await worker.take())
    await handle.result(PATIENCE_SECONDS)

    for one in (fleet, other):
        assert call_id(await asyncio.wait_for(one.call(SAME, ADA), PATIENCE_SECONDS)) == handle.id
    assert await worker.queued() == []


async def test_a_large_result_is_found_as_well(fleet: ToolFleet, other: ToolFleet, worker: HandWorker) -> None:
    """One that is announced by its id only, while a repeat waits for it and later."""
    handle = await fleet.submit(FIRST, ADA)
    joining = asyncio.create_task(other.call(SAME, ADA))
    await worker.finish(await worker.take(), ToolResult.ok("owls.echo", "x" * 2**19))
    results = [
        await handle.result(PATIENCE_SECONDS),
        await asyncio.wait_for(joining, PATIENCE_SECONDS),
        await other.call(SAME, ADA, timeout=10),
    ]

    assert [len(result.result or "") for result in results] == [2**19] * 3


@pytest.mark.parametrize("call", [
    FIRST.model_copy(update={"arguments": {"a": 1, "b": [3]}}),
    FIRST.model_copy(update={"tool_name": "owls.fail"}),
])  # fmt: skip
async def test_another_call_under_the_same_key_is_a_conflict(
    fleet: ToolFleet, worker: HandWorker, call: ToolCall
) -> None:
    """It is not run, and a repeat would be refused as well."""
    await fleet.submit(FIRST, ADA)
    result = await fleet.call(call, ADA, timeout=10)

    assert (result.error_code, result.effect_state, result.retryable) == ("conflict", "none", False)
    assert result.hint
    assert len(await worker.queued()) == 1


async def test_keys_belong_to_users(fleet: ToolFleet, worker: HandWorker) -> None:
    """The same key of another user means another intention."""
    handles = [await fleet.submit(FIRST, caller) for caller in (ADA, BOB)]

    assert [call.call_id for call in await worker.queued()] == [handle.id for handle in handles]
    assert handles[0].id != handles[1].id


async def test_what_did_not_happen_may_be_tried_again(fleet: ToolFleet, worker: HandWorker) -> None:
    """A call that surely had no effect frees its key; one that may have had keeps it."""
    states: tuple[EffectState, ...] = ("none", "unknown")
    ids: list[str] = []
    for effect_state in states:
        handle = await fleet.submit(FIRST, ADA)
        claim = await worker.take()
        failed = ToolResult.failed("owls.echo", "module_error", "no", effect_state=effect_state)
        await worker.finish(claim, failed)
        ids.append(call_id(await handle.result(PATIENCE_SECONDS)))
    again = await fleet.call(SAME, ADA, timeout=10)

    assert (call_id(again), again.effect_state) == (ids[1], "unknown")
    assert ids[0] != ids[1]


async def test_a_repeats_own_deadline_ends_only_its_waiting(
    fleet: ToolFleet, other: ToolFleet, worker: HandWorker
) -> None:
    """It is told that the first call is under way, which goes on, and that a repeat does no harm."""
    handle = await fleet.submit(FIRST, ADA)
    await other.modules.refresh()
    for one in (fleet, other):
        result = await asyncio.wait_for(one.call(SAME, ADA, timeout=1), PATIENCE_SECONDS)
        assert (result.error_code, result.effect_state, result.retryable) == ("timed_out", "unknown", True)
        assert "is under way" in (result.error or "")
        assert "does no harm" in (result.hint or "")
    await worker.finish(await worker.take())

    assert (await handle.result(PATIENCE_SECONDS)).success


async def test_cancelling_a_repeat_ends_only_its_waiting(
    fleet: ToolFleet, other: ToolFleet, worker: HandWorker
) -> None:
    """By its handle, or by cancelling who waits; the first call goes on, and so do other repeats."""
    handle = await fleet.submit(FIRST, ADA)
    for one in (fleet, other):
        joined, waiting = await one.submit(SAME, ADA), asyncio.create_task(one.call(SAME, ADA))
        staying = asyncio.create_task(one.call(SAME, ADA))
        await wait_until(partial(are_waiting, one, 3), "all have joined")
        waiting.cancel()
        await joined.cancel()
        await asyncio.wait([waiting])
        assert (await joined.result(PATIENCE_SECONDS)).error_code == "cancelled"
        await wait_until(partial(are_waiting, one, 1), "the others have left")
    await worker.finish(await worker.take())

    assert (await handle.result(PATIENCE_SECONDS)).success
    assert (await asyncio.wait_for(staying, PATIENCE_SECONDS)).success
    await wait_until(lambda: waiting_in(fleet) + waiting_in(other) == 0, "nobody waits")


def are_waiting(fleet: ToolFleet, count: int) -> bool:
    return waiting_in(fleet) == count


def waiting_in(fleet: ToolFleet) -> int:
    session = fleet._sessions.here()
    assert session is not None
    return sum(map(len, session._keyed_calls._waiting.values()))


async def test_when_the_first_caller_gives_up_repeats_hear_of_it(
    fleet: ToolFleet, other: ToolFleet, worker: HandWorker
) -> None:
    """The call has ended as cancelled, before it was begun, and its key is free again."""
    first = asyncio.create_task(fleet.call(FIRST, ADA))
    await wait_until(lambda: waiting_calls(fleet), "it is under way")
    repeats = [asyncio.create_task(one.call(SAME, ADA, timeout=20)) for one in (fleet, other)]
    await wait_until(lambda: waiting_in(fleet) + waiting_in(other) == 2, "both have joined")
    first.cancel()
    results = await asyncio.wait_for(asyncio.gather(*repeats), PATIENCE_SECONDS)

    assert [(result.error_code, result.effect_state) for result in results] == [("cancelled", "none")] * 2
    assert (await fleet.submit(SAME, ADA)).id not in {call_id(result) for result in results}


def waiting_calls(fleet: ToolFleet) -> int:
    session = fleet._sessions.here()
    assert session is not None
    return len(session._keyed_calls._own)


async def test_leaving_the_fleet_ends_repeats(settings: Settings, fleet: ToolFleet) -> None:
    """They end as any call that is under way then."""
    handle = await fleet.submit(FIRST, ADA)
    async with ToolFleet(settings=settings) as leaving:
        joined = await leaving.submit(SAME, ADA)
    result = await joined.result(PATIENCE_SECONDS)

    assert (joined.id, result.error_code) == (handle.id, "outcome_unknown")


async def test_only_the_same_key_makes_a_repeat_of_a_once_only_call_harmless(
    fleet: ToolFleet, other: ToolFleet, worker: HandWorker
) -> None:
    """So a joined call that has waited in vain, or was taken back, is not called retryable, and its hint names the key."""
    once = ToolCall(tool_name="owls.nap_once", arguments={"seconds": 1}, idempotency_key="k")
    await fleet.submit(once, ADA)
    await worker.take()
    for one in (fleet, other):
        handle = await one.submit(once, ADA)
        await handle.cancel()
        for result in (await one.call(once, ADA, timeout=1), await handle.result(PATIENCE_SECONDS)):
            assert (result.effect_state, result.retryable) == ("unknown", False)
            assert "same idempotency key" in (result.hint or "")
            assert "no harm" not in f"{result.hint} {result.error}"


async def test_a_repeat_may_come_while_the_first_is_published(fleet: ToolFleet, worker: HandWorker) -> None:
    """Two at once from one agent: one call, and both have its result as soon as it is there."""
    calls = [asyncio.create_task(fleet.call(FIRST, ADA, timeout=60)) for _ in range(3)]
    await worker.finish(await worker.take())
    results = await asyncio.wait_for(asyncio.gather(*calls), PATIENCE_SECONDS)

    assert all(result.success for result in results)
    assert len({call_id(result) for result in results}) == 1
    assert await worker.queued() == []


async def test_who_joins_a_call_that_is_not_published_hears_of_it(
    redis_url: str, owls: ModuleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker is away: the first call has its result then, and so have those that joined it meanwhile."""
    broker = f"redis://127.0.0.1:{closed_port()}/0"
    monkeypatch.setattr("toolfleet_tasks.calls.dispatcher._PATIENCE_SECONDS", 1)
    settings = Settings(redis_url=redis_url, module_services={"owls": owls.url}, broker_url=broker)
    async with ToolFleet(settings=settings) as fleet:
        calls = [asyncio.create_task(fleet.call(FIRST, ADA, timeout=seconds)) for seconds in (1, 60, 60)]
        results = await asyncio.wait_for(asyncio.gather(*calls), PATIENCE_SECONDS)

    assert {(result.success, result.effect_state, result.retryable) for result in results} == {(False, "none", True)}
    assert all(result.hint for result in results)


async def test_an_empty_key_is_none(fleet: ToolFleet, worker: HandWorker, redis: Redis) -> None:
    """Calls that give one have nothing in common."""
    for number in range(2):
        await fleet.submit(ToolCall(tool_name="owls.echo", arguments={"n": number}, idempotency_key=""), ADA)

    assert [call.idempotency_key for call in await worker.queued()] == [None, None]
    assert await redis.keys("toolfleet:intent:*") == []


def forsaken(seconds_ago: float) -> PublishedCall:
    """A call that does what `FIRST` does, whose deadline was so long ago."""
    return published(
        "owls.echo",
        arguments=FIRST.arguments,
        user_id="ada",
        idempotency_key="k",
        deadline_at=time.time() - seconds_ago,
    )


@contextlib.asynccontextmanager
async def let_in(settings: Settings, call: PublishedCall) -> AsyncGenerator[Ledger]:
    """As by an agent that dies before it has published the call."""
    line = PipelinedConnection(connection_factory(str(settings.redis_url)), name="test")
    line.start()
    await line.connected()
    assert await AdmissionControl(settings).ask(line, call) is None
    yield Ledger(line, settings, writes_results=True)
    await line.aclose()


async def test_a_key_that_nobody_will_serve_is_taken_over(
    settings: Settings, fleet: ToolFleet, worker: HandWorker
) -> None:
    """Its agent has died, its deadline has passed, and no worker has begun it: a repeat is a call of its own."""
    async with let_in(settings, forsaken(20)):
        handle = await fleet.submit(SAME, ADA)

        assert [call.call_id for call in await worker.queued()] == [handle.id]
        assert handle.id != forsaken(0).call_id
        assert (await fleet.submit(FIRST, ADA)).id == handle.id


async def test_a_key_is_not_given_up_because_redis_was_set_forward(
    settings: Settings, fleet: ToolFleet, worker: HandWorker
) -> None:
    """Its call's deadline is by the fleet's clock, and the call waits in its queue: a second one would be executed, too."""
    with fleet_clock_ahead(-90):
        async with let_in(settings, forsaken(60)):
            handle = await fleet.submit(SAME, ADA)

            assert handle.id == forsaken(0).call_id
            assert await worker.queued() == []


async def begin(ledger: Ledger, _: Redis) -> None:
    """A worker had it; what became of it, nobody knows."""
    await ledger.claim(forsaken(20))


async def move(_: Ledger, redis: Redis) -> None:
    """Another Redis has taken over, which may have lost the record."""
    (key,) = await redis.keys("toolfleet:intent:*")
    value = str(await redis.get(key))
    await redis.set(key, f"{value.rpartition(' ')[0]} {'0' * 40}", ex=60)


@pytest.mark.parametrize(("seconds_ago", "then"), [(-60, None), (0, None), (20, begin), (20, move)])
async def test_a_key_that_may_have_been_served_is_kept(
    settings: Settings,
    fleet: ToolFleet,
    worker: HandWorker,
    redis: Redis,
    seconds_ago: float,
    then: Callable[[Ledger, Redis], Awaitable[None]] | None,
) -> None:
    """Its deadline is to come, or was just now by some clock, or a worker has begun it, or perhaps has."""
    async with let_in(settings, forsaken(seconds_ago)) as ledger:
        if then is not None:
            await then(ledger, redis)

        assert (await fleet.submit(SAME, ADA)).id == forsaken(0).call_id
    assert await worker.queued() == []
