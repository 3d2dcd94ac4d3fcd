"""What a call must pass before it is published: backlog, breaker, share. With each transport, and no worker."""

import asyncio
import time
from collections.abc import Callable

import pytest
from redis.asyncio import Redis

from support.published_call import published
from support.waiting import PATIENCE_SECONDS, wait_until, wait_until_equal
from support.workers.hand_worker import HandWorker
from toolfleet import Caller, ToolCall, ToolFleet, ToolResult
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_tasks import fairness
from toolfleet_tasks.admission import AdmissionControl
from toolfleet_tasks.fairness import WaitQueue
from toolfleet_tasks.redis_connection import PipelinedConnection

ECHO = ToolCall(tool_name="owls.echo", arguments={"n": 1})
KEYS = Keys()
ADA, BOB = (Caller(user_id=name, permission="owner", allowed_modules="*") for name in ("ada", "bob"))
SHARE = KEYS.caller_limit("fast", "ada")

Make = Callable[..., Settings]


def nothing_happened(result: ToolResult, code: str) -> bool:
    assert (result.error_code, result.effect_state, result.retryable) == (code, "none", True), result
    assert result.hint
    return result.retry_after_seconds is not None and result.retry_after_seconds > 0


async def numbers(worker: HandWorker) -> list[int]:
    return [call.arguments["n"] for call in await worker.queued()]


def echo(number: int, idempotency_key: str | None = None) -> ToolCall:
    return ToolCall(tool_name="owls.echo", arguments={"n": number}, idempotency_key=idempotency_key)


async def test_a_full_queue_turns_calls_away(make: Make, redis: Redis, worker: HandWorker) -> None:
    """At once, and they count for nobody; when there is room the next one gets in."""
    async with ToolFleet(settings=make(backlog_limit=2)) as fleet:
        for _ in range(2):
            await fleet.submit(ECHO, ADA)
        assert nothing_happened(await fleet.call(ECHO, BOB), "busy")
        assert not await redis.exists(KEYS.caller_limit("fast", "bob"))
        assert (len(await worker.queued()), await redis.zcard(SHARE)) == (2, 2)
        await worker.take()
        assert await (await fleet.submit(ECHO, BOB)).status() == "queued"

    assert len(await worker.queued()) == 2


async def test_an_open_breaker_turns_calls_away(make: Make, redis: Redis, worker: HandWorker) -> None:
    """At once, without a place in the queue; shortly before its time is over those get in that have time to wait there."""
    settings = make()
    async with ToolFleet(settings=settings) as fleet:
        await fleet.modules.refresh()
        seconds, _ = await redis.time()
        await redis.hset(KEYS.breaker("owls"), mapping={"failures": 20, "open_until": (seconds + 9) * 1000})
        await redis.expire(KEYS.breaker("owls"), 60)
        refused = await fleet.call(ECHO, ADA)
        assert nothing_happened(refused, "module_unreachable")
        assert 2 < (refused.retry_after_seconds or 0) <= 9
        assert await worker.queued() == []
        await redis.hset(KEYS.breaker("owls"), "open_until", (seconds + 2) * 1000)
        assert nothing_happened(await fleet.call(ECHO, ADA, timeout=0.5), "module_unreachable")
        assert await worker.queued() == []
        await redis.hset(KEYS.breaker("owls"), "open_until", (seconds + 1) * 1000)
        handle = await fleet.submit(ECHO, ADA)
        assert [call.call_id for call in await worker.queued()] == [handle.id]


async def test_submit_beyond_the_share_is_busy(make: Make, redis: Redis, worker: HandWorker) -> None:
    """For that user in that lane only."""
    async with ToolFleet(settings=make(calls_per_caller=2, slow_modules="none")) as fleet:
        for number in range(2):
            await fleet.submit(echo(number), ADA)
        busy = await (await fleet.submit(ECHO, ADA)).result(PATIENCE_SECONDS)
        assert nothing_happened(busy, "busy")
        await fleet.submit(echo(2), BOB)
        assert await numbers(worker) == [0, 1, 2]
    async with ToolFleet(settings=make(calls_per_caller=2, slow_modules="owls")) as fleet:
        await fleet.submit(echo(3), ADA)

    assert await numbers(worker) == [0, 1, 2, 3]
    assert await redis.zcard(SHARE) == 2


async def test_calls_beyond_the_share_wait_for_their_turn(
    make: Make, worker: HandWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order in which they came; each that ends lets the next one in, and all have their results."""
    for name in ("_SHORTEST_ASK", "_LONGEST_ASK"):
        monkeypatch.setattr(fairness, name, 60.0)  # who asks in vain just then is overtaken by whom the end lets in
    async with ToolFleet(settings=make(calls_per_caller=2)) as fleet:
        calling = asyncio.create_task(fleet.call_many([echo(number) for number in range(6)], ADA))
        ran: list[int] = []
        for left in range(6, 0, -1):
            await worker.until_queued(min(left, 2))  # two that are published side by side may overtake each other
            claim = await worker.take()
            ran.append(claim.call.arguments["n"])
            assert len(await worker.queued()) <= 2
            await worker.finish(claim)
        results = await asyncio.wait_for(calling, PATIENCE_SECONDS)

    assert (set(ran[:2]), ran[2:]) == ({0, 1}, [2, 3, 4, 5])  # the first two are published side by side
    assert [result.result["n"] for result in results] == [0, 1, 2, 3, 4, 5]


async def test_room_that_others_make_is_found(make: Make, redis: Redis, worker: HandWorker) -> None:
    """A call of the same user in another agent ends unheard: whoever is first asks now and then."""
    async with ToolFleet(settings=make(calls_per_caller=1)) as fleet:
        await redis.zadd(SHARE, {"elsewhere": time.time() + 100})
        await redis.expire(SHARE, 100)
        calling = asyncio.create_task(fleet.call(ECHO, ADA, timeout=30))
        await wait_until(lambda: fleet_turns(fleet).is_awaited(("fast", "ada")), "the call waits")
        assert await worker.queued() == []
        await redis.zrem(SHARE, "elsewhere")
        await worker.finish(await worker.take())
        assert (await calling).success


def fleet_turns(fleet: ToolFleet) -> WaitQueue:
    session = fleet._sessions.here()
    assert session is not None
    return session._dispatcher._wait_queue


async def test_who_waits_too_long_has_expired(make: Make, worker: HandWorker, redis: Redis) -> None:
    """At its deadline, without having been published, and nothing of it is left."""
    async with ToolFleet(settings=make(calls_per_caller=1)) as fleet:
        await fleet.submit(echo(0), ADA)
        result = await asyncio.wait_for(fleet.call(echo(1), ADA, timeout=0.3), PATIENCE_SECONDS)

        assert (result.error_code, result.effect_state) == ("expired", "none")
        assert (await numbers(worker), await redis.zcard(SHARE)) == ([0], 1)


async def test_waiting_can_be_cancelled(make: Make, worker: HandWorker, redis: Redis) -> None:
    """It costs nothing, and those behind move up."""
    async with ToolFleet(settings=make(calls_per_caller=1)) as fleet:
        await fleet.submit(echo(0), ADA)
        waiting = [asyncio.create_task(fleet.call(echo(number), ADA)) for number in (1, 2)]
        await wait_until(lambda: fleet_row(fleet) == 2, "both wait")
        waiting[0].cancel()
        await wait_until(lambda: fleet_row(fleet) == 1, "one has gone")
        await worker.finish(await worker.take())
        await worker.until_queued()
        assert (await numbers(worker), await redis.zcard(SHARE)) == ([2], 1)
        await worker.finish(await worker.take())
        assert (await waiting[1]).success

    assert waiting[0].cancelled()


def fleet_row(fleet: ToolFleet) -> int:
    session = fleet._sessions.here()
    assert session is not None
    row = session._dispatcher._wait_queue._rows.get(("fast", "ada"))
    return row.waiting if row else 0


async def test_leaving_the_fleet_ends_those_who_wait(make: Make) -> None:
    """With a result that says so."""
    fleet = ToolFleet(settings=make(calls_per_caller=1))
    await fleet.__aenter__()
    await fleet.submit(echo(0), ADA)
    waiting = asyncio.create_task(fleet.call(echo(1), ADA))
    await wait_until(lambda: fleet_row(fleet) == 1, "it waits")
    await fleet.__aexit__()
    result = await asyncio.wait_for(waiting, PATIENCE_SECONDS)

    assert (result.success, result.effect_state) == (False, "none")
    assert "left" in (result.error or "")


async def test_call_many_takes_back_what_is_left(make: Make, worker: HandWorker, redis: Redis) -> None:
    """When its caller is cancelled: calls in the queue never begin, and those that wait never get there."""
    async with ToolFleet(settings=make(calls_per_caller=2)) as fleet:
        calling = asyncio.create_task(fleet.call_many([echo(number) for number in range(4)], ADA))
        await wait_until(lambda: fleet_row(fleet) == 2, "two wait")
        calling.cancel()
        await asyncio.wait([calling])
        assert calling.cancelled()
        await wait_until_equal(lambda: redis.exists(SHARE), 0, "their share is free")
        states = [await redis.hget(KEYS.call(call.call_id), "state") for call in await worker.queued()]

    assert set(states) <= {"done"}


async def test_call_many_takes_back_the_others_when_one_raises(
    make: Make, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect of one call leaves none of the others running for nobody."""
    async with ToolFleet(settings=make()) as fleet:
        good, calls = ToolFleet.call, [echo(0), echo(1)]

        async def call(self: ToolFleet, call: ToolCall, caller: Caller, **options: object) -> ToolResult:
            if call is calls[0]:
                await wait_until(lambda: fleet_session_calls(fleet) == 1, "the other is published")
                raise RuntimeError("a defect")
            return await good(self, call, caller)

        monkeypatch.setattr(ToolFleet, "call", call)
        with pytest.raises(RuntimeError, match="a defect"):
            await fleet.call_many(calls, ADA)
        assert fleet_session_calls(fleet) == 0


def fleet_session_calls(fleet: ToolFleet) -> int:
    session = fleet._sessions.here()
    assert session is not None
    return len(session._listener._expected)


async def test_redis_may_forget_the_script(make: Make, redis: Redis, worker: HandWorker) -> None:
    """After a restart, or SCRIPT FLUSH, it is told again, and each call is published once."""
    async with ToolFleet(settings=make()) as fleet:
        for number in range(3):
            await redis.script_flush()
            await fleet.submit(echo(number), ADA)
        await redis.script_flush()
        await asyncio.gather(*(fleet.submit(echo(number), ADA) for number in range(3, 6)))

    assert sorted(await numbers(worker)) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(("number", "kind"), [(1, "joined"), (2, "conflict")])
async def test_a_key_stands_for_one_call(
    connection: PipelinedConnection, redis_url: str, number: int, kind: str
) -> None:
    """The same call joins it; one with other arguments is refused."""
    control = AdmissionControl(Settings(redis_url=redis_url))
    first, second = (
        published("owls.echo", call_id=f"call-{place}", arguments={"n": each}, user_id="ada", idempotency_key="k")
        for place, each in enumerate((1, number))
    )
    assert await control.ask(connection, first) is None
    refusal = await control.ask(connection, second)

    assert refusal is not None
    assert (refusal.kind, refusal.call_id) == (kind, first.call_id)
